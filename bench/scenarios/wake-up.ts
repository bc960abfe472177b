import { setTimeout as delay } from 'node:timers/promises';
import { type WireAnswer, WireConnection, wireRequest } from '../load/wire.ts';
import { AUTHORIZATION, benchPath, createServer, ELEMENT } from '../quayside.ts';
import { startInsertReference } from '../reference/reference.ts';
import { type Finding, interleave, median, percentile, type Scenario } from '../scenario.ts';

/** A pause before every sample, in both measurements, so that each meets a server at rest. */
const REST_MS = 2;

/**
 * One get waits, one insert comes: from the insert's answer to the get's answer, against the round trip of a
 * request to a bare server. A get that is answered before the insert counts as 0.
 */
export const wakeUp: Scenario = {
  name: 'wake-up',
  async run(context) {
    const [samples, rounds] = context.quick ? [50, 1] : [500, 7];
    await using server = await createServer(context);
    await using reference = await startInsertReference();
    await server.start();
    const waiting = await WireConnection.open(server.url);
    const inserting = await WireConnection.open(server.url);
    const bare = await WireConnection.open(reference.url);
    try {
      await wakeUps(waiting, inserting, samples);
      await roundTrips(bare, samples);
      const pairs = await interleave(
        rounds,
        () => wakeUps(waiting, inserting, samples),
        () => roundTrips(bare, samples),
      );
      for (const [{ wakes, whole }, trips] of pairs) {
        context.note(
          `woken ${told(wakes)} after the insert's answer, ${told(whole)} after it was sent; bare ${told(trips)}`,
        );
      }
      return [0.5, 0.99].map((part) =>
        findingOf(
          part,
          pairs.map(([{ wakes }, trips]) => [wakes, trips]),
        ),
      );
    } finally {
      for (const connection of [waiting, inserting, bare]) connection.close();
      await server.stop();
    }
  },
};

interface WakeUps {
  /** Milliseconds from the insert's answer to the get's. */
  readonly wakes: number[];
  /** Milliseconds from sending the insert to the get's answer. */
  readonly whole: number[];
}

async function wakeUps(
  waiting: WireConnection,
  inserting: WireConnection,
  samples: number,
): Promise<WakeUps> {
  const get = wireRequest('GET', `${benchPath('wake-up')}?to=10000`, AUTHORIZATION);
  const put = wireRequest('PUT', benchPath('wake-up'), AUTHORIZATION, ELEMENT);
  const result: WakeUps = { wakes: [], whole: [] };
  for (let sample = 0; sample < samples; sample++) {
    const got = answeredAt(waiting, get);
    await delay(REST_MS);
    const sentAt = performance.now();
    const insertedAt = await answeredAt(inserting, put);
    const gotAt = await got;
    result.wakes.push(Math.max(0, gotAt - insertedAt));
    result.whole.push(gotAt - sentAt);
  }
  return result;
}

async function roundTrips(bare: WireConnection, samples: number): Promise<number[]> {
  const put = wireRequest('PUT', benchPath('wake-up'), AUTHORIZATION, ELEMENT);
  const trips: number[] = [];
  for (let sample = 0; sample < samples; sample++) {
    await delay(REST_MS);
    const sentAt = performance.now();
    trips.push((await answeredAt(bare, put)) - sentAt);
  }
  return trips;
}

/** The moment is taken in the callback: a promise would add its own turn of the loop. */
function answeredAt(connection: WireConnection, request: string): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const onAnswer = ({ status, head }: WireAnswer): void => {
    const now = performance.now();
    if (status === 200) resolve(now);
    else reject(new Error(`A request was answered with: ${head}`));
  };
  connection.send(request, onAnswer, reject);
  return promise;
}

function findingOf(part: number, rounds: readonly (readonly [number[], number[]])[]): Finding {
  const own = rounds.map(([wakes]) => percentile(wakes, part));
  const bare = rounds.map(([, trips]) => percentile(trips, part));
  return {
    what: `insert answered to waiting get answered, p${part * 100}`,
    figure: `${median(own).toFixed(3)} ms`,
    reference: `${median(bare).toFixed(3)} ms (bare request)`,
    ratio: median(own.map((wake, round) => wake / (bare[round] ?? Number.NaN))),
    target: { kind: 'at most', ratio: 2 },
  };
}

function told(samples: readonly number[]): string {
  return `p50 ${percentile(samples, 0.5).toFixed(3)} p99 ${percentile(samples, 0.99).toFixed(3)} ms`;
}
