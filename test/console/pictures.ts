import { mkdir, writeFile } from 'node:fs/promises';
import { setInterval, setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { OpenedConsole } from './opened.ts';
import { fill, insertOrder, pagesToShow, show } from './pictured.ts';

/**
 * The pictures of README and docs/console.md: `npm run console:pictures` writes them to `docs/images`, to be committed.
 * Charts show the hour before: `-- --minutes 60` first inserts and takes elements for an hour, so that they are not empty.
 */

const FOLDER = fileURLToPath(new URL('../../docs/images/', import.meta.url));
/** Each page, its theme, and its width and height in pixels. */
const PICTURES = [
  // The charts are below the queues that need attention.
  ['overview', 'light', 1200, 900],
  ['queue', 'light', 1200, 760],
  ['element', 'dark', 1200, 760],
  // The graph is not cut off.
  ['exchanges', 'dark', 1360, 760],
] as const;
const QUALITY = 72;
const MAX_BYTES = 60 * 1024;
/** How many elements of each queue are inserted and taken a second, on average. */
const LOAD = [
  ['orders', 4],
  ['mails', 3],
  ['thumbnails', 6],
  ['webhooks', 2],
] as const;

const { values } = parseArgs({ options: { minutes: { type: 'string', default: '0' } } });
const opened = await OpenedConsole.open();
const minutes = Number(values.minutes);
const workday = new AbortController();
try {
  const working = minutes === 0 ? null : work(workday.signal);
  await setTimeout(minutes * 60_000);
  await fill(opened);
  const pages = await pagesToShow(opened);
  await mkdir(FOLDER, { recursive: true });
  for (const [name, theme, width, height] of PICTURES) {
    const pictured = pages.find((one) => one.name === name);
    if (pictured === undefined) throw new Error(`There is no page ${name}.`);
    const page = await opened.page('#/', { theme, width, height });
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    await show(opened, page, pictured);
    const devtools = await page.context().newCDPSession(page);
    const { data } = await devtools.send('Page.captureScreenshot', { format: 'webp', quality: QUALITY });
    // The overview shows the present rates; lists of the other pages would offer what is new.
    workday.abort();
    await working;
    const bytes = Buffer.from(data, 'base64');
    if (bytes.length > MAX_BYTES)
      throw new Error(`The picture of ${name} has ${bytes.length} bytes. Allowed: ${MAX_BYTES}.`);
    await writeFile(`${FOLDER}console-${name}.webp`, bytes);
    process.stdout.write(`docs/images/console-${name}.webp: ${bytes.length} bytes\n`);
  }
  await opened.check();
} finally {
  await opened.close();
}

/**
 * Producers whose rate rises and falls, and workers that take a little more than the average: queues grow and shrink.
 * Ends when `signal` is aborted.
 */
async function work(signal: AbortSignal): Promise<void> {
  const depths = new Map<string, number>();
  let second = 0;
  for await (const _ of setInterval(1000)) {
    if (signal.aborted) return;
    second += 1;
    for (const [at, [queue, rate]] of LOAD.entries()) {
      const wave = Math.sin(second / (150 + 60 * at)) + Math.sin(second / (40 + 15 * at)) / 2;
      const inserted = Math.max(0, Math.round(rate * (1 + wave / 2 + Math.random() / 2)));
      const taken = Math.min(depths.get(queue) ?? 0, Math.round(rate * 1.3));
      depths.set(queue, (depths.get(queue) ?? 0) + inserted - taken);
      for (let i = 0; i < inserted; i += 1) await insertOrder(opened, queue, second * 10 + i);
      for (let i = 0; i < taken; i += 1) {
        const response = await opened.request('GET', `/q/jobs/${queue}?to=5000`);
        await response.arrayBuffer();
      }
    }
  }
}
