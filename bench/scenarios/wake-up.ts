import { setTimeout as delay } from 'node:timers/promises';
import { answeredAt, REST_MS, WakeUpPair } from '../load/wake-ups.ts';
import { WireConnection, wireRequest } from '../load/wire.ts';
import { AUTHORIZATION, benchPath, createServer, ELEMENT } from '../quayside.ts';
import { startInsertReference } from '../reference/reference.ts';
import { type Finding, interleave, median, percentile, type Scenario } from '../scenario.ts';

/**
 * One get waits for one insert: the time from the insert's answer to the get's answer, compared with the round trip of
 * a request to a bare server. A get that is answered before the insert counts as 0.
 */
export const wakeUp: Scenario = {
  name: 'wake-up',
  async run(context) {
    const [samples, rounds] = context.quick ? [50, 1] : [500, 7];
    await using server = await createServer(context);
    await using reference = await startInsertReference();
    await server.start();
    const pair = await WakeUpPair.open({
      waitingUrl: server.url,
      insertingUrl: server.url,
      path: benchPath('wake-up'),
      authorization: AUTHORIZATION,
      body: ELEMENT,
    });
    const bare = await WireConnection.open(reference.url);
    try {
      await pair.run(samples);
      await roundTrips(bare, samples);
      const pairs = await interleave(
        rounds,
        () => pair.run(samples),
        () => roundTrips(bare, samples),
      );
      for (const [{ wakes, whole }, trips] of pairs) {
        context.note(
          `woken ${summary(wakes)} after the insert's answer, ${summary(whole)} after it was sent; bare ${summary(trips)}`,
        );
      }
      return [0.5, 0.99].map((part) =>
        findingOf(
          part,
          pairs.map(([{ wakes }, trips]) => [wakes, trips]),
        ),
      );
    } finally {
      pair.close();
      bare.close();
      await server.stop();
    }
  },
};

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

function summary(samples: readonly number[]): string {
  return `p50 ${percentile(samples, 0.5).toFixed(3)} p99 ${percentile(samples, 0.99).toFixed(3)} ms`;
}
