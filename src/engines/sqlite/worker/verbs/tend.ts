import type { MessageReader, MessageWriter } from '../../message.ts';
import type { Store } from '../store.ts';

const ROWS_A_CALL = 500;

/** nothing -> whether more is left to do at once */
export function tend(store: Store, _call: MessageReader, reply: MessageWriter): void {
  const garbage = store.garbage.clear(ROWS_A_CALL);
  const keys = store.dedup.forget(store.now, ROWS_A_CALL) === ROWS_A_CALL;
  const pages = store.freePages.giveBack(store.space?.isTight ?? false);
  reply.flag(garbage || keys || pages);
}
