import { cpuTimeOf, Helper } from './process.ts';
import { type BenchContext, type Finding, grouped, interleave, median, type Target } from './scenario.ts';

// Rates of protocols with sessions, and of RabbitMQ with the same client: one process sends, then consumes.

/** Messages awaiting their answers, or elements awaiting their acknowledgements. */
const WINDOW = 256;

/** A request to a load client. */
export interface RateRequest {
  readonly what: 'send' | 'consume';
  readonly destination: string;
  readonly count: number;
  readonly window: number;
}

export interface RateAnswer {
  readonly count: number;
  readonly perSecond: number;
}

/** Two servers, with the names of the figures and their targets. */
export interface RateComparison {
  readonly own: Side;
  readonly other: Side;
  readonly send: { readonly what: string; readonly ratio: number };
  readonly consume: { readonly what: string; readonly ratio: number };
}

/** A server and the load client that uses it. */
export interface Side {
  readonly helper: Helper;
  readonly pid: number;
  readonly destination: string;
}

/** Starts a load client for a server, as a {@link Helper}. */
export async function startSide(
  program: URL,
  target: object,
  pid: number,
  destination: string,
): Promise<Side> {
  const [helper] = await Helper.start(program, [JSON.stringify(target)]);
  return { helper, pid, destination };
}

/** Each round sends and then consumes the same number, so that both queues start every round empty. */
export async function compareRates(
  context: BenchContext,
  { own, other, send, consume }: RateComparison,
): Promise<Finding[]> {
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
  return [finding(send.what, 'send', send.ratio), finding(consume.what, 'consume', consume.ratio)];
}

interface Rate {
  readonly perSecond: number;
  /** CPU time of the server per message, all threads, µs. */
  readonly cpu: number;
  /** CPU time of the client per message, µs. The client has one thread, so this bounds the rate that it can measure. */
  readonly clientCpu: number;
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
  const [server, client] = [cpuTimeOf(pid).total, cpuTimeOf(helper.pid).total];
  const request: RateRequest = { what, destination, count, window: WINDOW };
  const { perSecond } = await helper.ask<RateAnswer>(request);
  return {
    perSecond,
    cpu: (cpuTimeOf(pid).total - server) / count,
    clientCpu: (cpuTimeOf(helper.pid).total - client) / count,
  };
}

function middle(rates: readonly Rate[]): Rate {
  const middleOf = (read: (rate: Rate) => number): number => median(rates.map(read));
  return {
    perSecond: middleOf((rate) => rate.perSecond),
    cpu: middleOf((rate) => rate.cpu),
    clientCpu: middleOf((rate) => rate.clientCpu),
  };
}

function text({ perSecond, cpu, clientCpu }: Rate): string {
  return `${grouped(perSecond)}/s (CPU ${cpu.toFixed(0)} µs each, client ${clientCpu.toFixed(0)})`;
}
