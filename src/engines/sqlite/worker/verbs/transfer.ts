import type { MessageReader, MessageWriter } from '../../message.ts';
import { DONE } from '../../operations.ts';
import type { Store } from '../store.ts';
import { insertOne, readNewElement } from './insert.ts';
import { commitOne } from './settle.ts';

/**
 * count, then per move: queue, reference, count, then per insert: queue, element -> outcomes
 *
 * Finish and inserts stand in the call's transaction, so a move happens wholly or not at all.
 */
export function transfer(store: Store, call: MessageReader, reply: MessageWriter): void {
  for (let left = call.number(); left > 0; left--) {
    const outcome = commitOne(store, call.number(), call);
    for (let inserts = call.number(); inserts > 0; inserts--) {
      const target = call.number();
      const element = readNewElement(call);
      if (outcome === DONE) insertOne(store, store.names.make(target), element);
    }
    reply.value(outcome);
  }
}
