import { type Frame, headerOf, type Version } from '../codec/frame.ts';
import type { StompSession } from '../session.ts';
import { needed } from '../values.ts';
import { send } from './send.ts';
import { ack, nack } from './settle.ts';
import { subscribe, unsubscribe } from './subscribe.ts';

/** What a logged-in client may send. @throws QuaysideError what is answered with ERROR */
type Command = (session: StompSession, frame: Frame) => void;

/** Every command but CONNECT and STOMP; `docs/protocols/stomp.md` lists the same. */
export const COMMANDS: Readonly<Record<string, { readonly since: Version; readonly run: Command }>> = {
  SEND: { since: '1.0', run: send },
  SUBSCRIBE: { since: '1.0', run: subscribe },
  UNSUBSCRIBE: { since: '1.0', run: unsubscribe },
  ACK: { since: '1.0', run: ack },
  NACK: { since: '1.1', run: nack },
  BEGIN: { since: '1.0', run: begin },
  COMMIT: { since: '1.0', run: commit },
  ABORT: { since: '1.0', run: abort },
  DISCONNECT: {
    since: '1.0',
    run: (session, { headers }) => session.disconnect(headerOf(headers, 'receipt')),
  },
};

/** Names of the commands that a logged-in client of a version may send. */
export function commandsOf(version: Version): string[] {
  return Object.keys(COMMANDS).filter((name) => commandOf(name, version) !== null);
}

export function commandOf(name: string, version: Version): Command | null {
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  return command === undefined || command.since > version ? null : command.run;
}

function begin(session: StompSession, { headers }: Frame): void {
  session.transactions.begin(needed('BEGIN', 'transaction', headerOf(headers, 'transaction')));
  session.confirm(headerOf(headers, 'receipt'));
}

function commit(session: StompSession, { headers }: Frame): void {
  const transaction = session.transactions.end(
    needed('COMMIT', 'transaction', headerOf(headers, 'transaction')),
  );
  void session.commit(transaction, headerOf(headers, 'receipt'));
}

function abort(session: StompSession, { headers }: Frame): void {
  session.transactions.end(needed('ABORT', 'transaction', headerOf(headers, 'transaction'))).abort();
  session.confirm(headerOf(headers, 'receipt'));
}
