import { startRedis } from '../../test/support/redis-servers.ts';
import { type WakeUpLoad, WakeUpPair } from '../load/wake-ups.ts';
import { Helper } from '../process.ts';
import { AUTHORIZATION, benchPath, createServer, ELEMENT } from '../quayside.ts';
import { interleave, median, percentile, type Scenario } from '../scenario.ts';

/**
 * A get waits on one node and an insert is sent to another, both on one Redis: the time from sending the insert to the
 * get's answer. The reference has two bare HTTP servers with a Redis publish between them, and stores nothing.
 */
export const wakeUpNodes: Scenario = {
  name: 'wake-up-nodes',
  async run(context) {
    const [samples, rounds] = context.quick ? [50, 1] : [500, 7];
    const database = await startRedis();
    await using waiting = await createServer(context, database.url);
    await using inserting = await createServer(context, database.url);
    await Promise.all([waiting.start(), inserting.start()]);
    const [relays, urls] = await startRelays(database.port);
    const load = { path: benchPath('wake-up'), authorization: AUTHORIZATION, body: ELEMENT };
    const own = await WakeUpPair.open({ ...load, waitingUrl: waiting.url, insertingUrl: inserting.url });
    const bare = await WakeUpPair.open({ ...load, ...urls });
    try {
      await own.run(samples);
      await bare.run(samples);
      const pairs = await interleave(
        rounds,
        () => own.run(samples),
        () => bare.run(samples),
      );
      for (const [mine, other] of pairs) {
        context.note(
          `woken ${summary(mine.wakes)} after the insert's answer, ${summary(mine.whole)} after it was sent; bare ${summary(other.whole)}`,
        );
      }
      const ours = pairs.map(([{ whole }]) => percentile(whole, 0.5));
      const theirs = pairs.map(([, { whole }]) => percentile(whole, 0.5));
      return [
        {
          what: 'insert on one node sent to waiting get on another answered, p50',
          figure: `${median(ours).toFixed(3)} ms`,
          reference: `${median(theirs).toFixed(3)} ms (Redis publish between bare servers)`,
          ratio: median(ours.map((mine, round) => mine / (theirs[round] ?? Number.NaN))),
          target: { kind: 'at most', ratio: 2 },
        },
      ];
    } finally {
      own.close();
      bare.close();
      await Promise.all([waiting.stop(), inserting.stop(), ...relays.map((relay) => relay.stop())]);
      await database.stop();
    }
  },
};

type Urls = Pick<WakeUpLoad, 'waitingUrl' | 'insertingUrl'>;

async function startRelays(redisPort: number): Promise<[Helper[], Urls]> {
  const program = new URL('../reference/relay.ts', import.meta.url);
  const start = (): Promise<[Helper, { port: number }]> => Helper.start(program, [String(redisPort)]);
  const [[first, waiting], [second, inserting]] = await Promise.all([start(), start()]);
  const urlOf = ({ port }: { port: number }): string => `http://127.0.0.1:${port}`;
  return [[first, second], { waitingUrl: urlOf(waiting), insertingUrl: urlOf(inserting) }];
}

function summary(samples: readonly number[]): string {
  return `p50 ${percentile(samples, 0.5).toFixed(3)} ms, p99 ${percentile(samples, 0.99).toFixed(3)} ms`;
}
