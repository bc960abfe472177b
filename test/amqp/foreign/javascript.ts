import { isDeepStrictEqual } from 'node:util';
import type { Mailbox } from '../../stomp/foreign/client.ts';

/** A message as a JavaScript library presents it. */
export interface ShownMessage {
  readonly body: unknown;
  readonly contentType: string | null | undefined;
  readonly deliveryCount: number | undefined;
  readonly properties: Readonly<Record<string, unknown>> | null | undefined;
}

/** What a driver implements with its library: the verbs described in `driven.ts`. */
export interface Verbs<Received extends ShownMessage = ShownMessage> {
  open(url: URL, user: string, password: string): Promise<void>;
  close(): Promise<void>;
  /** Resolves when the library has noticed the lost connection. */
  lost(): Promise<void>;
  /** @returns the outcome */
  send(address: string, body: unknown, fields: SentFields): Promise<string>;
  /** Subscribes: messages are put into `received`. */
  receive(address: string, credit: number, isSettled: boolean, group: string | null): Promise<void>;
  settle(message: Received, outcome: string): void;
  readonly received: Mailbox<Received | Error>;
}

export interface SentFields {
  readonly contentType: string | null;
  readonly properties: Readonly<Record<string, string>>;
}

/** Sample bodies, the same in all drivers. */
const VALUES: Readonly<Record<string, unknown>> = {
  text: 'Grüße, ☃',
  number: 4711,
  flag: true,
  list: ['one', 2, false],
  map: { colour: 'blue', count: 3 },
};

function kindOf(body: unknown): string {
  const found = Object.entries(VALUES).find(([, value]) => isDeepStrictEqual(value, body));
  return found?.[0] ?? `other:${JSON.stringify(body)}`;
}

/** Reads commands from stdin until its end, and prints the result of each. */
export async function drive<Received extends ShownMessage>(verbs: Verbs<Received>): Promise<void> {
  let held: Received | null = null;
  const next = async (): Promise<Received> => {
    const message = await verbs.received.take();
    if (message instanceof Error) throw message;
    held = message;
    return message;
  };
  const commands: Readonly<Record<string, (...words: string[]) => Promise<string | undefined>>> = {
    async open(url = '', user = '', password = '') {
      await verbs.open(new URL(url), user, password);
      return undefined;
    },
    async close() {
      await verbs.close();
      return undefined;
    },
    async lost() {
      await verbs.lost();
      return undefined;
    },
    async send(address = '', body = '', contentType = '', ...pairs) {
      const properties = Object.fromEntries(pairs.map((pair) => pair.split('=') as [string, string]));
      const bytes = Buffer.from(body === '-' ? '' : body, 'hex');
      return verbs.send(address, bytes, {
        contentType: contentType === '-' ? null : contentType,
        properties,
      });
    },
    async 'send-value'(address = '', kind = '') {
      return verbs.send(address, VALUES[kind], { contentType: null, properties: {} });
    },
    async receive(address = '', credit = '', mode = '', group = '') {
      await verbs.receive(address, Number(credit), mode === 'settled', group === '-' ? null : group);
      return undefined;
    },
    async next() {
      const { body, contentType, deliveryCount, properties } = await next();
      const pairs = Object.entries(properties ?? {}).map(([name, value]) => `${name}=${value}`);
      const hex = Buffer.isBuffer(body) ? body.toString('hex') : '';
      return [hex || '-', contentType ?? '-', deliveryCount ?? 0, ...pairs].join(' ');
    },
    async 'next-value'() {
      return kindOf((await next()).body);
    },
    async settle(outcome = '') {
      if (held !== null) verbs.settle(held, outcome);
      return undefined;
    },
  };
  process.stdin.setEncoding('utf8');
  let rest = '';
  for await (const chunk of process.stdin) {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      const [verb = '', ...words] = line.split(' ');
      const answer = await commands[verb]?.(...words).then(
        (text) => `ok ${text ?? ''}`.trimEnd(),
        (error: unknown) => `error ${textOf(error)}`,
      );
      process.stdout.write(`${answer ?? `error there is no ${verb}`}\n`);
    }
  }
  process.exit();
}

function textOf(error: unknown): string {
  const {
    name = '',
    message = '',
    condition = '',
  } = error as { name?: string; message?: string; condition?: string };
  return `${name} ${condition} ${message}`.replaceAll('\n', ' ');
}
