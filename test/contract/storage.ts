import { describe } from 'node:test';
import type { EngineUnderTest } from '../engines.ts';
import { batchContract } from './storage/batch.ts';
import { browseContract } from './storage/browse.ts';
import { contentContract } from './storage/content.ts';
import { deadLetterContract } from './storage/dead-letter.ts';
import { forgottenContract, forgottenStreamsContract } from './storage/forgotten.ts';
import { groupsContract } from './storage/groups.ts';
import { insertContract } from './storage/insert.ts';
import { leaseContract } from './storage/lease.ts';
import { putBackContract } from './storage/put-back.ts';
import { removeContract } from './storage/remove.ts';
import { settleContract } from './storage/settle.ts';
import { sizesContract } from './storage/sizes.ts';
import { streamContract } from './storage/streams.ts';
import { sweepContract } from './storage/sweep.ts';
import { takeContract } from './storage/take.ts';
import { transferContract } from './storage/transfer.ts';

type Open = EngineUnderTest['open'];

/** Every promise that the comments of `src/engine/storage.ts` make, as tests. */
export function storageContract(name: string, open: Open): void {
  describe(`Storage port: ${name}`, () => {
    insertContract(open);
    takeContract(open);
    settleContract(open);
    leaseContract(open);
    deadLetterContract(open);
    streamContract(open);
    groupsContract(open);
    putBackContract(open);
    removeContract(open);
    transferContract(open);
    browseContract(open);
    sizesContract(open);
    sweepContract(open);
    forgottenContract(open);
    forgottenStreamsContract(open);
    contentContract(open);
    batchContract(open);
  });
}
