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
  declare,
  queues: ({ names }, _, ns) => names.list(ns),
  insert,
  take,
  settle,
  undoTake,
  scan,
  purge,
  drop: ({ names, upkeep }, _, name) => upkeep.drop(names.find(name)),
  counts,
  usage: ({ names, upkeep }, _, ns) => [names.heldIn(ns), upkeep.bytesInUse()],
  sweep,
  definitionGet: ({ records }, _, ...args) => records.definition(...args),
  definitionList: ({ records }, _, kind) => records.definitions(kind),
  definitionPut,
  definitionDelete,
  statsAdd,
  statsRead,
  ping: () => null,
};
