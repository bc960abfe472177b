import { setTimeout as delay } from 'node:timers/promises';
import { startWorld, worldSize } from '../console/world.ts';
import type { ConsoleClientsCount, ConsoleClientsRequest } from '../load/console-clients.ts';
import { type LoadResult, runLoad } from '../load/http-load.ts';
import { Helper } from '../process.ts';
import { grouped, interleave, median, type Scenario } from '../scenario.ts';
import { insertLoad, limit } from '../shared.ts';

const CONSOLES = 50;
const ALLOWED = 0.05;
/** The server follows changes for this long after the last console is closed. */
const LINGER_MS = 11_000;

/** How much 50 open consoles of a server with 10,000 queues reduce the rate of inserts. */
export const consoleCost: Scenario = {
  name: 'console-cost',
  async run(context) {
    const { quick, note } = context;
    const [rounds, seconds] = quick ? [1, 1] : [5, 20];
    const size = { ...worldSize(context), elements: 1_000 };
    await using server = await startWorld(context, size, { events: { total: 100, perUser: 100 } });
    const [clients] = await Helper.start(new URL('../load/console-clients.ts', import.meta.url), [
      JSON.stringify({ url: server.url }),
    ]);
    const ask = (request: ConsoleClientsRequest): Promise<ConsoleClientsCount> => clients.ask(request);
    const insert = (): Promise<LoadResult> => runLoad(insertLoad(server, 'inserted', seconds));
    try {
      if (!quick) await insert();
      const pairs = await interleave(
        rounds,
        async () => {
          await ask({ what: 'open', count: CONSOLES });
          const result = await insert();
          return { result, count: await ask({ what: 'close' }) };
        },
        async () => {
          await delay(quick ? 0 : LINGER_MS);
          return insert();
        },
      );
      for (const [{ result, count }, alone] of pairs) {
        note(
          `with ${CONSOLES} consoles ${text(result)}, which made ${count.requests} requests and were sent ${(count.eventBytes / 1e6).toFixed(1)} MB of events; without ${text(alone)}`,
        );
      }
      const lost = median(pairs.map(([{ result }, alone]) => 1 - result.perSecond / alone.perSecond));
      await server.stop();
      return [
        limit(
          `${CONSOLES} open consoles: what inserts lose`,
          `${(lost * 100).toFixed(1)} %`,
          `${ALLOWED * 100} %`,
          Math.max(0, lost) / ALLOWED,
        ),
      ];
    } finally {
      await clients.stop();
    }
  },
};

function text({ perSecond, cpu }: LoadResult): string {
  return `${grouped(perSecond)}/s (CPU of each: ${cpu.total.toFixed(1)} us, main thread ${cpu.mainThread.toFixed(1)} us)`;
}
