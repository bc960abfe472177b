import { browseVerbs } from './browse.ts';
import { commitVerbs } from './commit.ts';
import { extendVerb } from './extend.ts';
import { type InsertHost, insertVerbs } from './insert.ts';
import { type LapseHost, lapseVerb } from './lapse.ts';
import { NOTHING_VERB, PING_VERB, QUEUES_VERB, USAGE_VERB } from './names.ts';
import { NEXT_DUE_AT_VERB } from './next-due-at.ts';
import { purgeVerbs } from './purge.ts';
import { putBackVerbs } from './put-back.ts';
import { removeVerb } from './remove.ts';
import { type RollbackHost, rollbackVerbs } from './rollback.ts';
import { type SizesHost, sizesVerb, streamSizesVerb } from './sizes.ts';
import { type TakeHost, takeVerbs } from './take.ts';
import { type TransferHost, transferVerbs } from './transfer.ts';

export type VerbsHost = InsertHost &
  TakeHost &
  TransferHost &
  Omit<RollbackHost, 'died'> &
  LapseHost &
  SizesHost;

export type Verbs = ReturnType<typeof makeVerbs>;

/** Every kind of step there is. Where one port verb has several kinds, a function picks the right one. */
export function makeVerbs(host: VerbsHost) {
  return {
    nothing: NOTHING_VERB,
    queues: QUEUES_VERB,
    usage: USAGE_VERB,
    ping: PING_VERB,
    insert: insertVerbs(host),
    take: takeVerbs(host),
    commit: commitVerbs(host.ids),
    rollback: rollbackVerbs({ ...host, died: ({ queue, group }) => host.died(queue, group, 1) }),
    extend: extendVerb(host),
    putBack: putBackVerbs(host.ids),
    remove: removeVerb(host.ids),
    transfer: transferVerbs(host),
    browse: browseVerbs(host.ids),
    purge: purgeVerbs(),
    sizes: sizesVerb(host),
    streamSizes: streamSizesVerb(host),
    nextDueAt: NEXT_DUE_AT_VERB,
    lapse: lapseVerb(host),
  };
}
