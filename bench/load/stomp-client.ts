/**
 * A STOMP 1.2 client that only counts, in a process of its own: `node stomp-client.ts <JSON of StompTarget>`.
 * Communicates through {@link Helper}: a ready message, then one answer per request. It is cheap enough that the server
 * is the bottleneck, and works with any STOMP server.
 */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import type { IdleRequest } from '../idle-sessions.ts';
import { ELEMENT } from '../quayside.ts';
import type { RateAnswer, RateRequest } from '../rates.ts';

export interface StompTarget {
  readonly port: number;
  readonly login: string;
  readonly passcode: string;
}

/**
 * - `send`: persistent SENDs with a receipt each, with at most `window` receipts outstanding.
 * - `consume`: this many elements with `client-individual` and the given window, and an ACK each.
 * - `idle`: connections that log in, subscribe, and then only send heart-beats.
 */
type Request = RateRequest | IdleRequest;

const NUL = 0;
const target: StompTarget = JSON.parse(process.argv[2] ?? '{}');

process.on('message', (request: Request) => {
  answer(request).then(
    (result) => process.send?.(result),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.send?.({});

function answer(request: Request): Promise<RateAnswer> {
  switch (request.what) {
    case 'send':
      return send(request.destination, request.count, request.window);
    case 'consume':
      return consume(request.destination, request.count, request.window);
    case 'idle':
      return idle(request.destination, request.count, request.beatMs);
  }
}

async function send(destination: string, count: number, window: number): Promise<RateAnswer> {
  const socket = await login('0,0');
  const head = `SEND\ndestination:${destination}\npersistent:true\ncontent-type:application/json\ncontent-length:${ELEMENT.length}\nreceipt:`;
  let sent = 0;
  let confirmed = 0;
  const more = (): void => {
    let frames = '';
    for (; sent < count && sent - confirmed < window; sent++) frames += `${head}${sent}\n\n${ELEMENT}\0\n`;
    if (frames !== '') socket.write(frames, 'latin1');
  };
  const { promise: done, resolve, reject } = Promise.withResolvers<void>();
  const from = performance.now();
  socket.on('data', (bytes: Buffer) => {
    if (bytes.includes('ERROR')) reject(new Error(bytes.toString()));
    confirmed += framesIn(bytes);
    if (confirmed >= count) resolve();
    else more();
  });
  more();
  await done;
  return rateOf(count, from, socket);
}

/** Receipts have no body, so each contains exactly one NUL. */
function framesIn(bytes: Buffer): number {
  let frames = 0;
  for (let at = bytes.indexOf(NUL); at >= 0; at = bytes.indexOf(NUL, at + 1)) frames += 1;
  return frames;
}

async function consume(destination: string, count: number, window: number): Promise<RateAnswer> {
  const socket = await login('0,0');
  const { promise: done, resolve, reject } = Promise.withResolvers<void>();
  let acked = 0;
  let rest = '';
  const from = performance.now();
  socket.on('data', (bytes: Buffer) => {
    const text = rest + bytes.toString('latin1');
    let acks = '';
    let start = 0;
    for (let end = text.indexOf('\0'); end >= 0; end = text.indexOf('\0', start)) {
      const frame = text.slice(start, end);
      start = end + 1;
      if (frame.includes('RECEIPT\n')) return resolve();
      const id = /\nack:(.*)\n/.exec(frame)?.[1];
      if (id === undefined) return reject(new Error(frame));
      acked += 1;
      acks += acked === count ? `ACK\nid:${id}\nreceipt:last\n\n\0\n` : `ACK\nid:${id}\n\n\0\n`;
    }
    rest = text.slice(start);
    if (acks !== '') socket.write(acks, 'latin1');
  });
  socket.write(
    `SUBSCRIBE\nid:0\ndestination:${destination}\nack:client-individual\nprefetch-count:${window}\n\n\0\n`,
  );
  await done;
  return rateOf(count, from, socket);
}

/** Opens connections that stay open until this process ends. */
async function idle(destination: string, count: number, beatMs: number): Promise<RateAnswer> {
  const from = performance.now();
  for (let i = 0; i < count; i++) {
    const socket = await login(`${beatMs},${beatMs}`);
    socket.on('data', () => {});
    socket.on('close', () => {
      console.error('an idle session ended');
      process.exit(1);
    });
    socket.write(`SUBSCRIBE\nid:0\ndestination:${destination}\nack:client\n\n\0\n`);
    setInterval(() => socket.write('\n'), beatMs);
  }
  return { count, perSecond: (count * 1000) / (performance.now() - from) };
}

async function login(beats: string): Promise<Socket> {
  const { port, login: user, passcode } = target;
  const socket = connect({ port, host: '127.0.0.1', noDelay: true });
  await once(socket, 'connect');
  socket.write(
    `CONNECT\naccept-version:1.2\nhost:/\nlogin:${user}\npasscode:${passcode}\nheart-beat:${beats}\n\n\0\n`,
  );
  const [bytes] = (await once(socket, 'data')) as [Buffer];
  if (!bytes.includes('CONNECTED')) throw new Error(bytes.toString());
  return socket;
}

function rateOf(count: number, from: number, socket: Socket): RateAnswer {
  const perSecond = (count * 1000) / (performance.now() - from);
  socket.removeAllListeners('data');
  socket.destroy();
  return { count, perSecond };
}
