import { describe } from 'node:test';
import type { EngineUnderTest } from '../engines.ts';
import { batchContract } from './storage/batch.ts';
import { browseContract } from './storage/browse.ts';
import { contentContract } from './storage/content.ts';
import { deadLetterContract } from './storage/dead-letter.ts';
import { dropContract } from './storage/drop.ts';
import { expiryContract } from './storage/expiry.ts';
import { forgottenContract, forgottenStreamsContract } from './storage/forgotten.ts';
import { groupsContract } from './storage/groups.ts';
import { insertContract } from './storage/insert.ts';
import { leaseContract } from './storage/lease.ts';
import { moveContract } from './storage/move.ts';
import { optionsContract } from './storage/options.ts';
import { purgeContract } from './storage/purge.ts';
import { reasonContract } from './storage/reason.ts';
import { removeContract } from './storage/remove.ts';
import { requestKeyContract } from './storage/request-key.ts';
import { retryDelayContract } from './storage/retry-delay.ts';
import { scanContract } from './storage/scan.ts';
import { settleContract } from './storage/settle.ts';
import { settleTogetherContract } from './storage/settle-together.ts';
import { settleWaitingContract } from './storage/settle-waiting.ts';
import { sizesContract } from './storage/sizes.ts';
import { streamContract } from './storage/streams.ts';
import { sweepContract } from './storage/sweep.ts';
import { takeContract } from './storage/take.ts';
import { transferContract } from './storage/transfer.ts';
import { transientContract } from './storage/transient.ts';
import { undoTakeContract } from './storage/undo-take.ts';

/**
 * Every promise that the comments of `src/engine/storage.ts` make, as tests.
 *
 * @param boundsGroups false for joined engines, which bound the groups of each engine separately
 */
export function storageContract(engine: EngineUnderTest, boundsGroups = true): void {
  const { name, open } = engine;
  describe(`Storage port: ${name}`, () => {
    insertContract(open);
    requestKeyContract(engine);
    takeContract(open);
    settleContract(open);
    settleTogetherContract(open);
    leaseContract(open);
    transientContract(open);
    deadLetterContract(open);
    streamContract(open);
    if (boundsGroups) groupsContract(open);
    undoTakeContract(open);
    removeContract(open);
    transferContract(open);
    browseContract(open);
    sizesContract(open);
    sweepContract(open);
    forgottenContract(open);
    forgottenStreamsContract(open);
    contentContract(open);
    batchContract(open);
    scanContract(engine);
    settleWaitingContract(engine);
    moveContract(engine);
    reasonContract(engine);
    expiryContract(engine);
    optionsContract(engine);
    retryDelayContract(open);
    purgeContract(engine);
    dropContract(engine);
  });
}
