import { ConsoleBrowser, type OpenTab } from '../console/browser.ts';
import { LOGIN, startWorld, worldSize } from '../console/world.ts';
import type { Scenario } from '../scenario.ts';
import { limit } from '../shared.ts';

const MEBIBYTE = 1_048_576;
/** Queues that change per update, twice a second: all 10,000 change every 100 s. */
const CHANGES = 50;
const MINUTES = 60;
/** Time after which everything is loaded and every queue has changed. */
const SETTLED_MINUTES = 10;
const ALLOWED_GROWTH = 0.1;

/** Records the events of the server, and replays updates through the page's own stream on request. */
const REPLAY = `
  const Real = EventSource;
  const queues = [];
  let source;
  window.EventSource = class extends Real {
    constructor(...of) {
      super(...of);
      source = this;
      this.addEventListener('queues', ({ data, isTrusted }) => {
        if (isTrusted) queues.push(...JSON.parse(data));
      });
    }
  };
  let next = 0;
  window.replay = (count) => {
    const changed = Array.from({ length: count }, () => {
      const one = queues[next % queues.length];
      next += 1;
      one.size = (one.size + 1 + next % 7) % 1000;
      one.totalSize = one.size;
      one.stats = { ...one.stats, put: one.stats.put + 5, get: one.stats.get + 4 };
      return one;
    });
    source.dispatchEvent(new MessageEvent('queues', { data: JSON.stringify(changed) }));
  };`;

/**
 * The memory of a tab during an hour of updates. The tab's clock is advanced, so that the hour takes a minute or two.
 */
export const consoleMemory: Scenario = {
  name: 'console-memory',
  async run(context) {
    const { quick, note } = context;
    const size = { ...worldSize(context), elements: 1_000 };
    await using server = await startWorld(context, size);
    const browser = await ConsoleBrowser.open(server.url, LOGIN);
    const minutes = quick ? 2 : MINUTES;
    const settled = quick ? 1 : SETTLED_MINUTES;
    try {
      const findings = [];
      for (const [name, where, content] of [
        ['overview', '#/', '.concerns li'],
        ['queues', '#/queues', '.table-frame tbody tr'],
      ] as const) {
        const tab = await browser.tab({ script: REPLAY });
        await tab.page.clock.install();
        await browser.load(tab, { name, where, content });
        await tab.page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
        let after = Number.NaN;
        for (let minute = 0; minute <= minutes; minute += 1) {
          if (minute % 10 === 0 || minute === settled) {
            const memory = await memoryOf(tab);
            note(
              `${name}, ${minute} min: heap ${(memory.heap / MEBIBYTE).toFixed(1)} MiB, ${memory.nodes} nodes, ${memory.listeners} listeners`,
            );
            if (minute === settled) after = memory.heap;
          }
          if (minute < minutes) await passMinute(tab);
        }
        const { heap } = await memoryOf(tab);
        const growth = heap / after - 1;
        findings.push(
          limit(
            `${name}: growth of the heap from minute ${settled} to minute ${minutes}`,
            `${(growth * 100).toFixed(1)} % of ${(after / MEBIBYTE).toFixed(1)} MiB`,
            `${ALLOWED_GROWTH * 100} %`,
            Math.max(0, growth) / ALLOWED_GROWTH,
          ),
        );
        await tab.page.close();
      }
      return findings;
    } finally {
      await browser.close();
      await server.stop();
    }
  },
};

async function passMinute({ page }: OpenTab): Promise<void> {
  for (let second = 0; second < 60; second += 1) {
    await page.evaluate(`replay(${CHANGES}); replay(${CHANGES});`);
    await page.clock.runFor(1_000);
  }
}

/** The memory in use after garbage collection. */
async function memoryOf({ devtools }: OpenTab): Promise<{ heap: number; nodes: number; listeners: number }> {
  // Objects held only by finalizers are removed by the second collection.
  for (let i = 0; i < 2; i += 1) await devtools.send('HeapProfiler.collectGarbage');
  const { usedSize } = await devtools.send('Runtime.getHeapUsage');
  const { nodes, jsEventListeners } = await devtools.send('Memory.getDOMCounters');
  return { heap: usedSize, nodes, listeners: jsEventListeners };
}
