import type { BodyWriter, Operation, Operations, PackedBodies } from '../protocol.ts';
import { insert } from './insert.ts';
import { counts, declare, purge, undoTake } from './queues.ts';
import { definitionDelete, definitionPut, statsAdd, statsRead } from './records.ts';
import { scan } from './scan.ts';
import { settle } from './settle.ts';
import type { Store } from './store.ts';
import { sweep } from './sweep.ts';
import { take } from './take.ts';

/** The bodies that a call came with, and those of the results. */
export interface Bodies {
  readonly received: PackedBodies;
  readonly reply: BodyWriter;
}

type Run<O extends Operation> = (
  store: Store,
  bodies: Bodies,
  ...args: Parameters<Operations[O]>
) => ReturnType<Operations[O]>;

/** What each operation does, within the batch's transaction. */
export const OPERATIONS: { readonly [O in Operation]: Run<O> } = {
  declare: (store, _, ...args) => declare(store, ...args),
  queues: ({ names }, _, ns) => names.list(ns),
  insert: (store, { received }, ...args) => insert(store, received, ...args),
  take: (store, { reply }, ...args) => take(store, reply, ...args),
  settle: (store, { received }, ...args) => settle(store, received, ...args),
  undoTake: (store, { received }, ...args) => undoTake(store, received, ...args),
  scan: (store, { reply }, ...args) => scan(store, reply, ...args),
  purge: (store, _, ...args) => purge(store, ...args),
  counts: (store, _, ...args) => counts(store, ...args),
  usage: ({ names, upkeep }, _, ns) => [names.heldIn(ns), upkeep.bytesInUse()],
  sweep,
  definitionGet: ({ records }, _, ...args) => records.definition(...args),
  definitionList: ({ records }, _, kind) => records.definitions(kind),
  definitionPut: (store, _, ...args) => definitionPut(store, ...args),
  definitionDelete: (store, _, ...args) => definitionDelete(store, ...args),
  statsAdd: (store, _, entries) => statsAdd(store, entries),
  statsRead: (store, _, queue) => statsRead(store, queue),
  ping: () => null,
};
