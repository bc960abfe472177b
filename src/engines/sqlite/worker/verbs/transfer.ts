import type { MessageReader, MessageWriter } from '../../message.ts';
import { DONE } from '../../operations.ts';
import { makeRoom } from '../room.ts';
import type { Store } from '../store.ts';
import { type IncomingElement, insertOne, readNewElement } from './insert.ts';
import { commitOne, type Reference, readReference } from './settle.ts';

interface Insert {
  /** A handle. */
  readonly target: number;
  readonly element: IncomingElement;
}

interface Move {
  readonly finish: Reference | null;
  readonly inserts: readonly Insert[];
}

/**
 * count, then per move: queue, reference, count, then per insert: queue, element -> outcomes
 *
 * Finish and inserts stand in the call's transaction, so a move happens wholly or not at all.
 * @throws Refusal
 */
export function transfer(store: Store, call: MessageReader, reply: MessageWriter): void {
  const moves = Array.from({ length: call.number() }, () => readMove(store, call));
  for (const [target, elements] of byTarget(moves)) makeRoom(store, target, elements);
  for (const { finish, inserts } of moves) {
    const outcome = commitOne(store, finish);
    for (const { target, element } of inserts) {
      if (outcome !== DONE) continue;
      const queue = store.names.make(target);
      store.names.use(queue, store.now);
      insertOne(store, queue, element);
    }
    reply.value(outcome);
  }
}

function readMove(store: Store, call: MessageReader): Move {
  const finish = readReference(store, call.number(), call);
  const inserts = Array.from({ length: call.number() }, () => ({
    target: call.number(),
    element: readNewElement(call),
  }));
  return { finish, inserts };
}

function byTarget(moves: readonly Move[]): Map<number, IncomingElement[]> {
  const targets = new Map<number, IncomingElement[]>();
  for (const { inserts } of moves) {
    for (const { target, element } of inserts) {
      if (element.groups === '') continue;
      const elements = targets.get(target);
      if (elements === undefined) targets.set(target, [element]);
      else elements.push(element);
    }
  }
  return targets;
}
