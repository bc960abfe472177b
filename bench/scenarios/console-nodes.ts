import { startRedis } from '../../test/support/redis-servers.ts';
import { ConsoleBrowser, scroll } from '../console/browser.ts';
import { LOGIN } from '../console/world.ts';
import { createServer } from '../quayside.ts';
import type { Scenario } from '../scenario.ts';
import { limit } from '../shared.ts';
import { frameFindings } from './console.ts';

const NODES = 50;
/** More would compete for the processor and be late. */
const START_AT_ONCE = 2;
const CONTENT_MS = 1_000;

/**
 * The overview of 50 nodes: 50 real server processes on one Redis, because nodes cannot share SQLite. Only the console
 * uses them; they share the machine with the browser.
 */
export const consoleNodes: Scenario = {
  name: 'console-nodes',
  async run(context) {
    const { quick, note } = context;
    await import('../../scripts/console.ts');
    const database = await startRedis();
    await using nodes = new AsyncDisposableStack();
    const count = quick ? 3 : NODES;
    let browser: ConsoleBrowser | null = null;
    try {
      let url = '';
      for (let started = 0; started < count; started += START_AT_ONCE) {
        const some = Math.min(START_AT_ONCE, count - started);
        await Promise.all(
          Array.from({ length: some }, async () => {
            const node = nodes.use(await createServer(context, database.url));
            await node.start();
            url = node.url;
          }),
        );
      }
      browser = await ConsoleBrowser.open(url, LOGIN);
      const contents: number[] = [];
      const frames: number[] = [];
      const processor: number[] = [];
      // A node knows the others some seconds after their start.
      const lastNode = `section[aria-label="Nodes"] tbody tr:nth-child(${count})`;
      const known = await browser.tab();
      await browser.load(known, { name: 'overview', where: '#/', content: lastNode });
      await known.page.close();
      for (let round = 0; round < (quick ? 1 : 5); round += 1) {
        const tab = await browser.tab();
        contents.push(await browser.load(tab, { name: 'overview', where: '#/', content: lastNode }));
        const cost = await scroll(tab, quick ? 20 : 200);
        frames.push(...(cost?.frames ?? []));
        processor.push(...(cost?.processor ?? []));
        await tab.page.close();
      }
      const worst = Math.max(...contents);
      note(`content ${contents.map((ms) => ms.toFixed(0)).join(', ')} ms`);
      const findings = [
        limit(
          `overview of ${count} nodes: content`,
          `${worst.toFixed(0)} ms`,
          `${CONTENT_MS} ms`,
          worst / CONTENT_MS,
        ),
      ];
      if (frames.length > 0) findings.push(...frameFindings('overview', frames, processor));
      return findings;
    } finally {
      await browser?.close();
      await nodes.disposeAsync();
      await database.stop();
    }
  },
};
