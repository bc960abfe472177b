import { setTimeout as delay } from 'node:timers/promises';
import { Helper, residentBytesOf } from './process.ts';
import { createServer, NAMESPACE, portOf } from './quayside.ts';
import type { RateAnswer } from './rates.ts';
import type { BenchContext, Finding } from './scenario.ts';
import { idleShare, limit } from './shared.ts';

/** A request to a load client: open connections that log in, subscribe, and then only send heart-beats. */
export interface IdleRequest {
  readonly what: 'idle';
  readonly destination: string;
  readonly count: number;
  readonly beatMs: number;
}

export interface IdleSide {
  /** What the sessions are called in the findings. */
  readonly sessions: string;
  /** Server options that enable the front end. */
  readonly options: Readonly<Record<string, unknown>>;
  readonly scheme: 'stomp' | 'amqp';
  /** The load client's program, started with the port and a login. */
  readonly client: URL;
  /** The destination of the subscriptions. */
  destinationIn(namespace: string): string;
}

const KIBIBYTE = 1024;
const BEAT_MS = 10_000;
/** Time for the garbage collector and the kernel to settle after many new connections. */
const SETTLE_MS = 3_000;

/** Measures the memory and CPU of 1,000 logged-in, subscribed sessions that exchange a heart-beat every ten seconds. */
export async function measureIdleSessions(context: BenchContext, side: IdleSide): Promise<Finding[]> {
  const { quick } = context;
  const count = quick ? 100 : 1_000;
  await using server = await createServer(context, undefined, side.options);
  await server.start();
  const target = { port: portOf(server, side.scheme), login: 'test1', passcode: 'test1' };
  const [client] = await Helper.start(side.client, [JSON.stringify(target)]);
  const destination = side.destinationIn(NAMESPACE);
  const open = (sessions: number): Promise<RateAnswer> =>
    client.ask({ what: 'idle', destination, count: sessions, beatMs: BEAT_MS } satisfies IdleRequest);
  try {
    // The first sessions load code and tables that all share.
    await open(10);
    await delay(quick ? 0 : SETTLE_MS);
    const before = residentBytesOf(server.pid);
    await open(count);
    await delay(quick ? 0 : SETTLE_MS);
    const each = (residentBytesOf(server.pid) - before) / count / KIBIBYTE;
    const idle = await idleShare(server, quick ? 500 : 2 * BEAT_MS);
    await client.stop();
    await server.stop();
    const name = `${count} idle ${side.sessions} with heart-beats`;
    return [
      limit(`${name}: memory each`, `${each.toFixed(1)} KiB`, '64 KiB', each / 64),
      limit(`${name}: CPU`, `${(idle * 100).toFixed(2)} %`, '3 %', idle / 0.03),
    ];
  } finally {
    await client.stop();
  }
}
