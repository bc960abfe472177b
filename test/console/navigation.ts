import assert from 'node:assert/strict';
import { it } from 'node:test';
import { until } from '../support/until.ts';
import { MASKED, type OpenedConsole, READER, WRITER } from './opened.ts';
import { stopTime } from './refreshing.ts';

/** Navigation between pages, and what pages show to users with few rights. */
export function navigation(opened: () => OpenedConsole): void {
  it('names each page in the title of the tab, as shown in the browser history', async () => {
    await opened().insert('N', 'titled', '1');
    const page = await opened().page('#/queues');
    const isTitle = (text: string): Promise<void> => until(async () => (await page.title()).startsWith(text));
    await isTitle('Queues · Quayside · 127.0.0.1:');
    await page.goto(`${opened().server.url}/console/#/q/N/titled`);
    await isTitle('titled · N · Quayside');
    await page.getByRole('link', { name: 'Consumers' }).click();
    await isTitle('consumers · titled · N · Quayside');
    await page.goBack();
    await isTitle('titled · N · Quayside');
    await page.goto(`${opened().server.url}/console/#/x/route`);
    await isTitle('route · Quayside');
    await page.goto(`${opened().server.url}/console/#/nowhere`);
    await isTitle('Page not found · Quayside');
  });

  it('opens a page at its top, with the focus in it', async () => {
    const page = await opened().page('#/', { height: 400 });
    const link = page.getByRole('region', { name: 'Namespaces' }).getByRole('link', { name: 'jobs' });
    // It is far enough down when the charts above it are drawn.
    await until(async () => {
      await link.scrollIntoViewIfNeeded();
      return Number(await page.evaluate('scrollY')) > 0;
    });
    await link.press('Enter');
    await page.locator('table.rows tbody a').first().waitFor();
    assert.equal(await page.evaluate('scrollY'), 0);
    assert.equal(await page.evaluate('document.activeElement.id'), 'page');
  });

  it('filters queues by a namespace whose name has a space and quotes', async () => {
    const page = await opened().page('#/users', { isFailing: true });
    await page.goto(`${opened().server.url}/console/#/q/${encodeURIComponent('say "hi" \\')}/q`);
    await page.getByRole('navigation', { name: 'Breadcrumbs' }).getByRole('link').nth(1).click();
    const field = page.getByLabel('Filter queues');
    await field.waitFor();
    assert.equal(await field.inputValue(), 'ns:"say \\"hi\\" \\\\"');
  });

  it('handles a key that is pressed as soon as a page is shown', async () => {
    const page = await opened().page('#/dead-letters', { isAlone: true });
    await page.clock.install();
    // No frame is drawn and no timer runs in which the page could register its keys later.
    await stopTime(page);
    await page.reload();
    await page.locator('#page h1').waitFor();
    await page.keyboard.press('/');
    await page.getByLabel('Find a queue').and(page.locator(':focus')).waitFor();
  });

  it('says that a page of a queue does not exist', async () => {
    const page = await opened().page('#/q/jobs/orders/nonsense');
    await page.getByRole('heading', { name: 'Page not found' }).waitFor();
  });

  it('says that a queue does not exist, and that a namespace does not', async () => {
    const page = await opened().samePage('#/q/N/never-inserted');
    await page.getByText('There is no queue never-inserted now').waitFor();
    await opened().request('PUT', '/q/N/never-inserted?delay=900', { body: '1' });
    await page.goto(`${opened().server.url}/console/#/q/N/never-inserted?state=ready`);
    await page.getByText('No element is ready').waitFor();
    await page.goto(`${opened().server.url}/console/#/q/nowhere/never-inserted`);
    await page.getByText('There is no namespace nowhere, or you may not see it').waitFor();
    await opened().request('DELETE', '/q/N/never-inserted?force=1');
  });

  it('handles keys in a check box, where nobody types', async () => {
    const page = await opened().samePage('#/q/jobs/orders');
    await page.getByRole('checkbox', { name: 'Select all that are listed' }).check();
    await page.keyboard.press('/');
    await page.getByLabel('Search elements').and(page.locator(':focus')).waitFor();
  });

  it('shows pages whose address is the name of a member of all objects', async () => {
    const page = await opened().page('#/constructor');
    await page.getByRole('heading', { name: 'Page not found' }).waitFor();
    await page.goto(`${opened().server.url}/console/#/q/constructor/toString`);
    await page.getByRole('heading', { name: 'toString' }).waitFor();
    await page.getByText('There is no namespace constructor').waitFor();
  });

  it('shows how to insert a first element, with a namespace and an address that work', async () => {
    const nothing = { queues: [], matched: 0, total: 0, unavailable: [] };
    const sums = { size: 0, schedSize: 0, resvSize: 0, totalSize: 0 };
    const page = await opened().page('#/users');
    await page.route('**/queues?*', (route) => route.fulfill({ json: { ...nothing, sums } }));
    await page.getByRole('link', { name: /^Queues/ }).click();
    await page.getByText('There are no queues yet').waitFor();
    const line = await page.locator('.empty code').innerText();
    assert.equal(line, `curl -u 'admin' -d hello '${opened().server.url}/q/N/first'`);
    await page.getByRole('link', { name: 'Insert the first element' }).click();
    await page.getByRole('button', { name: 'Insert' }).waitFor();
  });

  it('tells users without the right manage that waiting consumers are hidden, and offers them nothing to select', async () => {
    const page = await opened().page('#/clients', { who: READER });
    await page.getByText('Only users who manage queues see who is waiting').waitFor();
    await page.getByText('No client that you may see is connected').waitFor();
    await page.goto(`${opened().server.url}/console/#/queues`);
    await page.locator('table.rows tbody a').first().waitFor();
    assert.equal(await page.getByRole('checkbox').count(), 0);
  });

  it('shows the number of alarms inside its place in the navigation', async () => {
    await opened().insert('jobs', 'alarming', '1');
    await opened().fail('jobs', 'alarming', 'broken');
    await opened().request('PUT', '/q/N/alarming/options', {
      body: JSON.stringify({ deadLetter: { maxTries: 1, queue: 'alarmed' } }),
    });
    await opened().insert('N', 'alarming', '1');
    await opened().fail('N', 'alarming', 'broken');
    const page = await opened().page();
    const link = page.getByRole('link', { name: 'Overview 2 alarms' });
    const place = await link.boundingBox();
    const badge = await link.locator('.badge').boundingBox();
    assert.ok(place !== null && badge !== null);
    assert.ok(badge.x + badge.width <= place.x + place.width, JSON.stringify({ place, badge }));
    await opened().request('DELETE', '/q/N/alarmed?force=1');
    await opened().request('DELETE', '/q/N/alarming?force=1');
  });

  it('shows all spaces of a name, and the namespace of a long name in a narrow window', async () => {
    const spaced = ' two  spaces';
    const long = 'long'.repeat(60);
    for (const queue of [spaced, long]) {
      await opened().insert('N', queue, '1');
      await opened().request('POST', `/q/N/${encodeURIComponent(queue)}/pause`);
    }
    const page = await opened().page('#/', { width: 360 });
    const rows = page.locator('.concerns li');
    const namespace = rows.filter({ hasText: long }).locator('.name .muted');
    await namespace.waitFor();
    assert.ok(await namespace.evaluate((one) => one.clientWidth > 0 && one.scrollWidth <= one.clientWidth));
    const link = rows.getByRole('link', { name: 'two spaces' });
    assert.equal(await link.innerText(), spaced);
    await link.click();
    const heading = page.getByRole('heading', { name: 'two spaces' }).locator('bdi');
    assert.equal(await heading.innerText(), spaced);
    for (const queue of [spaced, long]) {
      await opened().request('DELETE', `/q/N/${encodeURIComponent(queue)}?force=1`);
    }
  });

  it('keeps the focus in a table whose focused row is scrolled out of sight', async () => {
    await opened().request('POST', '/q/N/scrolled/elements', {
      headers: { 'content-type': 'application/x-ndjson' },
      body: '{"text":"x"}\n'.repeat(90),
    });
    const page = await opened().samePage('#/q/N/scrolled');
    const first = page.locator('table.rows tbody a').first();
    const scrolledBy = (): Promise<number> =>
      page.getByLabel('Elements of scrolled').evaluate((table) => table.scrollTop);
    await first.focus();
    await page.keyboard.press('End');
    await until(async () => (await scrolledBy()) > 90 * 20);
    assert.equal(await first.evaluate((one) => one.matches(':focus')), true);
    await page.keyboard.press('Home');
    await until(async () => (await scrolledBy()) === 0);
  });

  it('keeps the focus in a table whose focused row is removed by someone else', async () => {
    for (const queue of ['row-of-a', 'row-of-b']) await opened().insert('N', queue, '1');
    const page = await opened().page('#/queues?filter=row-of-');
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    const rows = page.locator('table.rows tbody');
    await rows.getByRole('link', { name: 'row-of-b' }).waitFor();
    await rows.getByRole('link', { name: 'row-of-a' }).focus();
    await opened().request('DELETE', '/q/N/row-of-a?force=1');
    await rows.locator('a:focus', { hasText: 'row-of-b' }).waitFor();
    await opened().request('DELETE', '/q/N/row-of-b?force=1');
  });

  it('shows no number before it is known', async () => {
    const page = await opened().page('#/users');
    await page.route(/\/events\?|\/orders\/status$/, () => {});
    await page.goto(`${opened().server.url}/console/#/q/jobs/orders`);
    await page.reload();
    await page.getByText('Rolled back').waitFor();
    assert.deepEqual(new Set(await page.locator('.facts dd').allInnerTexts()), new Set(['–']));
    await page.getByRole('link', { name: 'Queues', exact: true }).first().waitFor();
  });

  it('shows the namespace of a short name completely', async () => {
    await opened().insert('events', 'sent', '1');
    await opened().request('POST', '/q/events/sent/pause');
    const page = await opened().page();
    const namespace = page.locator('.concerns li').filter({ hasText: 'sent' }).locator('.name .muted');
    await namespace.waitFor();
    assert.ok(await namespace.evaluate((one) => one.scrollWidth <= one.clientWidth));
    await opened().request('DELETE', '/q/events/sent?force=1');
  });

  it('shows the button that skips the navigation when it has the focus', async () => {
    const page = await opened().page('#/operations');
    await page.evaluate('document.activeElement.blur()');
    await page.keyboard.press('Tab');
    const skip = page.getByRole('button', { name: 'Skip to the page' });
    await skip.click({ trial: true });
    assert.deepEqual(await page.evaluate('[scrollY, document.activeElement.textContent]'), [
      0,
      'Skip to the page',
    ]);
    await page.keyboard.press('Enter');
    assert.equal(await page.evaluate('document.activeElement.id'), 'page');
  });

  it('shows the colors of a legend, and which tab is open, with forced colors, too', async () => {
    const page = await opened().page('#/q/jobs/orders');
    await page.emulateMedia({ forcedColors: 'active' });
    await page.locator('.swatch').first().waitFor();
    const color = await page.evaluate("getComputedStyle(document.querySelector('.swatch')).backgroundColor");
    assert.equal(color, 'rgb(11, 108, 176)');
    const tabs = await page.evaluate(
      'new Set([...document.querySelectorAll(\'[aria-label="Of this queue"] a\')].map((one) => getComputedStyle(one).backgroundColor)).size',
    );
    assert.equal(tabs, 2, 'the present tab has another color');
  });

  it('shows the example of an empty selector in another color than text, with forced colors, too', async () => {
    const page = await opened().page('#/x-new');
    await page.emulateMedia({ forcedColors: 'active' });
    const colorOf = (selector: string): Promise<string> =>
      page
        .locator(selector)
        .evaluate(
          (one) =>
            (
              globalThis as unknown as { getComputedStyle: (of: unknown) => { color: string } }
            ).getComputedStyle(one).color,
        );
    assert.notEqual(await colorOf('.cm-placeholder'), await colorOf('.cm-content'));
  });

  it('prints the page alone, with the rows of its table, in light colors', async () => {
    const page = await opened().page('#/q/jobs/orders', { theme: 'dark' });
    await page.getByText('that match').waitFor();
    await page.emulateMedia({ media: 'print' });
    assert.equal(await page.locator('button:visible, nav[aria-label=Pages]:visible').count(), 0);
    const tops = await page
      .locator('table.rows tbody tr')
      .evaluateAll((all) => all.map((one) => one.getBoundingClientRect().top));
    assert.equal(new Set(tops).size, 12);
    assert.equal(await page.evaluate('getComputedStyle(document.body).color'), 'rgb(22, 32, 43)');
  });

  it('names the missing right instead of showing that there is nothing', async () => {
    const page = await opened().page('#/operations', { who: READER });
    await page.getByText('Only users who manage queues see operations').waitFor();
    const other = await opened().page('#/', { who: MASKED });
    const concerns = other.locator('.card', { hasText: 'Needs attention' });
    await concerns.getByText('You may not see queues').waitFor();
    const figures = other.getByRole('region', { name: 'Totals' }).locator('.value');
    assert.deepEqual((await figures.allTextContents()).toSpliced(5, 1), ['–', '–', '–', '–', '–', '–']);
    const row = other.getByRole('region', { name: 'Namespaces' }).locator('tbody tr').first();
    assert.deepEqual(await row.locator('.number').allTextContents(), ['–', '–', '–', '–']);
    await other.getByRole('link', { name: 'Queues', exact: true }).waitFor();
    for (const [where, title] of [
      ['queues', 'You may not see queues'],
      ['q/N/incoming/options', 'You may not see the options'],
    ] as const) {
      await other.goto(`${opened().server.url}/console/#/${where}`);
      await other.getByText(title).waitFor();
      await other.getByText('You need the right read').waitFor();
    }
    await other.goto(`${opened().server.url}/console/#/x-new`);
    await other.getByText('You need the right exchange').waitFor();
    await other.getByRole('heading', { name: 'New exchange', level: 1 }).waitFor();
    await other.goto(`${opened().server.url}/console/#/x/route/edit`);
    await other.getByText('You may not change this exchange').waitFor();
    const third = await opened().page('#/', { who: WRITER });
    const deadLetters = third
      .getByRole('region', { name: 'Totals' })
      .getByRole('link', { name: /^Dead letters/ });
    assert.equal(await deadLetters.locator('.value').innerText(), '–');
    await deadLetters.click();
    await third.getByText('You may not see dead letters').waitFor();
    await third.getByText('You need the right browse').waitFor();
  });

  it('shows no engine as healthy before its state is known', async () => {
    const page = await opened().page('#/users');
    await page.route('**/engines', () => {});
    await page.getByRole('link', { name: 'Overview' }).click();
    await page.getByRole('region', { name: 'Namespaces' }).getByRole('link', { name: 'jobs' }).waitFor();
    assert.equal(await page.getByText('Healthy').count(), 0);
  });

  it('sets the focus to the first field of a form', async () => {
    const page = await opened().samePage('#/q/jobs/orders');
    await page.getByRole('button', { name: 'Insert' }).click();
    const body = page.getByRole('dialog').getByLabel('Body');
    await body.waitFor();
    assert.equal(await body.evaluate((one) => one.matches(':focus')), true);
  });

  it('discards the changes if the editor of an exchange is cancelled', async () => {
    const page = await opened().samePage('#/x/route/edit');
    await page.getByLabel('From queue').fill('elsewhere');
    await page.getByRole('link', { name: 'Cancel' }).click();
    await page.getByLabel('Destinations').waitFor();
    await page.getByRole('link', { name: 'incoming' }).waitFor();
  });

  it('names the exchange and the number of elements in the list of changes', async () => {
    const declaration = { src: { ns: 'N', queue: 'noted' }, dst: [{ ns: 'N', queue: 'to' }], consumer: {} };
    await opened().request('PUT', '/x/noted', {
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(declaration),
    });
    await opened().request('DELETE', '/x/noted');
    await opened().request('DELETE', '/q/N/noted/elements');
    const page = await opened().samePage('#/users');
    const rows = page.getByLabel('Who changed what').locator('tbody tr');
    await rows.filter({ hasText: 'createExchange' }).filter({ hasText: 'id: noted' }).waitFor();
    await rows.filter({ hasText: 'purge' }).filter({ hasText: 'removed: 0' }).first().waitFor();
    await page.getByLabel('Filter changes').fill('createexchange noted');
    await page.getByText('1 change', { exact: true }).waitFor();
    assert.equal(await rows.count(), 1);
    await page.goto(`${opened().server.url}/console/#/q/N/noted`);
    await page.getByRole('button', { name: 'More of noted' }).click();
    await page.getByRole('link', { name: 'Who changed it' }).click();
    await rows.first().waitFor();
    assert.equal(await page.getByLabel('Filter changes').inputValue(), 'N noted');
  });

  it('lists operations without the dry runs of confirmations, unless they are requested', async () => {
    await opened().insert('N', 'only-counted', '1');
    const page = await opened().samePage('#/q/N/only-counted');
    await page.getByRole('button', { name: 'Delete …' }).click();
    await page.getByRole('button', { name: 'Delete 1 element of only-counted', disabled: false }).waitFor();
    await page.goto(`${opened().server.url}/console/#/operations`);
    const show = page.getByLabel(/^Show [\d,]+ dry runs?$/);
    await show.waitFor();
    const row = page.locator('tbody tr').filter({ hasText: 'only-counted' });
    // Takes a moment longer if the list still shows it as running.
    await row.waitFor({ state: 'detached' });
    await show.check();
    await row.getByText('dry run').waitFor();
  });
}
