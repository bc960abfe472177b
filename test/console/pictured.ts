import type { Page } from 'playwright-core';
import type { OpenedConsole } from './opened.ts';

/** The data in pictures of the console: a small shop with a few problems. */

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

/** Inserts the order with this number. */
export async function insertOrder(opened: OpenedConsole, queue: string, number: number): Promise<void> {
  const order = {
    order: number,
    customer: { name: 'Ann Example', country: 'NO' },
    lines: [{ sku: `A-${number}`, amount: number % 10 }],
  };
  await opened.insert('jobs', queue, JSON.stringify(order), { 'x-ks-hdr-tenant': `tenant-${number % 3}` });
}

export async function fill(opened: OpenedConsole): Promise<void> {
  for (const [at, queue] of QUEUES.entries()) {
    for (let i = 0; i < 8 + at * 5; i += 1) await insertOrder(opened, queue, 1000 + i);
  }
  for (let i = 0; i < 9; i += 1) await opened.fail('jobs', 'mails', REASONS[i % REASONS.length] ?? '');
  await opened.request('POST', '/q/jobs/invoices/pause');
  await declare(opened, 'route-orders', 'incoming', ['orders', 'small']);
  await declare(opened, 'fan-out', 'small', ['archive', 'search', 'incoming']);
  for (let i = 0; i < 20; i += 1) await opened.insert('N', 'incoming', JSON.stringify({ amount: i * 10 }));
  await operate(opened, { action: 'copy', source: 'webhooks', to: 'archive' });
  await operate(opened, { action: 'delete', source: 'mails', dryRun: true });
  const taken = await opened.request('GET', '/q/jobs/orders?reserve=true&tid=worker-1');
  await taken.arrayBuffer();
}

async function operate(
  opened: OpenedConsole,
  {
    action,
    source,
    to,
    dryRun = false,
  }: { readonly action: string; readonly source: string; readonly to?: string; readonly dryRun?: boolean },
): Promise<void> {
  await opened.request('POST', '/operations', {
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      action,
      source: { ns: 'jobs', queue: source },
      ...(to !== undefined && { to: { ns: 'jobs', queue: to } }),
      dryRun,
    }),
  });
}

async function declare(
  opened: OpenedConsole,
  id: string,
  source: string,
  destinations: readonly string[],
): Promise<void> {
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

/** A page, and the selectors of what it has when it is completely loaded. */
export interface PicturedPage {
  readonly name: string;
  readonly where: string;
  readonly heading: string;
  readonly content: readonly string[];
}

/** The pages; that of an element shows one that exists. */
export async function pagesToShow(opened: OpenedConsole): Promise<readonly PicturedPage[]> {
  const reserved = await opened.request('GET', '/q/jobs/orders/elements?state=reserved&limit=1');
  const { elements } = (await reserved.json()) as { elements: { id: string }[] };
  const id = elements[0]?.id ?? '';
  const queue = '#/q/jobs/orders';
  const rows = 'tbody tr';
  const chart = '.plot svg';
  const rate = '.figure-card:has-text("inserted per second"):not(:has-text("–"))';
  return [
    { name: 'overview', where: '#/', heading: 'Overview', content: ['.alarms', '.concerns li', chart, rate] },
    { name: 'queues', where: '#/queues', heading: 'Queues', content: [rows] },
    { name: 'queue', where: queue, heading: 'orders', content: [rows, chart] },
    { name: 'element', where: `${queue}/e/${id}`, heading: id, content: ['.why-card', '.tree'] },
    { name: 'consumers', where: `${queue}/consumers`, heading: 'orders', content: ['.empty'] },
    { name: 'options', where: `${queue}/options`, heading: 'orders', content: [rows] },
    { name: 'waiting', where: '#/q/N/incoming/consumers', heading: 'incoming', content: [rows] },
    { name: 'try-it', where: `${queue}/try`, heading: 'orders', content: ['.snippet'] },
    { name: 'dead-letters', where: '#/dead-letters', heading: 'Dead letters', content: [rows] },
    { name: 'operations', where: '#/operations', heading: 'Operations', content: [rows] },
    { name: 'clients', where: '#/clients', heading: 'Clients', content: ['.empty'] },
    { name: 'users', where: '#/users', heading: 'Users', content: ['text=signIn'] },
    { name: 'exchanges', where: '#/exchanges', heading: 'Exchanges', content: [rows, '.graph .edge'] },
    { name: 'exchange', where: '#/x/route-orders', heading: 'route-orders', content: [rows] },
    {
      name: 'exchange-editor',
      where: '#/x/route-orders/edit',
      heading: 'route-orders',
      content: ['.cm-content'],
    },
    { name: 'not-there', where: '#/nowhere', heading: 'Page not found', content: ['a'] },
  ];
}

/** Opens a page, and waits until it is completely loaded. */
export async function show(
  opened: OpenedConsole,
  page: Page,
  { where, heading, content }: PicturedPage,
): Promise<void> {
  await page.goto(`${opened.server.url}/console/${where}`);
  await page.locator('#page h1', { hasText: heading }).waitFor();
  for (const one of content) await page.locator('#page').locator(one).first().waitFor();
  await page.locator('#page .loading').first().waitFor({ state: 'detached' });
}
