import { mkdir } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { OpenedConsole } from './opened.ts';

/** Pictures of every page in both themes at three widths, to be looked at. `npm run console:screens` writes them to `dist/screens`. */

const FOLDER = fileURLToPath(new URL('../../dist/screens/', import.meta.url));
const SIZES = [
  [1440, 900],
  [1024, 768],
  [390, 844],
] as const;
const THEMES = ['light', 'dark'] as const;
const QUEUES = [
  'orders',
  'invoices',
  'mails',
  'thumbnails',
  'webhooks',
  'search-index',
  'push-notifications',
];
const REASONS = ['smtp 550: mailbox unavailable', 'time-out', 'cannot be parsed'];

const opened = await OpenedConsole.open();
try {
  await fill();
  const pages = await addresses();
  await mkdir(FOLDER, { recursive: true });
  for (const theme of THEMES) {
    for (const [width, height] of SIZES) {
      const page = await opened.page('#/', { theme, width, height });
      for (const [name, where] of pages) {
        await page.goto(`${opened.server.url}/console/${where}`);
        await page.locator('#page h1').waitFor();
        await page.waitForLoadState('networkidle').catch(() => {});
        await page.screenshot({ path: `${FOLDER}${name}-${width}-${theme}.png` });
      }
      await opened.check();
    }
  }
  process.stdout.write(`Pictures of ${pages.length} pages are in ${FOLDER}\n`);
} finally {
  await opened.close();
}

async function fill(): Promise<void> {
  for (const [at, queue] of QUEUES.entries()) {
    for (let i = 0; i < 8 + at * 5; i += 1) {
      const order = {
        order: 1000 + i,
        customer: { name: 'Ann Example', country: 'NO' },
        lines: [{ sku: `A-${i}`, amount: i }],
      };
      await opened.insert('jobs', queue, JSON.stringify(order), { 'x-ks-hdr-tenant': `tenant-${i % 3}` });
    }
  }
  for (let i = 0; i < 9; i += 1) await opened.fail('jobs', 'mails', REASONS[i % REASONS.length] ?? '');
  await opened.request('POST', '/q/jobs/invoices/pause');
  await declare('route-orders', 'incoming', ['orders', 'small']);
  await declare('fan-out', 'small', ['archive', 'search', 'incoming']);
  for (let i = 0; i < 20; i += 1) await opened.insert('N', 'incoming', JSON.stringify({ amount: i * 10 }));
  const taken = await opened.request('GET', '/q/jobs/orders?reserve=true&tid=worker-1');
  await taken.arrayBuffer();
}

async function declare(id: string, source: string, destinations: readonly string[]): Promise<void> {
  const dst = destinations.map((queue, i) => ({
    ns: 'N',
    queue,
    selector: `env => env.msg.payload.amount % 3 === ${i}`,
  }));
  await opened.request('PUT', `/x/${id}`, {
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ src: { ns: 'N', queue: source }, dst, consumer: { reserve: true } }),
  });
}

/** Names and addresses, with elements that exist. */
async function addresses(): Promise<readonly (readonly [string, string])[]> {
  const reserved = await opened.request('GET', '/q/jobs/orders/elements?state=reserved&limit=1');
  const { elements } = (await reserved.json()) as { elements: { id: string }[] };
  return [
    ['overview', '#/'],
    ['queues', '#/queues'],
    ['queue', '#/q/jobs/orders'],
    ['element', `#/q/jobs/orders/e/${elements[0]?.id}`],
    ['consumers', '#/q/jobs/orders/consumers'],
    ['try-it', '#/q/jobs/orders/try'],
    ['dead-letters', '#/dead-letters'],
    ['operations', '#/operations'],
    ['clients', '#/clients'],
    ['exchanges', '#/exchanges'],
    ['exchange', '#/x/route-orders'],
    ['exchange-editor', '#/x/route-orders/edit'],
    ['not-there', '#/nowhere'],
  ];
}
