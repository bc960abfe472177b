import assert from 'node:assert/strict';
import { it } from 'node:test';
import type { Locator, Request } from 'playwright-core';
import { until } from '../support/until.ts';
import { MASKED, type OpenedConsole } from './opened.ts';

/**
 * Replaces the text of an editor. If the editor redraws itself during that, it restores its selection and the new text
 * is added to the old: then it is filled again.
 */
export async function fillEditor(editor: Locator, text: string): Promise<void> {
  await until(async () => {
    await editor.fill(text);
    return (await editor.innerText()) === text;
  });
}

/** The pages of exchanges: their editor, the preview of a change, and cycles. */
export function exchangePages(opened: () => OpenedConsole): void {
  it('marks the line of a syntax error in a selector while it is typed', async () => {
    const page = await opened().samePage('#/x-new');
    const editor = page.getByLabel('Selector of destination 1');
    await editor.click();
    // Keys that open other pages outside of a text field.
    await page.keyboard.type('gq/?');
    assert.match(page.url(), /#\/x-new$/);
    const marked = page.locator('.cm-problem-line');
    await marked.filter({ hasText: 'gq/?' }).waitFor();
    await fillEditor(editor, 'env =>\n  env.msg.payload.amount >');
    await page.getByText('Line 2, column 27: The selector ends too soon.', { exact: true }).waitFor();
    await marked.filter({ hasText: /env\.msg\.payload\.amount >$/ }).waitFor();
    await fillEditor(editor, 'env => env.msg.payload.tenant === "acme"');
    await page.getByText('Empty: every element is accepted').waitFor();
    await marked.waitFor({ state: 'detached' });
    const colours = (): Promise<number> =>
      page.locator('.cm-line span').evaluateAll((all) => {
        const browser = globalThis as unknown as { getComputedStyle: (of: unknown) => { color: string } };
        return new Set(all.map((one) => browser.getComputedStyle(one).color)).size;
      });
    // The editor parses a long text when the browser is idle.
    await until(async () => (await colours()) >= 2);
  });

  it('shows which elements a changed exchange sends elsewhere before the change is saved', async () => {
    await declare('by-size', 'sized', [
      { queue: 'sized-big', selector: 'env => env.msg.payload.amount > 100' },
    ]);
    await opened().request('POST', '/x/by-size/stop');
    for (const amount of [5, 50, 500]) await opened().insert('N', 'sized', JSON.stringify({ amount }));
    const page = await opened().samePage('#/x/by-size/edit');
    const editor = page.getByLabel('Selector of destination 1');
    await fillEditor(editor, 'env => env.msg.payload.amount >');
    await page.getByRole('button', { name: 'Save the change …' }).click();
    const alert = page.getByRole('alert');
    await alert.waitFor();
    assert.match(
      await alert.innerText(),
      /dst\[0\]\.selector, line 1, column 32: The selector ends too soon\.$/,
    );
    await page.locator('.cm-problem-line').waitFor();
    await fillEditor(editor, 'env => env.msg.payload.amount > 10');
    await page.getByRole('button', { name: 'Save the change …' }).click();
    const dialog = page.getByRole('dialog', { name: 'Change by-size' });
    await dialog.getByText('1 would go elsewhere, and 2 would go as before').waitFor();
    const cells = dialog.getByLabel('Elements that would go differently').locator('tbody tr').first();
    assert.deepEqual((await cells.locator('td').allInnerTexts()).slice(1), [
      '__no_route__',
      'sized-big of N',
      'goes elsewhere',
    ]);
    await dialog.getByRole('button', { name: 'Save the change of by-size' }).click();
    // The editor shows the selector before it is stored, the table of destinations afterwards.
    await page.getByLabel('Destinations').getByText('env => env.msg.payload.amount > 10').waitFor();
    await opened().request('DELETE', '/x/by-size');
  });

  it('shows that a restart restores an exchange of the configuration file after it is changed or deleted', async () => {
    await declare('in-file', 'filed', [{ queue: 'filed-on' }]);
    const page = await opened().page('#/x/in-file/edit');
    const note = 'the configuration file declares this exchange; a restart restores that declaration';
    await page.route('**/x/in-file', async (route) => {
      if (route.request().method() === 'GET') return route.continue();
      const response = await route.fetch();
      return route.fulfill({ response, headers: { ...response.headers(), 'x-ks-note': note } });
    });
    await fillEditor(page.getByLabel('Selector of destination 1'), 'env => true');
    await page.getByRole('button', { name: 'Save the change …' }).click();
    await page.getByRole('button', { name: 'Save the change of in-file' }).click();
    await page.getByText(`The change of in-file is stored. Note: ${note}.`).waitFor();
    await page.getByRole('button', { name: 'Delete …' }).click();
    await page.getByRole('button', { name: 'Delete the exchange in-file' }).click();
    await page.getByText(`in-file is deleted. Note: ${note}.`).waitFor();
  });

  it('says how selectors saw an element that no destination accepted, and what they wrote in a dry run', async () => {
    const selector =
      'env => { console.log("amount", env.msg.payload.amount); return env.msg.payload.amount > 100 }';
    await declare('unseen', 'unseen-in', [{ queue: 'unseen-out', selector }]);
    const form = { 'content-type': 'application/x-www-form-urlencoded' };
    await opened().insert('N', 'unseen-in', '{"amount":500}', form);
    const page = await opened().samePage('#/x/unseen');
    await page.getByText('saw its payload as bytes (application/x-www-form-urlencoded)').waitFor();
    await opened().request('POST', '/x/unseen/stop');
    await opened().insert('N', 'unseen-in', '{"amount":500}');
    await page.goto(`${opened().server.url}/console/#/x/unseen/edit`);
    await page.getByRole('button', { name: 'Dry run' }).click();
    const row = page.getByLabel('Dry run', { exact: true }).locator('tr');
    await row.getByText('seen as JSON (application/json)').waitFor();
    await row.getByText('amount 500').waitFor();
    await opened().request('DELETE', '/x/unseen');
    for (const queue of ['unseen-in', '__no_route__'])
      await opened().request('DELETE', `/q/N/${queue}?force=1`);
  });

  it('changes the number of loops and the window of an exchange, and back to the defaults', async () => {
    await declare('wider', 'wider-in', [{ queue: 'wider-out' }]);
    const page = await opened().samePage('#/x/wider');
    for (const [loops, window, shown] of [
      ['2', '10', '2 loops, window 10:'],
      ['', '', '1 loop, window 1,000:'],
    ] as const) {
      await page.getByRole('link', { name: 'Edit' }).click();
      await page.getByLabel('Loops').fill(loops);
      await page.getByLabel('Window').fill(window);
      await page.getByRole('button', { name: 'Save the change …' }).click();
      await page.getByRole('button', { name: 'Save the change of wider', disabled: false }).click();
      await page.getByText(shown).waitFor();
    }
    await opened().request('DELETE', '/x/wider');
  });

  it('says at which line a selector threw in a dry run, once', async () => {
    await declare('throwing', 'thrown', [{ queue: 'thrown-to', selector: 'env => env.missing.member' }]);
    await opened().request('POST', '/x/throwing/stop');
    await opened().insert('N', 'thrown', '1');
    const page = await opened().samePage('#/x/throwing/edit');
    await page.getByRole('button', { name: 'Dry run' }).click();
    const status = page.getByRole('status').filter({ hasText: /^Line 1/ });
    await status.waitFor();
    assert.match(
      await status.innerText(),
      /^Line 1, column \d+: TypeError: [^()]*'member'[^()]* \(element [^ ]+\)$/,
    );
    await opened().request('DELETE', '/x/throwing');
    await opened().request('DELETE', '/q/N/thrown?force=1');
  });

  it('says what to do if an exchange was changed while it was edited', async () => {
    await declare('contested', 'contested-in', [{ queue: 'contested-out' }]);
    const page = await opened().page('#/x/contested/edit');
    await fillEditor(page.getByLabel('Selector of destination 1'), 'env => true');
    await opened().request('DELETE', '/x/contested');
    await page.getByRole('button', { name: 'Save the change …' }).click();
    await page.getByRole('button', { name: 'Save the change of contested' }).click();
    await page.getByRole('alert').getByText('It was changed or deleted after this page read it.').waitFor();
  });

  it('offers nothing on the page of an exchange that has been deleted elsewhere', async () => {
    await declare('vanishing', 'vanishing-in', [{ queue: 'vanishing-out' }]);
    const page = await opened().page('#/x/vanishing', { isFailing: true, isAlone: true });
    await page.clock.install();
    await page.reload();
    const stop = page.getByRole('button', { name: 'Stop' });
    await stop.waitFor();
    await opened().request('DELETE', '/x/vanishing');
    await until(async () => {
      await page.clock.fastForward(5_000);
      return (await stop.count()) === 0;
    });
    await page.getByRole('alert').waitFor();
    assert.equal(await page.getByText('Running').count(), 0);
  });

  it('ends the comparison of a change with its dialog', async () => {
    await declare('compared', 'compared-in', [{ queue: 'compared-out' }]);
    await opened().request('POST', '/x/compared/stop');
    for (const body of ['1', '2', '3']) await opened().insert('N', 'compared-in', body);
    const page = await opened().page('#/x/compared/edit');
    const { promise: mayAnswer, resolve: answer } = Promise.withResolvers<void>();
    const tests: Request[] = [];
    await page.route('**/x/compared/test', async (route) => {
      tests.push(route.request());
      await mayAnswer;
      await route.continue();
    });
    await fillEditor(page.getByLabel('Selector of destination 1'), 'env => true');
    await page.getByRole('button', { name: 'Save the change …' }).click();
    await until(() => tests.length === 1);
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();
    // The browser reports some requests as aborted whose response the page has read to its end.
    const isSecond = (request: Request): boolean => request === tests[1];
    const second = Promise.race([
      page.waitForEvent('requestfinished', isSecond),
      page.waitForEvent('requestfailed', isSecond),
    ]);
    answer();
    await second;
    // A request that follows would be sent before the response to this one arrives.
    await page.evaluate("fetch('../livez').then((response) => response.text())");
    assert.equal(tests.length, 2);
    await opened().request('DELETE', '/x/compared');
    await opened().request('DELETE', '/q/N/compared-in?force=1');
  });

  it('shows no number of elements forwarded of which the server does not tell the user', async () => {
    await declare('partly', 'partly-in', [{ queue: 'partly-out' }, { ns: 'jobs', queue: 'partly-hidden' }]);
    const page = await opened().page('#/exchanges?filter=partly', { who: MASKED });
    const row = page.getByLabel('Exchanges', { exact: true }).locator('tbody tr');
    assert.match(await row.locator('.destinations').innerText(), /^partly-out N –\s+hidden from you$/);
    await row.getByRole('link', { name: 'partly', exact: true }).click();
    const destinations = page.getByLabel('Destinations').locator('tbody tr');
    await destinations.last().waitFor();
    assert.deepEqual((await destinations.last().locator('td').allInnerTexts()).slice(2), ['–', '–', '–']);
    await opened().request('DELETE', '/x/partly');
  });

  it('offers a new destination in a namespace in which the user may write', async () => {
    const page = await opened().page('#/users');
    await page.route('**/console/session', async (route) => {
      const response = await route.fetch();
      const rights = { N: ['exchange'], events: ['read', 'exchange'], jobs: ['write'] };
      await route.fulfill({ response, json: { ...((await response.json()) as object), rights } });
    });
    await page.goto(`${opened().server.url}/console/#/x-new`);
    await page.reload();
    assert.equal(await page.getByLabel('From namespace').inputValue(), 'events');
    // The fields of several destinations have the same names.
    const destination = page.getByRole('region', { name: 'Destination 1' });
    assert.equal(await destination.getByLabel('To namespace').inputValue(), 'jobs');
  });

  it('shows in the graph how many elements a queue has, and whether it is paused', async () => {
    await declare('counted', 'counted-in', [{ queue: 'counted-out' }]);
    await opened().request('POST', '/q/N/counted-in/pause');
    for (const body of ['1', '2', '3']) await opened().insert('N', 'counted-in', body);
    const graph = (await opened().page('#/exchanges')).getByLabel('Graph of queues and exchanges');
    await graph.getByRole('link', { name: /^counted-in\s*N · paused · 3$/ }).waitFor();
    const masked = await opened().page('#/exchanges', { who: MASKED });
    const hidden = masked
      .getByLabel('Graph of queues and exchanges')
      .getByRole('link', { name: /^counted-in/ });
    await hidden.waitFor();
    assert.match(await hidden.innerHTML(), />N</, 'no number that this user may not see');
    await opened().request('DELETE', '/x/counted');
    await opened().request('DELETE', '/q/N/counted-in?force=1');
  });

  it('names the stopped exchange as the reason why its source is not consumed', async () => {
    await declare('halted', 'halted-in', [{ queue: 'halted-out' }]);
    await opened().request('POST', '/x/halted/stop');
    await opened().insert('N', 'halted-in', '1');
    const page = await opened().samePage('#/');
    const concern = page.getByRole('listitem').filter({ hasText: 'halted-in' });
    await concern.getByText('its exchange is stopped').waitFor();
    await concern.getByRole('link', { name: 'halted', exact: true }).click();
    await page.getByRole('heading', { name: 'halted Stopped' }).waitFor();
    await opened().request('DELETE', '/x/halted');
    await opened().request('DELETE', '/q/N/halted-in?force=1');
  });

  it('filters exchanges in table and graph by name, queue, namespace and state, and keeps the filter in the address', async () => {
    await declare('mailing', 'letters', [{ queue: 'outgoing-mail' }]);
    await opened().request('POST', '/x/mailing/stop');
    const page = await opened().samePage('#/exchanges');
    const table = page.getByLabel('Exchanges', { exact: true });
    const drawn = page.locator('.graph rect.exchange');
    await table.getByText('Stopped').waitFor();
    for (const filter of ['MAIL', 'n letters', 'stopped']) {
      await page.getByLabel('Filter exchanges').fill(filter);
      await until(() => new URLSearchParams(page.url().split('?')[1]).get('filter') === filter);
      await page
        .getByRole('status')
        .getByText(/^1 of \d+ exchanges$/)
        .waitFor();
      await until(async () => (await drawn.count()) === 1);
      assert.equal(await table.locator('tbody tr').count(), 1);
    }
    await page.reload();
    await page
      .getByRole('status')
      .getByText(/^1 of \d+ exchanges$/)
      .waitFor();
    await page.getByLabel('Filter exchanges').fill('stopped nowhere');
    await page.getByRole('button', { name: 'Show all exchanges' }).click();
    await drawn.nth(1).waitFor();
    await opened().request('DELETE', '/x/mailing');
  });

  it('lists exchanges without their graph if the file that draws it is missing', async () => {
    const page = await opened().page('#/queues', { isFailing: true, isAlone: true });
    await page.route('**/assets/graph-*.js', (route) => route.fulfill({ status: 404 }));
    await page.getByRole('link', { name: 'Exchanges' }).click();
    await page.getByRole('link', { name: 'route', exact: true }).waitFor();
    await page.getByLabel('Graph of queues and exchanges').waitFor({ state: 'detached' });
  });

  it('marks exchanges that form a cycle, in words as well as in the graph', async () => {
    await declare('ring-a', 'ring-1', [{ queue: 'ring-2' }]);
    await declare('ring-b', 'ring-2', [{ queue: 'ring-1' }, { queue: 'ring-out' }]);
    const page = await opened().samePage('#/exchanges');
    await page.getByLabel('Cycles').getByText('ring-1 → ring-a → ring-2 → ring-b → ring-1').waitFor();
    const rows = page.getByLabel('Exchanges', { exact: true }).locator('tbody tr');
    await rows.filter({ hasText: 'ring-b' }).getByText('In a cycle').waitFor();
    assert.equal(await rows.filter({ hasText: 'route' }).getByText('In a cycle').count(), 0);
    await page.locator('.edge.in-cycle').nth(3).waitFor({ state: 'attached' });
    assert.equal(await page.locator('.edge.in-cycle').count(), 4);
    for (const id of ['ring-a', 'ring-b']) await opened().request('DELETE', `/x/${id}`);
  });

  it('lists a chain of thousands of exchanges, and marks the cycle at its end', async () => {
    const stats = { dst: [{ matched: 0 }], no_route: 0, put_back: 0 };
    const exchanges = Array.from({ length: 8_000 }, (_, i) => {
      const dst = [{ ns: 'N', q: `link-${Math.min(i + 1, 7_999)}` }];
      return { id: `chained-${i}`, src: { ns: 'N', q: `link-${i}` }, dst, stats, lastError: null };
    });
    const page = await opened().page('#/users');
    const body = `event: start\ndata: {"full":true}\n\nevent: exchanges\ndata: ${JSON.stringify(exchanges)}\n\nevent: complete\ndata: {}\n\n`;
    await page.route('**/events?*', (route) => route.fulfill({ body, contentType: 'text/event-stream' }));
    await page.goto(`${opened().server.url}/console/#/exchanges?filter=chained-7999`);
    await page.reload();
    const cycle = 'link-7999 → chained-7999 → link-7999';
    await page.getByLabel('Cycles').getByText(cycle).waitFor();
    await page.getByLabel('Exchanges', { exact: true }).getByText('In a cycle').waitFor();
  });

  it('marks cycles as soon as the server has sent the file that finds them', async () => {
    await declare('late-ring', 'late-ring-1', [{ queue: 'late-ring-1' }]);
    const page = await opened().page('#/users', { isFailing: true, isAlone: true });
    const file = '**/assets/graph-*.js';
    await page.route(file, (route) => route.abort());
    await page.getByRole('link', { name: 'Exchanges' }).click();
    await page.getByRole('link', { name: 'late-ring', exact: true }).waitFor();
    await page.unroute(file);
    await page.context().setOffline(true);
    await page.context().setOffline(false);
    await page.getByLabel('Cycles').getByText('late-ring-1 → late-ring → late-ring-1').waitFor();
    await opened().request('DELETE', '/x/late-ring');
  });

  async function declare(
    id: string,
    source: string,
    destinations: readonly { readonly ns?: string; readonly queue: string; readonly selector?: string }[],
  ): Promise<void> {
    await opened().request('PUT', `/x/${id}`, {
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        src: { ns: 'N', queue: source },
        dst: destinations.map((one) => ({ ns: 'N', ...one })),
        consumer: { reserve: true },
      }),
    });
  }
}
