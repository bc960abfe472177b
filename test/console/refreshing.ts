import assert from 'node:assert/strict';
import { it } from 'node:test';
import type { Locator, Page } from 'playwright-core';
import { until } from '../support/until.ts';
import type { OpenedConsole } from './opened.ts';

/** How often pages read again, and how they show time. */
export function refreshing(opened: () => OpenedConsole): void {
  it('shows one time range in all charts, and remembers it', async () => {
    await opened().insert('N', 'charted', '1');
    const page = await opened().page();
    await page.getByLabel('Time range of the charts').selectOption('The last 10 min');
    const charts = page.getByRole('region', { name: 'The last 10 min' });
    for (const title of ['In and out', 'Depth']) {
      await charts.getByRole('button', { name: `${title} as a table` }).click();
      const minutes = charts.getByLabel(`${title}, as a table`).locator('tbody tr');
      await minutes.first().waitFor();
      assert.equal(await minutes.count(), 10);
    }
    await page.goto(`${opened().server.url}/console/#/q/N/charted`);
    await page.getByRole('region', { name: 'The last 10 min' }).waitFor();
  });

  it('reads no more often than the chosen interval, and nothing while the tab is hidden', async () => {
    const page = await opened().page('#/', { isAlone: true });
    await page.clock.install();
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    // From here on time passes only as the test says, however long the machine takes.
    await stopTime(page);
    await page.getByRole('button', { name: 'Refresh: Live' }).click();
    await page.getByRole('button', { name: 'Every minute', exact: true }).click();
    await page.getByRole('button', { name: 'Refresh: Every 60 s' }).waitFor();
    let reads = 0;
    page.on('request', (request) => {
      if (request.url().endsWith('/history')) reads += 1;
    });
    await page.clock.fastForward(50_000);
    assert.equal(reads, 0);
    // A page that is still reading skips this read, but not the next one.
    await until(async () => {
      await page.clock.fastForward(15_000);
      return reads > 0;
    });
    await setHidden(page, true);
    await page.getByRole('button', { name: 'Refresh: Resting' }).waitFor();
    reads = 0;
    await page.clock.fastForward(120_000);
    assert.equal(reads, 0);
    await setHidden(page, false);
    await page.getByRole('button', { name: 'Refresh: Every 60 s' }).waitFor();
  });

  it('requests the data of a page before it connects to the events of all queues', async () => {
    const page = await opened().page('#/queues');
    // The page connects to the events after it has shown the queues.
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    const asked: string[] = [];
    page.on('request', (request) => {
      // The page before the reload may still sort its rows again.
      if (request.isNavigationRequest()) asked.length = 0;
      const { pathname } = new URL(request.url());
      if (pathname === '/queues' || pathname === '/events') asked.push(pathname);
    });
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    assert.deepEqual(asked.slice(0, 2), ['/queues', '/events']);
  });

  it('does not count elements that arrived while the tab was hidden as a rate', async () => {
    await opened().insert('N', 'resting', '1');
    const page = await opened().page();
    const figure = (name: string): Locator =>
      page.getByRole('link', { name: new RegExp(`^${name} `) }).locator('.value');
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    // `In 0.5 inserted per second`
    const rate = page.getByRole('link', { name: /^In (?!0 )/ });
    let ready = 1;
    do {
      // An element that is inserted before the server first reads the queue is part of the picture, and not of a rate.
      ready += 1;
      await opened().insert('N', 'resting', String(ready));
    } while (
      !(await rate.waitFor({ timeout: 5_000 }).then(
        () => true,
        () => false,
      ))
    );
    await setHidden(page, true);
    await page.getByRole('button', { name: 'Refresh: Resting' }).waitFor();
    const other = await opened().page('#/q/N/resting');
    const lines = Array.from({ length: 3_000 }, (_, i) => JSON.stringify({ text: String(i) })).join('\n');
    await opened().request('POST', '/q/N/resting/elements', {
      body: lines,
      headers: { 'content-type': 'application/x-ndjson' },
    });
    await other.getByRole('link', { name: `Ready 3,00${ready}` }).waitFor();
    await setHidden(page, false);
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    assert.match(await figure('Ready').innerText(), /^3,|K$/);
    await figure('In').filter({ hasText: /^0$/ }).waitFor();
    await opened().request('DELETE', '/q/N/resting?force=1');
  });

  it('calls a queue not consumed only after it has watched the queue', async () => {
    const tenMinutesAgo = Math.floor(Date.now() / 1000) - 600;
    await opened().request('PUT', `/q/N/consumed?mature=${tenMinutesAgo}`, { body: '1' });
    const page = await opened().page('#/users', { isAlone: true });
    await page.clock.install();
    await stopTime(page);
    await page.goto(`${opened().server.url}/console/#/`);
    await page.reload();
    const concern = page.getByRole('listitem').filter({ hasText: 'consumed' });
    const totals = page.getByRole('region', { name: 'Totals' });
    await until(async () => {
      // The page renders in frames.
      await page.clock.runFor(20);
      return (await concern.count()) > 0;
    });
    assert.match(await concern.innerText(), /Oldest ready for 10 min; whether elements are taken is being/);
    for (const name of ['In', 'Out'])
      assert.match(await totals.getByRole('link', { name: new RegExp(`^${name} `) }).innerText(), /–/);
    await page.clock.fastForward(20_000);
    await concern.getByText('Not consumed: oldest ready for 10 min').waitFor();
    assert.match(await totals.getByRole('link', { name: /^Out / }).innerText(), /0/);
    await opened().request('DELETE', '/q/N/consumed?force=1');
  });

  it('shows ages by the clock of the server', async () => {
    await opened().insert('N', 'clocks', '1');
    const page = await opened().page('#/q/N/clocks');
    for (const hours of [3, -3]) {
      await page.addInitScript(`{ const real = Date.now; Date.now = () => real() + ${hours * 3_600_000}; }`);
      await page.reload();
      const moment = page.locator('table.rows time').first();
      assert.match(await moment.innerText(), /^now$|^in 1 s$|^\d+ (s|min.*) ago$/);
      await page.addInitScript(`{ const real = Date.now; Date.now = () => real() - ${hours * 3_600_000}; }`);
    }
  });

  it('shows ages as of the last response while refreshing is paused', async () => {
    await opened().insert('N', 'aging', '1');
    const page = await opened().page('#/operations');
    await page.evaluate(`localStorage.setItem('quayside.refresh', '"paused"')`);
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Paused' }).waitFor();
    const date = new Date(Date.now() + 3_600_000).toUTCString();
    await page.route('**/q/N/aging/**', async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, headers: { ...response.headers(), date } });
    });
    await page.goto(`${opened().server.url}/console/#/q/N/aging`);
    await page
      .locator('table.rows time')
      .getByText(/^(59 min|1 h)/)
      .waitFor();
  });

  it('shows all times in UTC if that is chosen, in a narrow window as well', async () => {
    await opened().insert('N', 'zoned', '1');
    const page = await opened().page('#/q/N/zoned', { width: 390 });
    const moment = page.locator('table.rows time').first();
    assert.match((await moment.getAttribute('title')) ?? '', / [+−]\d\d:\d\d$/);
    await page.getByRole('button', { name: 'Appearance and time' }).click();
    await page.getByRole('button', { name: 'UTC' }).click();
    await page.locator('table.rows time[title$=" UTC"]').first().waitFor();
    const overflow = await page.evaluate('document.documentElement.scrollWidth - innerWidth');
    assert.ok(Number(overflow) <= 0, `the page is ${overflow} px too wide`);
  });
}

/**
 * From here on the time of a page with a clock of the test passes only as the test says, however long the machine
 * takes.
 * @returns the time of the page
 */
export async function stopTime(page: Page): Promise<number> {
  let at = 0;
  // Time passes until it is stopped: on a busy machine it may be past the moment at which it was to stop.
  for (let aheadMs = 1_000; ; aheadMs *= 2) {
    at = Number(await page.evaluate('Date.now()')) + aheadMs;
    try {
      await page.clock.pauseAt(at);
      return at;
    } catch (error) {
      if (!String(error).includes('to the past')) throw error;
    }
  }
}

/** Tells the page that its tab is hidden or shown, as the browser does. */
export async function setHidden(page: Page, isHidden: boolean): Promise<void> {
  await page.evaluate(
    `Object.defineProperty(document, 'hidden', { configurable: true, get: () => ${isHidden} });
     document.dispatchEvent(new Event('visibilitychange'));`,
  );
}
