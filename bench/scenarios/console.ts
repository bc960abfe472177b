import { ConsoleBrowser, type MeasuredPage, scroll } from '../console/browser.ts';
import { DEAD, LARGEST, LOGIN, queueName, startWorld, whileBusy, worldSize } from '../console/world.ts';
import { NAMESPACE } from '../quayside.ts';
import { type BenchContext, type Finding, median, percentile, type Scenario } from '../scenario.ts';
import { limit } from '../shared.ts';

const QUEUE = `#/q/${NAMESPACE}/${LARGEST}`;
const ROW = '.table-frame tbody tr';
const PLAIN_ROW = 'table.plain tbody tr';

const PAGES: readonly MeasuredPage[] = [
  { name: 'overview', where: '#/', content: '.concerns li' },
  { name: 'queues', where: '#/queues', content: ROW },
  { name: 'queues by depth', where: '#/queues?sort=-depth', content: ROW },
  { name: 'queues, filtered', where: '#/queues?filter=queue-001+ready:%3E1', content: ROW },
  { name: 'queue', where: QUEUE, content: ROW },
  { name: 'queue, searched', where: `${QUEUE}?search=env.msg.payload.order+%3E+3`, content: ROW },
  { name: 'dead letters', where: '#/dead-letters', content: PLAIN_ROW },
  { name: 'queue of dead letters', where: `#/q/${NAMESPACE}/${DEAD}`, content: ROW },
  { name: 'exchanges', where: '#/exchanges', content: PLAIN_ROW },
  { name: 'exchange', where: '#/x/route-001', content: PLAIN_ROW },
  { name: 'exchange editor', where: '#/x/route-001/edit', content: 'form' },
  { name: 'operations', where: '#/operations', content: '.empty' },
  { name: 'clients', where: '#/clients', content: '.empty' },
  { name: 'users', where: '#/users', content: PLAIN_ROW },
  { name: 'try it', where: `#/q/${NAMESPACE}/${queueName(7)}/try`, content: '.snippet' },
];

const CONTENT_MS = 1_000;
const FRAME_MS = 16;
const FIRST_LOAD_BYTES = 40 * 1024;
const SCRIPT_MS = 400;
const SLOWDOWN = 4;

/**
 * The console in Chromium with a server that has 10,000 queues, a million elements in one of them, and 200 exchanges.
 */
export const consolePages: Scenario = {
  name: 'console',
  async run(context) {
    await using server = await startWorld(context, worldSize(context));
    const browser = await ConsoleBrowser.open(server.url, LOGIN);
    try {
      const findings = [await firstLoad(browser), await scriptTime(context, browser)];
      await whileBusy(server, async () => {
        for (const page of PAGES) findings.push(...(await measure(context, browser, page)));
      });
      return findings;
    } finally {
      await browser.close();
      await server.stop();
    }
  },
};

/** Measures time to content and scrolling, loading the console in a new tab each time. */
async function measure(
  { quick, note }: BenchContext,
  browser: ConsoleBrowser,
  page: MeasuredPage,
): Promise<Finding[]> {
  const contents: number[] = [];
  const frames: number[] = [];
  const processor: number[] = [];
  for (let round = 0; round < (quick ? 1 : 5); round += 1) {
    const tab = await browser.tab();
    contents.push(await browser.load(tab, page));
    const cost = await scroll(tab, quick ? 20 : 200);
    frames.push(...(cost?.frames ?? []));
    processor.push(...(cost?.processor ?? []));
    await tab.page.close();
  }
  note(`${page.name}: content ${contents.map((ms) => ms.toFixed(0)).join(', ')} ms`);
  const worst = Math.max(...contents);
  const content = limit(
    `${page.name}: content, worst of ${contents.length}`,
    `${worst.toFixed(0)} ms`,
    `${CONTENT_MS} ms`,
    worst / CONTENT_MS,
  );
  if (frames.length === 0) return [content];
  note(
    `${page.name}: ${spread('frames of scrolling', frames)}; ${spread('their processor time', processor)}`,
  );
  return [content, ...frameFindings(page.name, frames, processor)];
}

function spread(what: string, values: readonly number[]): string {
  const at = (part: number): string => percentile(values, part).toFixed(1);
  return `${values.length} ${what}: median ${median(values).toFixed(1)}, 95th percentile ${at(0.95)}, 99th ${at(0.99)}, worst ${Math.max(...values).toFixed(1)} ms`;
}

/** The length of a frame, and the page's own processor time in it: on a busy machine they differ. */
export function frameFindings(
  name: string,
  frames: readonly number[],
  processor: readonly number[],
): Finding[] {
  const finding = (what: string, ms: number): Finding =>
    limit(`${name}: frame, ${what}`, `${ms.toFixed(1)} ms`, `${FRAME_MS} ms`, ms / FRAME_MS);
  return [
    finding('95th percentile', percentile(frames, 0.95)),
    finding('worst', Math.max(...frames)),
    finding('95th percentile of its processor time', percentile(processor, 0.95)),
    finding('worst of its processor time', Math.max(...processor)),
  ];
}

const OVERVIEW: MeasuredPage = { name: 'overview', where: '#/', content: '.figures' };

async function firstLoad(browser: ConsoleBrowser): Promise<Finding> {
  const tab = await browser.tab();
  await browser.load(tab, OVERVIEW);
  const bytes = Number(
    await tab.page.evaluate(
      `performance.getEntriesByType('navigation')[0].encodedBodySize + performance.getEntriesByType('resource')
        .filter(({ name }) => name.includes('/console/assets/')).reduce((sum, { encodedBodySize }) => sum + encodedBodySize, 0)`,
    ),
  );
  await tab.page.close();
  const figure = `${(bytes / 1024).toFixed(1)} KiB`;
  return limit('first load of the overview, gzip', figure, '40 KiB', bytes / FIRST_LOAD_BYTES);
}

/** Processor time of the console's script from the navigation until the overview is shown. */
async function scriptTime({ quick, note }: BenchContext, browser: ConsoleBrowser): Promise<Finding> {
  const taken: number[] = [];
  for (let round = 0; round < (quick ? 1 : 5); round += 1) {
    const tab = await browser.tab({ slowdown: SLOWDOWN });
    const content = await browser.load(tab, OVERVIEW);
    const { metrics } = await tab.devtools.send('Performance.getMetrics');
    const seconds = (name: string): number => metrics.find((one) => one.name === name)?.value ?? Number.NaN;
    const ms = seconds('ScriptDuration') * 1000;
    taken.push(ms);
    note(
      `overview, ${SLOWDOWN}x slower: script ${ms.toFixed(0)} ms, layout and style ${((seconds('LayoutDuration') + seconds('RecalcStyleDuration')) * 1000).toFixed(0)} ms, content after ${content.toFixed(0)} ms`,
    );
    await tab.page.close();
  }
  const ms = median(taken);
  return limit(
    `script until the overview shows, processor ${SLOWDOWN}x slower`,
    `${ms.toFixed(0)} ms`,
    `${SCRIPT_MS} ms`,
    ms / SCRIPT_MS,
  );
}
