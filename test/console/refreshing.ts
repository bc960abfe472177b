import assert from 'node:assert/strict';
import { it } from 'node:test';
import type { Page } from 'playwright-core';
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
      assert.equal(await charts.getByLabel(`${title}, as a table`).locator('tbody tr').count(), 10);
    }
    await page.goto(`${opened().server.url}/console/#/q/N/charted`);
    await page.getByRole('region', { name: 'The last 10 min' }).waitFor();
  });

  it('reads no more often than the chosen interval, and nothing while the tab is hidden', async () => {
    const page = await opened().page();
    await page.clock.install();
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Live' }).click();
    await page.getByRole('button', { name: 'Every minute', exact: true }).click();
    await page.getByRole('button', { name: 'Refresh: Every 60 s' }).waitFor();
    let reads = 0;
    page.on('request', (request) => {
      if (request.url().endsWith('/history')) reads += 1;
    });
    await page.clock.fastForward(50_000);
    assert.equal(reads, 0);
    const read = page.waitForRequest((request) => request.url().endsWith('/history'));
    await page.clock.fastForward(15_000);
    await read;
    await setHidden(page, true);
    await page.getByRole('button', { name: 'Refresh: Resting' }).waitFor();
    reads = 0;
    await page.clock.fastForward(120_000);
    assert.equal(reads, 0);
    await setHidden(page, false);
    await page.getByRole('button', { name: 'Refresh: Every 60 s' }).waitFor();
  });

  it('asks for what a page shows before it follows all queues', async () => {
    const page = await opened().page('#/queues');
    await page.locator('table.rows').waitFor();
    const asked: string[] = [];
    page.on('request', (request) => {
      const { pathname } = new URL(request.url());
      if (pathname === '/queues' || pathname === '/events') asked.push(pathname);
    });
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    assert.deepEqual(asked.slice(0, 2), ['/queues', '/events']);
  });

  it('shows all times in UTC if that is chosen, on a phone as well', async () => {
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

/** As the browser tells a page in a tab that is not shown. */
async function setHidden(page: Page, isHidden: boolean): Promise<void> {
  await page.evaluate(
    `Object.defineProperty(document, 'hidden', { configurable: true, get: () => ${isHidden} });
     document.dispatchEvent(new Event('visibilitychange'));`,
  );
}
