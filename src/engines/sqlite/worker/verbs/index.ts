import type { MessageReader, MessageWriter } from '../../message.ts';
import { OPERATIONS, type Operation } from '../../operations.ts';
import type { Store } from '../store.ts';
import { browse } from './browse.ts';
import { definitionDelete, definitionGet, definitionList, definitionPut } from './definitions.ts';
import { insert } from './insert.ts';
import { purge } from './purge.ts';
import { putBack } from './put-back.ts';
import { declare, nextDueAt, queues, usage } from './queues.ts';
import { remove } from './remove.ts';
import { commit, extend, rollback } from './settle.ts';
import { sizes } from './sizes.ts';
import { statsAdd, statsRead } from './stats.ts';
import { sweep } from './sweep.ts';
import { take } from './take.ts';
import { tend } from './tend.ts';
import { transfer } from './transfer.ts';

/**
 * One operation inside the batch's transaction: reads its arguments, does its work, writes its answer.
 * The order of values is noted at each verb; `storage.ts` and its neighbours hold the other end.
 */
export type Verb = (store: Store, call: MessageReader, reply: MessageWriter) => void;

const BY_NAME: Record<Operation, Verb> = {
  declare,
  queues,
  insert,
  take,
  commit,
  rollback,
  extend,
  putBack,
  remove,
  transfer,
  browse,
  purge,
  sizes,
  nextDueAt,
  usage,
  sweep,
  definitionGet,
  definitionList,
  definitionPut,
  definitionDelete,
  statsAdd,
  statsRead,
  tend,
  ping: () => {},
};

/** By operation number. */
export const VERBS: readonly Verb[] = OPERATIONS.map((operation) => BY_NAME[operation]);
