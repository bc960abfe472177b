import { type Frame, headerOf } from '../codec/frame.ts';
import type { Session } from '../session.ts';
import { needed } from '../values.ts';

export function begin(session: Session, { headers }: Frame): void {
  session.transactions.begin(needed('BEGIN', 'transaction', headerOf(headers, 'transaction')));
  session.receiptIf(headerOf(headers, 'receipt'));
}

export function commit(session: Session, { headers }: Frame): void {
  const transaction = session.transactions.end(
    needed('COMMIT', 'transaction', headerOf(headers, 'transaction')),
  );
  void session.carryOut(transaction, headerOf(headers, 'receipt'));
}

export function abort(session: Session, { headers }: Frame): void {
  session.transactions.end(needed('ABORT', 'transaction', headerOf(headers, 'transaction'))).abort();
  session.receiptIf(headerOf(headers, 'receipt'));
}
