import assert from 'node:assert/strict';
import { after, afterEach, before, describe, it } from 'node:test';
import type { Page } from 'playwright-core';
import { until } from '../support/until.ts';
import { complaints } from './complaints.ts';
import { exchangePages, fillEditor } from './exchange-pages.ts';
import { navigation } from './navigation.ts';
import { OpenedConsole, READER } from './opened.ts';
import { queuePages } from './queue-pages.ts';
import { SubPathProxy } from './sub-path-proxy.ts';

/** More than a page of the list. `CONSOLE_QUEUES=10000` tests that so many are usable. */
const QUEUES = Number(process.env.CONSOLE_QUEUES ?? 110);

/** Every page, with a text that it has once it is loaded. */
const PAGES = [
  ['#/', 'Needs attention'],
  ['#/queues', ' elements'],
  ['#/q/jobs/orders', 'that match'],
  ['#/q/jobs/orders/consumers', 'No consumer is waiting'],
  ['#/q/jobs/orders/options', 'the namespace'],
  ['#/q/jobs/orders/try', 'with TypeScript'],
  ['#/q/jobs/orders/watch/1?dead=__deadletter__', 'and not a dead letter'],
  ['#/dead-letters', 'smtp 550'],
  ['#/operations', 'Operations'],
  ['#/clients', 'Sessions of STOMP'],
  ['#/users', 'signIn'],
  ['#/exchanges', 'large'],
  ['#/x/route', '1 loop, window'],
  ['#/x/route/edit', 'Empty: every element'],
] as const;

