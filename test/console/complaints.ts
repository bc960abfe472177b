import assert from 'node:assert/strict';
import { it } from 'node:test';
import type { OpenedConsole } from './opened.ts';

/**
 * Common complaints about the consoles of other queues, as far as no other test covers them;
 * docs/comparison-consoles.md lists them.
 */
export function complaints(opened: () => OpenedConsole): void {
  it('shows elements without taking them', async () => {
    await opened().insert('N', 'peeked', '{"order":1}');
    const page = await opened().samePage('#/q/N/peeked');
    await page.locator('table.rows tbody a').first().click();
    await page.getByText('Why is it not delivered now?').waitFor();
    const status = await opened().request('GET', '/q/N/peeked/status');
    const { size, stats } = (await status.json()) as { size: number; stats: Record<string, number> };
    assert.deepEqual([size, stats.get, stats.reserve, stats.rollback], [1, 0, 0, 0]);
    const taken = await opened().request('GET', '/q/N/peeked');
    assert.equal(taken.headers.get('x-ks-tries'), '0');
    assert.equal(await taken.text(), '{"order":1}');
  });

  it('keeps typed text and the focus while the page is refreshed', async () => {
    await opened().insert('N', 'typing', '1');
    const page = await opened().samePage('#/q/N/typing');
    await page.getByText('The only match').waitFor();
    const field = page.getByLabel('Search elements');
    await field.pressSequentially('half of a wo');
    await opened().insert('N', 'typing', '2');
    await page.getByRole('button', { name: '1 new: show' }).waitFor();
    await page.keyboard.type('rd');
    assert.equal(await field.inputValue(), 'half of a word');
  });

  it('acts on all matching elements, however many there are', async () => {
    await opened().request('POST', '/q/N/thousand/elements', {
      headers: { 'content-type': 'application/x-ndjson' },
      body: '{"text":"x"}\n'.repeat(1_000),
    });
    const page = await opened().samePage('#/q/N/thousand');
    await page.getByRole('button', { name: 'Delete …' }).click();
    await page.getByRole('button', { name: 'Delete 1,000 elements of thousand' }).click();
    await page.getByText('1,000 elements of thousand deleted').waitFor();
    assert.equal(await opened().size('N', 'thousand'), 0);
  });

  it('says that a page of a list is empty now, and offers the first page', async () => {
    await opened().insert('N', 'only-one', '1');
    const page = await opened().page('#/queues?filter=only-one&page=7');
    await page.getByText('Page 7 is empty now').waitFor();
    await page.getByRole('button', { name: 'Show the first page' }).click();
    await page.getByRole('link', { name: 'only-one' }).waitFor();
  });

  it('fits into windows of 1024 and 390 pixels', async () => {
    for (const width of [1024, 390]) {
      const page = await opened().page('#/queues', { width });
      for (const [where, heading] of [
        ['#/queues', 'Queues'],
        ['#/q/jobs/orders', 'orders'],
      ] as const) {
        await page.goto(`${opened().server.url}/console/${where}`);
        // Until then the rows are those of the previous page.
        await page.getByRole('heading', { name: heading, exact: true, level: 1 }).waitFor();
        await page.locator('table.rows tbody a').first().waitFor();
        const isWider = '({ scrollWidth, clientWidth }) => scrollWidth > clientWidth';
        const wider = await page.evaluate(
          `[...document.querySelectorAll('html, .table-frame, .facts dd, table.rows th')].filter(${isWider}).map(({ outerHTML }) => outerHTML.slice(0, 80))`,
        );
        assert.deepEqual(wider, [], `${where} at ${width} px`);
      }
    }
  });

  it('selects lines to be copied if the browser offers no clipboard, as without TLS', async () => {
    const page = await opened().page('#/q/jobs/orders/try');
    await page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })");
    await page.getByRole('button', { name: 'Copy' }).first().click();
    await page.getByText('The lines are selected').waitFor();
    assert.match(String(await page.evaluate('getSelection().toString()')), /^curl -u 'admin' -X PUT/);
  });

  it('shows all times of a page in one time zone', async () => {
    const page = await opened().page('#/q/jobs/orders');
    const exact = page.locator('#page time[title]');
    await exact.first().waitFor();
    const zones = async (): Promise<ReadonlySet<string>> => {
      const titles = await exact.evaluateAll((all) =>
        all.map((one) => (one as unknown as { title: string }).title),
      );
      return new Set(titles.map((title) => title.slice('2026-01-01 00:00:00.000 '.length)));
    };
    assert.equal((await zones()).size, 1);
    await page.getByRole('button', { name: 'Appearance and time' }).click();
    await page.getByRole('button', { name: 'UTC' }).click();
    await page.locator('#page time[title$=" UTC"]').first().waitFor();
    assert.deepEqual([...(await zones())], ['UTC']);
  });
}
