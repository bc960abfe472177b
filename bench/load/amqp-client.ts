/**
 * rhea as a client that only counts, in a process of its own: `node amqp-client.ts <JSON of AmqpTarget>`. Communicates
 * through {@link Helper}: a ready message, then one answer per request. Works with any AMQP server.
 */
import rhea, { type Connection } from 'rhea';
import type { IdleRequest } from '../idle-sessions.ts';
import { ELEMENT } from '../quayside.ts';
import type { RateAnswer, RateRequest } from '../rates.ts';

export interface AmqpTarget {
  readonly port: number;
  readonly login: string;
  readonly passcode: string;
}

const target: AmqpTarget = JSON.parse(process.argv[2] ?? '{}');
const BODY = rhea.message.data_section(Buffer.from(ELEMENT));

process.on('message', (request: RateRequest | IdleRequest) => {
  answerTo(request).then(
    (result) => process.send?.(result),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.send?.({});

function answerTo(request: RateRequest | IdleRequest): Promise<RateAnswer> {
  switch (request.what) {
    case 'send':
      return send(request);
    case 'consume':
      return consume(request);
    case 'idle':
      return idle(request);
  }
}

/** Sends durable, unsettled messages, with at most `window` of them awaiting their outcome. */
async function send({ destination, count, window }: RateRequest): Promise<RateAnswer> {
  const connection = connect();
  // RabbitMQ makes a queue as durable as its terminus.
  const sender = connection.open_sender({ target: { address: destination, durable: 2 }, autosettle: true });
  const { promise: done, resolve, reject } = Promise.withResolvers<void>();
  let sent = 0;
  let confirmed = 0;
  const more = (): void => {
    for (; sent < count && sent - confirmed < window && sender.sendable(); sent++) {
      sender.send({ body: BODY, durable: true, content_type: 'application/json' } as never);
    }
  };
  await new Promise((ready) => sender.once('sendable', ready));
  const from = performance.now();
  sender.on('sendable', more);
  sender.on('accepted', () => {
    confirmed += 1;
    if (confirmed === count) resolve();
    else more();
  });
  for (const event of ['rejected', 'released', 'modified', 'sender_error']) {
    sender.on(event, () => reject(new Error(`${event}: ${JSON.stringify(sender.error ?? null)}`)));
  }
  more();
  await done;
  return answer(count, from, connection);
}

/** Receives this many elements with the given window, and accepts each. */
async function consume({ destination, count, window }: RateRequest): Promise<RateAnswer> {
  const connection = connect();
  const source = { address: destination, durable: 2 };
  const { promise: done, resolve, reject } = Promise.withResolvers<void>();
  const from = performance.now();
  const options = { source, credit_window: window, autoaccept: false, autosettle: true } as never;
  const receiver = connection.open_receiver(options);
  let accepted = 0;
  receiver.on('message', ({ delivery }) => {
    delivery?.accept();
    accepted += 1;
    if (accepted === count) receiver.close();
  });
  receiver.on('receiver_close', () => resolve());
  receiver.on('receiver_error', () => reject(new Error(JSON.stringify(receiver.error))));
  await done;
  return answer(count, from, connection);
}

/** Opens connections that stay open until this process ends. */
async function idle({ destination, count, beatMs }: IdleRequest): Promise<RateAnswer> {
  const from = performance.now();
  for (let i = 0; i < count; i++) {
    // A peer sends twice as often as required.
    const connection = connect(2 * beatMs);
    connection.open_receiver({ source: { address: destination }, credit_window: 1 });
    await new Promise((opened) => connection.once('receiver_open', opened));
  }
  return { count, perSecond: (count * 1000) / (performance.now() - from) };
}

function connect(silenceMs?: number): Connection {
  const { port, login: username, passcode: password } = target;
  const options = { host: '127.0.0.1', port, username, password, reconnect: false } as const;
  const connection = rhea
    .create_container()
    .connect(silenceMs === undefined ? options : { ...options, idle_time_out: silenceMs });
  for (const event of ['disconnected', 'connection_error', 'error']) {
    connection.on(event, () => console.error(event, connection.error ?? ''));
  }
  return connection;
}

async function answer(count: number, from: number, connection: Connection): Promise<RateAnswer> {
  const perSecond = (count * 1000) / (performance.now() - from);
  const closed = new Promise((resolve) => connection.once('connection_close', resolve));
  connection.close();
  await closed;
  return { count, perSecond };
}