describe('The console in a browser', () => {
  let opened: OpenedConsole;

  before(async () => {
    opened = await OpenedConsole.open();
    for (let i = 0; i < 12; i += 1)
      await opened.insert('jobs', 'orders', JSON.stringify({ order: i }), { 'x-ks-hdr-tenant': `t${i % 3}` });
    for (let i = 0; i < 3; i += 1) {
      await opened.insert('jobs', 'mails', JSON.stringify({ mail: i }));
      await opened.fail('jobs', 'mails', 'smtp 550');
    }
    await opened.insert('jobs', 'held', '1');
    await opened.request('PUT', '/x/route', {
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        src: { ns: 'N', queue: 'incoming' },
        dst: [{ ns: 'N', queue: 'large', selector: 'env => env.msg.payload.amount > 100' }],
        consumer: { reserve: true },
      }),
    });
    await opened.request('POST', '/q/jobs/held/pause');
  });

  afterEach((context) => opened.check(context));

  after(() => opened?.close());

  it('signs in and out, and reports a wrong password', async () => {
    const page = await opened.page();
    await page.getByRole('button', { name: 'User admin' }).click();
    await page.getByRole('button', { name: 'Sign out' }).click();
    opened.forgetSignIns();
    await page.getByLabel('User', { exact: true }).fill('admin');
    await page.getByLabel('Password').fill('wrong');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByText('The user name or the password is wrong').waitFor();
    await page.reload();
    await page.getByRole('heading', { name: 'Sign in to' }).waitFor();
  });

  it('lists the queues that need attention first, with the reason', async () => {
    const page = await opened.page();
    const concerns = page.locator('.concerns li');
    await concerns.filter({ hasText: 'held' }).getByText('Paused; 1 element ready').waitFor();
    const engine = page.getByRole('region', { name: 'Namespaces' }).locator('tr', { hasText: 'jobs' });
    await engine.getByText(/^Healthy|Slow$/).waitFor();
    await engine.getByText(/\d [KMGT]iB free/).waitFor();
    const figure = page.getByRole('link', { name: /^Dead letters \d/ });
    await figure.getByText('3', { exact: true }).waitFor();
    await opened.insert('jobs', 'mails', '{"mail":3}');
    await opened.fail('jobs', 'mails', 'smtp 550');
    await figure.getByText('4', { exact: true }).waitFor();
    await concerns.filter({ hasText: '__deadletter__' }).getByText('Dead letters arrived').waitFor();
    await opened.request('DELETE', '/q/jobs/__deadletter__/elements');
    for (let i = 0; i < 3; i += 1) {
      await opened.insert('jobs', 'mails', JSON.stringify({ mail: i }));
      await opened.fail('jobs', 'mails', 'smtp 550');
    }
  });

  it('redrives all dead letters of one queue from today in at most five clicks from the overview', async () => {
    await opened.insert('jobs', '__deadletter__', '"of another day"', {
      'x-ks-hdr-x-dl-from-queue': 'mails',
      'x-ks-hdr-x-dl-at': '2026-01-01T00:00:00.000Z',
    });
    const page = await opened.page('#/', { timezoneId: zoneAtNoon() });
    let clicks = 0;
    const click = async (role: 'link' | 'button', name: string): Promise<void> => {
      clicks += 1;
      await page.getByRole(role, { name }).first().click();
    };
    await click('link', 'Dead letters');
    await click('button', 'Redrive mails');
    await page.getByText('4 elements match').waitFor();
    // One click opens the list, and one chooses.
    clicks += 2;
    await page.getByLabel('Became dead letters').selectOption('Today');
    await page.getByText('3 elements match').waitFor();
    await click('button', 'Redrive 3 elements of __deadletter__');
    await page.getByText('3 elements of __deadletter__ redriven').waitFor();
    assert.ok(clicks <= 5);
    assert.equal(await opened.size('jobs', 'mails'), 3);
    assert.equal(await opened.size('jobs', '__deadletter__'), 1);
    await opened.request('DELETE', '/q/jobs/__deadletter__/elements');
    for (let i = 0; i < 3; i += 1) await opened.fail('jobs', 'mails', 'smtp 550');
  });

  it('deletes the matches of a search, after a confirmation that names the queue and their number', async () => {
    for (const body of ['"keep"', '"drop this"', '"drop that"']) await opened.insert('N', 'mixed', body);
    const page = await opened.samePage('#/q/N/mixed');
    await page.getByLabel('Search elements').fill('DROP');
    await page.getByRole('button', { name: 'Search', exact: true }).click();
    await page.getByText('All 2 that match').waitFor();
    await page.getByRole('button', { name: 'Delete …' }).click();
    // While the server still counts, the button has this text and is disabled.
    const confirm = page.getByRole('button', { name: 'Delete 2 elements of mixed', disabled: false });
    await confirm.waitFor();
    // A refresh behind a confirmation does not change it.
    await opened.insert('N', 'mixed', '"drop late"');
    await confirm.click();
    await page.getByText('2 elements of mixed deleted').waitFor();
    assert.equal(await opened.size('N', 'mixed'), 2);
  });

  it('says how many elements are new, and lists them only on request', async () => {
    await opened.insert('N', 'news', '"one"');
    const page = await opened.page('#/q/N/news');
    // The list may be loaded before the first event comes, as on a busy server.
    const { promise: mayFollow, resolve: follow } = Promise.withResolvers<void>();
    await page.route(/\/events\?/, (route) => mayFollow.then(() => route.continue()));
    await page.reload();
    await page.getByText('The only match').waitFor();
    await opened.insert('N', 'news', '"two"');
    const other = await opened.page('#/q/N/news');
    await other.getByRole('link', { name: 'All 2' }).waitFor();
    follow();
    const bar = page.getByRole('button', { name: '1 new: show' });
    await bar.waitFor();
    assert.equal(await page.locator('table.rows tbody tr').count(), 1);
    await bar.click();
    await page.getByText('All 2 that match').waitFor();
  });

  it('says why an element is not delivered now', async () => {
    await opened.insert('N', 'why', '"reserved"');
    const taken = await opened.request('GET', '/q/N/why?reserve=true&tid=worker-7%E2%80%AE');
    await taken.arrayBuffer();
    const page = await opened.samePage(`#/q/N/why/e/${taken.headers.get('x-ks-id')}`);
    // A character that would reverse the rest of the sentence is shown as its code.
    await page.getByText('It is reserved by admin, tid worker-7[U+202E] since').waitFor();
    await page.goto(`${opened.server.url}/console/#/q/N/why?state=reserved`);
    await page.getByRole('cell', { name: 'admin, tid worker-7[U+202E]' }).waitFor();
    await opened.request('PUT', '/q/N/why?delay=900', {
      body: 'later',
      headers: { 'content-type': 'text/plain' },
    });
    await page.goto(`${opened.server.url}/console/#/q/N/why?state=scheduled`);
    await page.locator('table.rows tbody a').first().click();
    await page.getByText(/It matures in 1[45] min/).waitFor();
    await opened.request('POST', '/q/N/why/pause');
    await page.getByText('The queue is paused').waitFor();
  });

  it('can be used by keyboard alone: find a queue, view an element, redrive a dead letter', async () => {
    const page = await opened.page();
    await page.keyboard.press('/');
    await page.keyboard.type('orders');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Queues' }).waitFor();
    await page.locator('table.rows').getByRole('link', { name: 'orders' }).waitFor();
    await tabTo(page, 'orders');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'orders' }).waitFor();
    await page.locator('table.rows tbody a').first().waitFor();
    const id = (await page.locator('table.rows tbody a').first().textContent()) ?? '';
    await tabTo(page, id);
    await page.keyboard.press('Enter');
    await page.getByText('Why is it not delivered now?').waitFor();
    await goTo(page, 'd', 'Dead letters');
    await page.getByRole('button', { name: 'Redrive all …' }).waitFor();
    await tabTo(page, 'Redrive all …');
    await page.keyboard.press('Enter');
    await page.getByText('3 elements match').waitFor();
    // While the server still counts, the button has this text and is disabled.
    const redrive = { name: 'Redrive 3 elements of __deadletter__', disabled: false };
    await page.getByRole('button', redrive).waitFor();
    await tabTo(page, 'Redrive 3 elements of __deadletter__');
    await page.keyboard.press('Enter');
    await page.getByText('3 elements of __deadletter__ redriven').waitFor();
    await page.keyboard.press('Escape');
    for (let i = 0; i < 3; i += 1) await opened.fail('jobs', 'mails', 'smtp 550');
  });

  it('can be used by keyboard alone: create an exchange', async () => {
    const page = await opened.page();
    const { keyboard } = page;
    await goTo(page, 'x', 'Exchanges');
    await page.getByRole('link', { name: 'New exchange' }).waitFor();
    await tabTo(page, 'New exchange');
    await keyboard.press('Enter');
    await page.getByLabel('Selector of destination 1').waitFor();
    const fields = [
      ['Id', 'by-keyboard'],
      ['From namespace', 'N'],
      ['From queue', 'typed'],
      ['To namespace', 'N'],
      ['To queue', 'typed-large'],
      ['Selector of destination 1', 'env => env.msg.payload.amount > 100'],
    ] as const;
    for (const [name, text] of fields) {
      await tabTo(page, name);
      await keyboard.type(text);
    }
    await tabTo(page, 'Create the exchange');
    await keyboard.press('Enter');
    await page.getByRole('heading', { name: 'by-keyboard' }).waitFor();
    const response = await opened.request('GET', '/x/by-keyboard');
    const { src, dst } = (await response.json()) as { src: object; dst: { selector?: string }[] };
    assert.deepEqual(src, { ns: 'N', q: 'typed' });
    assert.deepEqual(
      dst.map(({ selector }) => selector),
      ['env => env.msg.payload.amount > 100'],
    );
    await opened.request('DELETE', '/x/by-keyboard');
  });

  it('creates an exchange after a dry run on elements of its source, and deletes it', async () => {
    for (const amount of [5, 500]) await opened.insert('N', 'bought', JSON.stringify({ amount }));
    const page = await opened.samePage('#/exchanges');
    await page.getByRole('link', { name: 'New exchange' }).click();
    await page.getByLabel('Id').fill('by-amount');
    for (const way of ['From', 'To']) {
      // Both in one call: a redraw in between would move one of them.
      const fields = page.getByLabel(`${way} namespace`).or(page.getByLabel(`${way} queue`));
      const boxes = await fields.evaluateAll((all) =>
        all.map((one) => {
          const { y, height } = (
            one as unknown as { getBoundingClientRect(): { y: number; height: number } }
          ).getBoundingClientRect();
          return { y, height };
        }),
      );
      assert.equal(boxes.length, 2);
      assert.deepEqual(boxes[0], boxes[1], `${way}: the fields are not in line and of one height`);
    }
    await page.getByLabel('From queue').fill('bought');
    await page.getByLabel('To queue').fill('expensive');
    await fillEditor(page.getByLabel('Selector'), 'env => env.msg.payload.amount >');
    await page.getByRole('button', { name: 'Dry run' }).click();
    await page.getByRole('alert').filter({ hasText: 'line 1' }).waitFor();
    await page.locator('.cm-problem-line').waitFor();
    await fillEditor(page.getByLabel('Selector'), 'env => env.msg.payload.amount > 100');
    await page.getByRole('button', { name: 'Dry run' }).click();
    const rows = page.getByLabel('Dry run', { exact: true }).locator('tr');
    await rows.nth(0).getByText('not to').waitFor();
    await rows.nth(1).getByText('goes to').waitFor();
    await page.getByLabel('From namespace').selectOption('N');
    await page.getByRole('button', { name: 'Create the exchange' }).click();
    await page.getByRole('heading', { name: 'by-amount' }).waitFor();
    await until(async () => (await opened.size('N', 'bought')) === 0);
    await page.getByRole('button', { name: 'Delete …' }).click();
    await page.getByRole('button', { name: 'Delete the exchange by-amount' }).click();
    await page.getByRole('heading', { name: 'Exchanges' }).waitFor();
    assert.equal(await opened.size('N', 'expensive'), 1);
  });

  it('shows hostile names, bodies and headers as text, and runs no script in them', async () => {
    const markup = '<img src=x onerror=alert(1)><script>alert(2)</script>';
    const queue = `${markup}\u202Etxt`;
    await opened.insert('N', queue, markup, { 'content-type': 'text/html', 'x-ks-hdr-evil': markup });
    await opened.insert('N', queue, 'x'.repeat(1_048_576), { 'content-type': 'text/plain' });
    await opened.insert('N', queue, `${'['.repeat(10_000)}${']'.repeat(10_000)}`);
    await opened.insert('N', queue, `<svg xmlns="http://www.w3.org/2000/svg" onload="alert(3)"/>`, {
      'content-type': 'image/svg+xml',
    });
    const page = await opened.page(`#/q/N/${encodeURIComponent(queue)}`);
    const links = page.locator('table.rows tbody a');
    await links.nth(3).waitFor();
    const addresses = await links.evaluateAll((all) =>
      all.map((one) => (one as unknown as { href: string }).href),
    );
    for (const address of addresses) {
      await page.goto(address);
      // Until then the previous element is shown.
      await page.getByRole('heading', { name: address.split('/').at(-1) ?? '', level: 1 }).waitFor();
      await page.getByRole('heading', { name: 'Body' }).waitFor();
      const overflow = await page.evaluate('document.documentElement.scrollWidth - innerWidth');
      assert.ok(Number(overflow) <= 0, `the page is ${overflow} px too wide`);
      assert.equal(await page.locator('#page img, #page script').count(), 0);
    }
    await page.goto(`${opened.server.url}/console/#/q/N/${encodeURIComponent(queue)}`);
    await page.getByRole('button', { name: `More of ${markup}` }).click();
    await page.getByRole('button', { name: 'Delete the queue …' }).click();
    // A character that would reverse the rest of the sentence is shown as its code.
    await page.getByRole('button', { name: `Delete ${markup}[U+202E]txt and 4 elements` }).waitFor();
    const outside = await page.evaluate(
      `Math.max(...[...document.querySelectorAll('dialog *')].map((one) => one.getBoundingClientRect().right)) - document.querySelector('dialog').getBoundingClientRect().right`,
    );
    assert.ok(Number(outside) <= 0, `what is in the dialog is ${outside} px too wide`);
    await page.goto(`${opened.server.url}/console/#/queues`);
    await page.getByRole('link', { name: '<img src=x' }).waitFor();
  });

  it('shows a user who may only read no button that would fail', async () => {
    const page = await opened.page('#/q/jobs/orders', { who: READER });
    await page.locator('table.rows tbody a').first().waitFor();
    for (const name of ['Insert', 'Pause', 'Delete …', 'Move …']) {
      assert.equal(await page.getByRole('button', { name }).count(), 0, name);
    }
  });

  it('filters, sorts and pages many queues, and keeps the choice in the address', async () => {
    await opened.request('POST', '/q/N/zz-busy/elements', {
      headers: { 'content-type': 'application/x-ndjson' },
      body: '{"text":"1"}\n{"text":"2"}\n{"text":"3"}\n',
    });
    const names = Array.from({ length: QUEUES }, (_, i) => `zz-${String(i).padStart(5, '0')}`);
    while (names.length > 0) {
      await Promise.all(names.splice(0, 50).map((name) => opened.insert('N', name, '1')));
    }
    const page = await opened.page('#/queues?filter=zz-&sort=-ready');
    const first = page.locator('table.rows tbody tr').first();
    await first.getByRole('link', { name: 'zz-busy' }).waitFor();
    await page.getByText(`${(QUEUES + 1).toLocaleString('en-US')} of `).waitFor();
    await page.getByRole('button', { name: 'Next' }).click();
    await page.getByText('Page 2 of').waitFor();
    await first.getByRole('link', { name: 'zz-00099' }).waitFor();
    await page.reload();
    await page.getByText('Page 2 of').waitFor();
    await page.getByRole('button', { name: 'Queue', exact: true }).click();
    await first.getByRole('link', { name: 'zz-00000' }).waitFor();
    await page.getByLabel('Filter queues').fill('redy:>2');
    await page.getByRole('alert').filter({ hasText: 'Did you mean "ready"?' }).waitFor();
    await page.getByLabel('Filter queues').fill('zz- ns:n ready:>2');
    await page.getByText(/^1 of [\d,]+ queues, 3 elements$/).waitFor();
    assert.deepEqual(Object.fromEntries(new URLSearchParams(page.url().split('?')[1])), {
      filter: 'zz- ns:n ready:>2',
      sort: 'name',
    });
    await opened.insert('N', 'zz-busy', '4');
    await first.locator('td.number').filter({ hasText: /^4$/ }).first().waitFor();
  });

  it('lists new queues only on request', async () => {
    await opened.insert('N', 'later-b', '1');
    const page = await opened.page('#/queues?filter=later-', { isAlone: true });
    await page.clock.install();
    // The page is read again, and sorted again, when it begins to follow the server.
    const { promise: mayFollow, resolve: follow } = Promise.withResolvers<void>();
    await page.route(/\/events\?/, (route) => mayFollow.then(() => route.continue()));
    await page.reload();
    const rows = page.locator('table.rows tbody tr');
    await rows.getByRole('link', { name: 'later-b' }).waitFor();
    await opened.insert('N', 'later-c', '1');
    follow();
    await rows.getByRole('link', { name: 'later-c' }).waitFor();
    await opened.insert('N', 'later-a', '1');
    const bar = page.getByRole('button', { name: '1 new: show' });
    await page.clock.fastForward(10_000);
    await bar.waitFor();
    assert.equal(await rows.count(), 2);
    await bar.click();
    await rows.first().getByRole('link', { name: 'later-a' }).waitFor();
    assert.equal(await rows.count(), 3);
  });

  it('shows users their rights, and only those changes that they may see', async () => {
    const page = await opened.page('#/users', { who: READER });
    const row = page.getByLabel('Rights of reader').locator('tbody tr').first();
    await row.waitFor();
    assert.deepEqual(await row.locator('td').allInnerTexts(), ['N', 'yes', 'no', 'no', 'yes', 'no', 'yes']);
    const changes = page.getByLabel('Who changed what').locator('tbody tr');
    await changes.first().waitFor();
    const users = new Set(await changes.locator('td:nth-child(2)').allInnerTexts());
    assert.deepEqual([...users], ['reader']);
  });

  it('lists the sessions of the signed-in user, and signs out another one', async () => {
    const page = await opened.page('#/users', { who: READER });
    const rows = page.getByLabel('Your console sessions').locator('tbody tr');
    await rows.filter({ hasText: 'this one' }).waitFor();
    opened.forgetSignIns();
    const other = await opened.page('#/users', { who: READER });
    await other.getByLabel('Your console sessions').getByText('this one').waitFor();
    const others = other.getByLabel('Your console sessions').locator('tbody');
    await others.getByRole('button', { name: 'Sign out' }).first().click();
    await other.getByText('The session is signed out').waitFor();
    await page.reload();
    await page.getByRole('heading', { name: 'Sign in to' }).waitFor();
  });

  it('signs out all sessions of another user, and all of the signed-in user, including the current one', async () => {
    opened.forgetSignIns();
    const reader = await opened.page('#/users', { who: READER });
    assert.equal(await reader.getByLabel('Of user').count(), 0);
    const page = await opened.page('#/users');
    await page.getByLabel('Of user').fill('reader');
    await page.getByRole('button', { name: 'Show', exact: true }).click();
    await page.getByLabel('Console sessions of reader').getByText('127.0.0.1').first().waitFor();
    await page.getByRole('button', { name: 'Sign out all …' }).click();
    await page.getByRole('button', { name: 'Sign out all sessions of reader' }).click();
    await page.getByText('reader is not signed in').waitFor();
    await reader.reload();
    await reader.getByRole('heading', { name: 'Sign in to' }).waitFor();
    await page.getByLabel('Of user').fill('');
    await page.getByRole('button', { name: 'Show', exact: true }).click();
    await page.getByLabel('Your console sessions').getByText('this one').waitFor();
    await page.getByRole('button', { name: 'Sign out all …' }).click();
    await page.getByRole('button', { name: 'Sign out all sessions of admin' }).click();
    await page.getByRole('heading', { name: 'Sign in to' }).waitFor();
    opened.forgetSignIns();
  });

  it('creates an API token with some of the rights of its user, shows it once, and revokes it', async () => {
    const page = await opened.page('#/users', { who: READER });
    await page.getByRole('button', { name: 'New token …' }).click();
    const dialog = page.getByRole('dialog');
    const create = dialog.getByRole('button', { name: 'Create the token' });
    await dialog.getByLabel('Name').fill('nightly');
    await dialog.getByLabel('Rights').selectOption('Only those chosen');
    await create.click();
    await dialog.getByRole('alert').filter({ hasText: 'Choose at least one' }).waitFor();
    assert.equal(await dialog.getByLabel('Write in N').count(), 0, 'a right that the user does not have');
    await dialog.getByLabel('Read in N').check();
    assert.deepEqual(await opened.violations(page), []);
    await create.click();
    const token = await dialog.locator('.snippet').innerText();
    const statusIn = async (ns: string): Promise<number> => {
      const headers = { authorization: `Bearer ${token}` };
      return (await fetch(`${opened.server.url}/q/${ns}/orders/status`, { headers })).status;
    };
    assert.deepEqual([await statusIn('N'), await statusIn('jobs')], [200, 404]);
    await dialog.getByRole('button', { name: 'Close' }).last().click();
    const admin = await opened.page('#/users');
    const listed = admin.getByLabel('API tokens').locator('tbody tr').filter({ hasText: 'nightly' });
    await listed.getByText('reader').waitFor();
    const row = page.getByLabel('API tokens').locator('tbody tr');
    await row.getByText('N: read', { exact: true }).waitFor();
    await row.getByText(/^in (89|90) d/).waitFor();
    assert.equal(await page.getByText(token).count(), 0);
    await row.getByRole('button', { name: 'Revoke nightly' }).click();
    await page.getByRole('button', { name: 'Revoke the token nightly' }).click();
    await page.getByText('There are no API tokens').waitFor();
    assert.equal(await statusIn('N'), 401);
  });

  it('works under a path behind a proxy, and no page violates its security policy', async () => {
    await opened.insert('N', 'proxied', '1');
    const proxy = await SubPathProxy.start(opened.server.url, '/tools/quayside');
    try {
      const response = await fetch(`${proxy.url}/console/`);
      await response.arrayBuffer();
      assert.match(response.headers.get('content-security-policy') ?? '', /^default-src 'none'; .*'none'/);
      const page = await opened.page('#/', { behind: proxy.url });
      const outside: string[] = [];
      page.on('request', (request) => {
        if (!request.url().startsWith(`${proxy.url}/`)) outside.push(request.url());
      });
      await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
      for (const [where, text] of PAGES) {
        await page.goto(`${proxy.url}/console/${where}`);
        await page.locator('#page').getByText(text).first().waitFor();
      }
      await page.goto(`${proxy.url}/console/#/q/N/proxied`);
      await page.getByRole('button', { name: 'Pause' }).click();
      await page.getByText('proxied is paused').waitFor();
      await page.getByRole('button', { name: 'Resume' }).click();
      await page.getByText('proxied runs again').waitFor();
      assert.deepEqual(outside, []);
      // Check before the proxy closes: after that the page would report the end of its event stream.
      await opened.check();
    } finally {
      await proxy.close();
    }
  });

  it('stops refreshing while it is paused, and remembers that', async () => {
    const page = await opened.page();
    await page.getByRole('button', { name: /^Refresh/ }).click();
    await page.getByRole('button', { name: 'Paused', exact: true }).click();
    await page.getByRole('button', { name: 'Refresh: Paused' }).waitFor();
    await page.reload();
    await page.getByRole('button', { name: 'Refresh: Paused' }).waitFor();
    // The current state was read once.
    await page.getByRole('heading', { name: 'Needs attention' }).waitFor();
  });

  it('loads at most 40 KiB of files for the overview', async () => {
    const page = await opened.page('#/', { isAlone: true });
    // The files of the charts are loaded last.
    await page.locator('.plot svg').nth(1).waitFor();
    const sizes = (await page.evaluate(
      `performance.getEntriesByType('resource').filter(({ name }) => name.includes('/console/assets/')).map(({ encodedBodySize }) => encodedBodySize)`,
    )) as number[];
    const sum = sizes.reduce((all, one) => all + one, 0);
    assert.ok(sum > 10_000 && sum <= 40 * 1024, `${sum} bytes`);
  });

  complaints(() => opened);
  exchangePages(() => opened);
  navigation(() => opened);
  queuePages(() => opened);

  it('fits all pages and their tables into a window of 360 pixels, without an accessibility violation in either theme', async () => {
    const page = await opened.page();
    // A transition between two themes has colors of neither.
    await page.emulateMedia({ reducedMotion: 'reduce', colorScheme: 'light' });
    const found: string[] = [];
    for (const [where, text] of PAGES) {
      const note = (kind: string, problems: readonly string[]): number =>
        found.push(...problems.map((one) => `${where} ${kind} ${one}`));
      await page.setViewportSize({ width: 360, height: 900 });
      await page.goto(`${opened.server.url}/console/${where}`);
      await page.locator('#page').getByText(text).first().waitFor();
      note('too wide', (await page.evaluate(WIDER_THAN_THEIR_PLACE)) as string[]);
      await page.setViewportSize({ width: 1280, height: 900 });
      note('light', await opened.violations(page));
      await page.emulateMedia({ colorScheme: 'dark' });
      note('dark', await opened.violations(page, RULES_OF_COLORS));
      await page.emulateMedia({ colorScheme: 'light' });
    }
    assert.deepEqual(found, []);
  });
});

