import type { ServerProcess } from '../../test/support/server-process.ts';
import type { StompAnswer, StompRequest, StompTarget } from '../load/stomp-client.ts';
import { cpuTimeOf, Helper } from '../process.ts';
import { createServer, NAMESPACE } from '../quayside.ts';
import { RabbitServer } from '../reference/rabbitmq.ts';
import {
  type BenchContext,
  type Finding,
  grouped,
  interleave,
  median,
  type Scenario,
  type Target,
} from '../scenario.ts';

/** SENDs without their receipts, and elements without their ACKs, at once. */
const WINDOW = 256;
const CLIENT = new URL('../load/stomp-client.ts', import.meta.url);

/**
 * STOMP on the embedded engine, one connection, against RabbitMQ's STOMP plugin with a durable queue and the same
 * client: persistent SENDs with a receipt each; `client-individual` with an ACK each. Window 256.
 */
export const stomp: Scenario = {
  name: 'stomp',
  async run(context) {
    const rabbit = await RabbitServer.start(context.note);
    try {
      return await measure(context, rabbit);
    } finally {
      await rabbit.stop();
    }
  },
};

async function measure(context: BenchContext, rabbit: RabbitServer): Promise<Finding[]> {
  await using server = await createServer(context, undefined, { stomp: { port: 0 } });
  await server.start();
  const own = await start(
    { port: stompPortOf(server), login: 'test1', passcode: 'test1' },
    server.pid,
    `/queue/${NAMESPACE}/bench`,
  );
  const other = await start(
    { port: rabbit.stompPort, login: rabbit.user, passcode: rabbit.password },
    rabbit.pid,
    '/queue/bench',
  );
  try {
    const findings = await compare(context, own, other);
    await server.stop();
    return findings;
  } finally {
    for (const { helper } of [own, other]) await helper.stop();
  }
}

/** A server, a client in front of it, and where both meet. */
interface Side {
  readonly helper: Helper;
  readonly pid: number;
  readonly destination: string;
}

async function start(target: StompTarget, pid: number, destination: string): Promise<Side> {
  const [helper] = await Helper.start(CLIENT, [JSON.stringify(target)]);
  return { helper, pid, destination };
}

/** Each round sends and then consumes what it sent, so that both queues are as short at each start. */
async function compare(context: BenchContext, own: Side, other: Side): Promise<Finding[]> {
  const [count, rounds] = context.quick ? [2_000, 1] : [50_000, 7];
  if (!context.quick) for (const side of [own, other]) await round(side, count / 2);
  const pairs = await interleave(
    rounds,
    () => round(own, count),
    () => round(other, count),
  );
  const finding = (what: string, kind: keyof Round, ratio: number): Finding => {
    for (const [mine, theirs] of pairs) {
      const share = (mine[kind].perSecond / theirs[kind].perSecond).toFixed(2);
      context.note(`${what}: ${text(mine[kind])}; RabbitMQ ${text(theirs[kind])}; ratio ${share}`);
    }
    const target: Target = { kind: 'at least', ratio };
    return {
      what,
      figure: text(middle(pairs.map(([mine]) => mine[kind]))),
      reference: `${text(middle(pairs.map(([, theirs]) => theirs[kind])))} (RabbitMQ)`,
      ratio: median(pairs.map(([mine, theirs]) => mine[kind].perSecond / theirs[kind].perSecond)),
      target,
    };
  };
  return [
    finding('SEND, persistent, a receipt each, window 256', 'send', 3),
    finding('client-individual, an ACK each, window 256', 'consume', 2),
  ];
}

interface Rate {
  readonly perSecond: number;
  /** The server's CPU time for each, all threads, microseconds. */
  readonly cpu: number;
}

interface Round {
  readonly send: Rate;
  readonly consume: Rate;
}

async function round(side: Side, count: number): Promise<Round> {
  return { send: await timed(side, 'send', count), consume: await timed(side, 'consume', count) };
}

async function timed(
  { helper, pid, destination }: Side,
  what: 'send' | 'consume',
  count: number,
): Promise<Rate> {
  const before = cpuTimeOf(pid).total;
  const request: StompRequest = { what, destination, count, window: WINDOW };
  const { perSecond } = await helper.ask<StompAnswer>(request);
  return { perSecond, cpu: (cpuTimeOf(pid).total - before) / count };
}

function middle(rates: readonly Rate[]): Rate {
  return { perSecond: median(rates.map((rate) => rate.perSecond)), cpu: median(rates.map(({ cpu }) => cpu)) };
}

function text({ perSecond, cpu }: Rate): string {
  return `${grouped(perSecond)}/s (CPU ${cpu.toFixed(0)} µs each)`;
}

/** Where the server listens for STOMP, as it says itself. */
export function stompPortOf({ output }: ServerProcess): number {
  const port = / stomp:\/\/127\.0\.0\.1:(\d+)/.exec(output)?.[1];
  if (port === undefined) throw new Error(`The server does not say where STOMP is.\n${output}`);
  return Number(port);
}
