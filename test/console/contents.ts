import assert from 'node:assert/strict';
import { it } from 'node:test';
import type { Page } from 'playwright-core';
import type { OpenedConsole } from './opened.ts';
import { setHidden } from './refreshing.ts';

/** Shows, finds and clones elements unchanged. */
export function contents(opened: () => OpenedConsole): void {
  it('shows and stores headers that are not ASCII', async () => {
    const value = Buffer.from('Zürich 東京', 'utf8').toString('latin1');
    await opened().insert('N', 'cities', '1', { 'x-ks-hdr-city': value });
    const page = await firstElement('cities');
    const headers = page.locator('.pairs.mono');
    await headers.getByText('Zürich 東京').waitFor();
    await page.getByRole('button', { name: 'Clone and edit …' }).click();
    await page.getByLabel('Headers').fill('City: Århus');
    await page.getByRole('dialog').getByRole('button', { name: 'Insert' }).click();
    await page.getByText('An element was inserted into cities').waitFor();
    const list = await opened().request('GET', '/q/N/cities/elements');
    const { elements } = (await list.json()) as { elements: { headers: object }[] };
    assert.deepEqual(
      elements.map((one) => one.headers),
      [{ city: 'Zürich 東京' }, { city: 'Århus' }],
    );
  });

  it('finds the elements that share a header with the one that is shown', async () => {
    for (const tenant of ['acme', 'acme', 'a "quoted" one'])
      await opened().insert('N', 'tenants', '1', { 'x-ks-hdr-tenant': tenant });
    const page = await firstElement('tenants');
    await page.getByRole('link', { name: 'acme' }).click();
    await page.getByText('All 2 that match').waitFor();
    await page.getByRole('button', { name: 'Reload' }).click();
    await page.getByLabel('Search elements').fill('quoted');
    await page.keyboard.press('Enter');
    await page.getByText('The only match').waitFor();
    await page.locator('table.rows tbody a').first().click();
    await page.getByRole('link', { name: 'a "quoted" one' }).click();
    await page.getByText('The only match').waitFor();
    await page.goBack();
    await page.getByText('Why is it not delivered now?').waitFor();
  });

  it('clones an element with the headers that its producer set, and rejects invalid ones', async () => {
    await opened().insert('N', 'cloned', '{"a":1}', {
      'x-ks-hdr-x-tenant': 'acme',
      'x-ks-hdr-x-hop-count': '3',
    });
    const page = await firstElement('cloned');
    await page.getByRole('button', { name: 'Clone and edit …' }).click();
    assert.equal(await page.getByLabel('Headers').inputValue(), 'x-tenant: acme');
    await page.getByLabel('Headers').fill('x-tenant: acme\nX-Tenant: other');
    await page.getByRole('dialog').getByRole('button', { name: 'Insert' }).click();
    await page.getByRole('alert').filter({ hasText: 'repeats a name' }).waitFor();
    await page.getByLabel('Headers').fill('two words: x');
    await page.getByRole('dialog').getByRole('button', { name: 'Insert' }).click();
    await page.getByRole('alert').filter({ hasText: 'a character that is not allowed' }).waitFor();
  });

  it('does not offer to clone a binary body', async () => {
    await opened().insert('N', 'bytes', new Uint8Array([0xff, 0x00, 0xfe]), {
      'content-type': 'application/octet-stream',
    });
    const page = await firstElement('bytes');
    await page.getByText('ff 00 fe').waitFor();
    assert.equal(await page.getByRole('button', { name: 'Clone and edit …' }).count(), 0);
  });

  it('says that a body is not the image that its content type names', async () => {
    await opened().insert('N', 'images', new Uint8Array([137, 80, 78, 71]), { 'content-type': 'image/png' });
    const page = await opened().samePage('#/q/N/images');
    await page.locator('table.rows tbody a').click();
    await page.getByText('The body is not an image of its content type').waitFor();
  });

  it('finds text in bodies of any type, with quotes, umlauts and in any case', async () => {
    const bodies = [
      ['text/plain', 'he said "go", then left'],
      ['application/json', '{"said":"\\"go\\" to Zürich"}'],
      ['application/x-www-form-urlencoded', 'city=Zürich&said="go"'],
      ['application/json', '{"said":"nothing"}'],
      ['application/json', '{"env":"staging"}'],
    ] as const;
    for (const [type, body] of bodies) await opened().insert('N', 'said', body, { 'content-type': type });
    const page = await opened().samePage('#/q/N/said');
    for (const [text, found] of [
      // Consecutive numbers differ: otherwise the text of the previous search would be found.
      ['SAID "GO', 1],
      ['"go"', 3],
      ['"said":"nothing', 1],
      ['zürich', 2],
      ['{ "said" : "nothing"', 1],
      // Byte values are not searched either; without the quotes it would match ids.
      ['"0"', 0],
      // Without a use of `env` it is text.
      ['"env": "staging"', 1],
      ['env => env.msg.payload.env === "prod"', 0],
    ] as const) {
      await page.getByLabel('Search elements').fill(text);
      await page.getByRole('button', { name: 'Search', exact: true }).click();
      const shown = ['No element matches', 'The only match'][found] ?? `All ${found} that match`;
      await page.getByText(shown).waitFor();
    }
  });

  it('says that only the first 15 digits of a long number in JSON are searched', async () => {
    await opened().insert('N', 'long-number', '{"id": 12345678901234567891}');
    const page = await opened().samePage('#/q/N/long-number?search=12345678901234567891');
    await page.getByText('Only the first 15 digits').waitFor();
    await page.getByLabel('Search elements').fill('123456789012345');
    await page.keyboard.press('Enter');
    await page.getByText('The only match').waitFor();
  });

  it('clones a body byte for byte, with its line ends, and does not offer to clone one that it would change', async () => {
    const text = { 'content-type': 'text/plain' };
    await opened().insert('N', 'line-ends', 'a\r\nb\r\n', text);
    const page = await firstElement('line-ends');
    await page.getByRole('button', { name: 'Clone and edit …' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Insert' }).click();
    await page.getByText('An element was inserted').waitFor();
    const response = await opened().request('GET', '/q/N/line-ends/elements');
    const { elements } = (await response.json()) as { elements: { text: string }[] };
    assert.deepEqual(
      elements.map((one) => one.text),
      ['a\r\nb\r\n', 'a\r\nb\r\n'],
    );
    for (const [at, body] of ['a\nb\r\n', '\ufeff{"a":1}'].entries()) {
      await opened().insert('N', `not-copied-${at}`, body, text);
      const other = await firstElement(`not-copied-${at}`);
      assert.equal(await other.getByRole('button', { name: 'Clone and edit …' }).count(), 0);
    }
  });

  it('lists an element that has moved to a later page only once', async () => {
    await opened().request('POST', '/q/N/moved/elements', {
      headers: { 'content-type': 'application/x-ndjson' },
      body: '{"text":"x"}\n'.repeat(150),
    });
    const page = await opened().samePage('#/q/N/moved');
    await page.getByText('100 elements listed').waitFor();
    const taken = await opened().request('GET', '/q/N/moved?reserve=true');
    await taken.arrayBuffer();
    const [id, token] = ['x-ks-id', 'x-ks-lease'].map((name) => taken.headers.get(name));
    await opened().request('PATCH', `/q/N/moved/rollback/${id}?token=${token}&delay=60000`);
    await page.getByRole('button', { name: 'Load more' }).click();
    await page.getByText('All 150 that match').waitFor();
  });

  it('fits into a window of 320 pixels with the longest names', async () => {
    const long = 'n'.repeat(255);
    await opened().insert('jobs', long, '"x"', { 'x-ks-hdr-long': 'v'.repeat(3_000) });
    await opened().request('PUT', '/x/long-names', {
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        src: { ns: 'N', queue: long },
        dst: [{ ns: 'N', queue: `${long.slice(1)}d`, selector: `env => env.msg.payload.${'a'.repeat(400)}` }],
        consumer: { reserve: true },
      }),
    });
    const page = await opened().page('#/x/long-names', { width: 320 });
    for (const [where, what] of [
      ['x/long-names', page.getByLabel('Destinations')],
      ['x/long-names/edit', page.getByLabel('Selector of destination 1')],
      ['exchanges', page.getByRole('heading', { name: 'Exchanges', level: 1 })],
      [`q/jobs/${long}`, page.locator('table.rows tbody a').first()],
      [`q/jobs/${long}/try`, page.locator('.snippet').first()],
    ] as const) {
      await page.goto(`${opened().server.url}/console/#/${where}`);
      // Until then it may be the previous page.
      await what.waitFor();
      await page.locator('#page .card').first().waitFor();
      const overflow = await page.evaluate('document.documentElement.scrollWidth - innerWidth');
      assert.ok(Number(overflow) <= 0, `${where} is ${overflow} px too wide`);
    }
    await page.goto(`${opened().server.url}/console/#/q/jobs/${long}`);
    const search = await page.getByRole('button', { name: 'Search', exact: true }).boundingBox();
    const list = await page.getByRole('region', { name: 'Elements', exact: true }).boundingBox();
    assert.ok(search !== null && list !== null && search.x + search.width <= list.x + list.width);
    await page.getByRole('button', { name: /^More of/ }).click();
    await page.getByRole('button', { name: 'Import …' }).click();
    // The dialog is in the page before it is shown.
    await page.getByLabel('File').waitFor();
    const file = await page.getByLabel('File').boundingBox();
    assert.ok(file !== null && file.x + file.width <= 320, JSON.stringify(file));
    await page.setViewportSize({ width: 1280, height: 900 });
    await page.goto(`${opened().server.url}/console/#/x/long-names`);
    const skipped = await page.getByRole('columnheader', { name: 'Skipped' }).boundingBox();
    assert.ok(skipped !== null && skipped.x + skipped.width <= 1280, JSON.stringify(skipped));
    await opened().request('DELETE', '/x/long-names');
  });

  it('keeps the focus in the search field after a search', async () => {
    await opened().insert('N', 'sought', '1');
    const page = await opened().samePage('#/q/N/sought');
    await page.getByText('The only match').waitFor();
    const field = page.getByLabel('Search elements');
    await field.fill('nowhere');
    await page.keyboard.press('Enter');
    await page.getByText('No element matches').waitFor();
    assert.equal(await field.evaluate((one) => one.matches(':focus')), true);
    await page.getByRole('button', { name: 'Show all' }).click();
    await page.getByText('The only match').waitFor();
    assert.equal(await field.inputValue(), '');
  });

  it('shows numbers as they were written, even those that JavaScript would round', async () => {
    await opened().insert('N', 'numbers', '{"id":12345678901234567891,"price":1.50,"some":[1,2.5]}');
    const page = await firstElement('numbers');
    await page.locator('.tree .literal').first().waitFor();
    const shown = await page.locator('.tree .literal').allInnerTexts();
    assert.deepEqual(shown, ['12345678901234567891', '1.50', '1', '2.5']);
  });

  it('shows an element whose body does not match its content encoding', async () => {
    await opened().insert('N', 'encoded', 'no gzip', { 'content-encoding': 'gzip', 'x-ks-hdr-a': 'b' });
    const page = await firstElement('encoded', true);
    await page.getByText('Why is it not delivered now?').waitFor();
    await page.getByText('does not match its content encoding').waitFor();
  });

  it('continues a search that has found nothing yet until it finds something, and stops if the user wants that', async () => {
    await opened().insert('N', 'deep', '"needle"');
    const page = await opened().page('#/q/N/deep');
    await page.getByText('The only match').waitFor();
    const { promise: mayFind, resolve: find } = Promise.withResolvers<void>();
    await page.route('**/elements?*', async (route) => {
      const url = new URL(route.request().url());
      const after = url.searchParams.get('after');
      if (after === 'third') {
        await mayFind;
        url.searchParams.delete('after');
        return route.continue({ url: url.href });
      }
      const next = after === null ? 'second' : 'third';
      return route.fulfill({ json: { elements: [], next, looked: 1_200, failed: 0, error: null } });
    });
    await page.getByLabel('Search elements').fill('needle');
    await page.getByRole('button', { name: 'Search', exact: true }).click();
    await page.getByText('0 elements listed, 2,400 searched').waitFor();
    await page.getByRole('button', { name: 'Stop' }).click();
    find();
    await page.getByRole('button', { name: 'Load more' }).click();
    await page.getByText('The only match').waitFor();
  });

  it('loads the next page of a list on a second attempt, and keeps the previous pages', async () => {
    await opened().request('POST', '/q/N/paged/elements', {
      headers: { 'content-type': 'application/x-ndjson' },
      body: '{"text":"x"}\n'.repeat(150),
    });
    const page = await opened().page('#/q/N/paged', { isFailing: true });
    await page.getByText('100 elements listed').waitFor();
    await page.route('**/elements?*', (route) => route.fulfill({ status: 503 }));
    await page.getByRole('button', { name: 'Load more' }).click();
    await page.getByRole('alert').filter({ hasText: '503' }).waitFor();
    await page.unrouteAll();
    await page.getByRole('button', { name: 'Try again' }).click();
    await page.getByText('All 150 that match').waitFor();
  });

  async function firstElement(queue: string, isFailing = false): Promise<Page> {
    const where = `#/q/N/${queue}`;
    const page = isFailing ? await opened().page(where, { isFailing }) : await opened().samePage(where);
    await page.locator('table.rows tbody a').first().click();
    await page.getByRole('heading', { name: 'Body' }).waitFor();
    return page;
  }

  it('shows the redrive button of dead letters with a long reason in a narrow window', async () => {
    const reasons = [{ reason: `Error: ${'z'.repeat(1_000)}`, count: 7 }];
    const queue = { ns: 'jobs', queue: '__deadletter__', count: 7, oldest: null, reasons, sources: [] };
    const page = await opened().page('#/users', { width: 390 });
    const json = { queues: [{ ...queue, looked: 7, complete: true }], complete: true };
    await page.route('**/dead-letters', (route) => route.fulfill({ json }));
    await page.goto(`${opened().server.url}/console/#/dead-letters`);
    const button = page.getByRole('button', { name: /^Redrive Error: z/ });
    const box = await button.boundingBox();
    assert.ok(box !== null && box.x + box.width <= 390, JSON.stringify(box));
  });

  it('shows some of many dead-letter queues, and more on demand', async () => {
    const one = { ns: 'jobs', count: 1, oldest: null, reasons: [], sources: [], looked: 1, complete: true };
    const queues = Array.from({ length: 120 }, (_, i) => ({ ...one, queue: `dead-${i}` }));
    const page = await opened().page('#/users');
    const json = { queues, complete: true, unavailable: [] };
    await page.route('**/dead-letters', (route) => route.fulfill({ json }));
    await page.goto(`${opened().server.url}/console/#/dead-letters`);
    await page.getByText('120 dead letters').waitFor();
    const links = page.getByRole('link', { name: /^dead-\d+$/ });
    assert.equal(await links.count(), 50);
    await page.getByRole('button', { name: '70 more queues' }).click();
    await page.getByRole('button', { name: '20 more queues' }).click();
    await links.nth(119).waitFor();
    assert.equal(await page.getByRole('button', { name: /more queue/ }).count(), 0);
  });

  it('says that not all dead-letter queues are listed if there are too many', async () => {
    const page = await opened().page('#/users');
    const json = { queues: [], complete: false, unavailable: [] };
    let reads = 0;
    await page.route('**/dead-letters', (route) => {
      reads += 1;
      return route.fulfill({ json });
    });
    await page.goto(`${opened().server.url}/console/#/dead-letters`);
    await page.getByRole('alert').filter({ hasText: 'Not all dead-letter queues are listed' }).waitFor();
    assert.equal(await page.getByText('There are no dead letters').count(), 0);
    await page.goto(`${opened().server.url}/console/#/`);
    await page
      .getByRole('link', { name: /^Dead letters \d/ })
      .getByText('not of all queues')
      .waitFor();
    // To read them again takes the server a second. The second turn waits for what the first would have caused.
    const before = reads;
    for (let turn = 0; turn < 2; turn += 1) {
      await setHidden(page, true);
      await page.getByRole('button', { name: 'Refresh: Resting' }).waitFor();
      await setHidden(page, false);
      await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    }
    assert.equal(reads, before);
  });

  it('labels the marks of chart axes with their exact numbers', async () => {
    const minutes = (value: number): number[] => Array.from({ length: 60 }, () => value);
    const json = {
      from: '2026-11-24T12:00:00.000Z',
      intervalMs: 60_000,
      size: minutes(7),
      schedSize: minutes(0),
      resvSize: minutes(1),
      insert: minutes(0.17),
      take: minutes(0),
    };
    const page = await opened().page('#/users');
    await page.route('**/history', (route) => route.fulfill({ json }));
    await page.goto(`${opened().server.url}/console/#/`);
    const marks = (chart: string): Promise<string[]> =>
      page.getByRole('img', { name: chart }).locator('g text').allTextContents();
    await page.locator('.plot svg').nth(1).waitFor();
    assert.deepEqual(await marks('In and out'), ['0', '0.1', '0.2']);
    assert.deepEqual(await marks('Depth'), ['0', '5', '10']);
  });

  it('shows the marks of an axis of ages completely, and not more than fit', async () => {
    await opened().insert('N', 'aged', '1');
    const page = await opened().page('#/users');
    let age = 0;
    await page.route('**/aged/history', async (route) => {
      const response = await route.fetch();
      const history = (await response.json()) as { oldestReadyAge: (number | null)[] };
      const json = { ...history, oldestReadyAge: history.oldestReadyAge.map(() => age) };
      await route.fulfill({ json });
    });
    const day = 86_400;
    for (const seconds of [79, 5_000, 1.3 * day, 365 * day]) {
      age = seconds;
      await page.goto(`${opened().server.url}/console/#/users`);
      await page.goto(`${opened().server.url}/console/#/q/N/aged`);
      const chart = page.getByRole('img', { name: 'Oldest ready' });
      const left = (await chart.boundingBox())?.x ?? 0;
      const marks = await chart.locator('g text').all();
      assert.ok(marks.length <= 5, `${marks.length} marks for ${seconds} s`);
      for (const mark of marks) {
        const box = await mark.boundingBox();
        assert.ok(box !== null && box.x >= left, `${await mark.textContent()} is cut off`);
      }
    }
  });
}