/** The rules of axe whose result depends on the theme, which only changes colors. */
const RULES_OF_COLORS = ['color-contrast', 'link-in-text-block'];

/** The page and those of its tables that must be scrolled sideways. */
const WIDER_THAN_THEIR_PLACE = `[document.documentElement, ...document.querySelectorAll('.table-frame, .scrolls:has(table)')]
  .filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => one.getAttribute('aria-label') ?? one.localName)`;

/** A time zone in which it is about noon. */
function zoneAtNoon(): string {
  const ahead = 12 - new Date().getUTCHours();
  // These names have the signs of POSIX, in which zones east of Greenwich are negative.
  return ahead === 0 ? 'Etc/GMT' : `Etc/GMT${ahead > 0 ? '-' : '+'}${Math.abs(ahead)}`;
}

/** Presses `g` and the key of a page, again if a busy machine was too slow for the second key to count. */
async function goTo(page: Page, key: string, heading: string): Promise<void> {
  const reached = page.getByRole('heading', { name: heading });
  const isReached = (): Promise<boolean> =>
    reached.waitFor({ timeout: 5_000 }).then(
      () => true,
      () => false,
    );
  await until(async () => {
    await page.keyboard.press('g');
    await page.keyboard.press(key);
    return isReached();
  });
}

/** Presses Tab until an element with this name has the focus. */
async function tabTo(page: Page, name: string): Promise<void> {
  const seen: string[] = [];
  for (let i = 0; i < 80; i += 1) {
    await page.keyboard.press('Tab');
    const focused = String(await page.evaluate(NAME_OF_FOCUSED));
    if (focused === name) return;
    seen.push(focused.slice(0, 40));
  }
  assert.fail(`${name} was not reached: ${seen.join(' | ')}`);
}

/**
 * The name of the focused element: the label of a field, or else its text. An element in a shadow root is focused
 * there.
 */
const NAME_OF_FOCUSED = `(() => {
  let one = document.activeElement;
  while (one?.shadowRoot?.activeElement) one = one.shadowRoot.activeElement;
  const label = one?.labels?.[0]?.querySelector('span') ?? one;
  return one?.getAttribute('aria-label') ?? label?.textContent?.trim() ?? '';
})()`;
