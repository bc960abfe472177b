import { type Frame, headerOf } from '../codec/frame.ts';
import type { StompSession } from '../session.ts';
import { needed } from '../values.ts';

export function begin(session: StompSession, { headers }: Frame): void {
  session.transactions.begin(needed('BEGIN', 'transaction', headerOf(headers, 'transaction')));
  session.confirm(headerOf(headers, 'receipt'));
}

export function commit(session: StompSession, { headers }: Frame): void {
  const transaction = session.transactions.end(
    needed('COMMIT', 'transaction', headerOf(headers, 'transaction')),
  );
  void session.commit(transaction, headerOf(headers, 'receipt'));
}

export function abort(session: StompSession, { headers }: Frame): void {
  session.transactions.end(needed('ABORT', 'transaction', headerOf(headers, 'transaction'))).abort();
  session.confirm(headerOf(headers, 'receipt'));
}
