import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { type IncomingMessage, request } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { it } from 'node:test';
import type { Locator, Page } from 'playwright-core';
import { spawnOwned } from '../support/owned-process.ts';
import { run, runPython } from '../support/python.ts';
import { linkClient } from '../support/source-package.ts';
import { until } from '../support/until.ts';
import { ADMIN, MASKED, MOVER, type OpenedConsole, READER } from './opened.ts';

/** Inserts with a path that is sent unchanged: `fetch` would remove its dot segments. */
async function insertRaw(url: string, path: string, body: string): Promise<void> {
  const auth = `${ADMIN.user}:${ADMIN.password}`;
  const call = request(url, { path, method: 'PUT', auth });
  call.end(body);
  const [response] = (await once(call, 'response')) as [IncomingMessage];
  response.resume();
  assert.equal(response.statusCode, 200);
}

/** The pages of a queue and its elements: options, export and import, actions. */
export function queuePages(opened: () => OpenedConsole): void {
  it('shows where the options of a queue come from, and changes them', async () => {
    await opened().insert('jobs', 'tuned', '1');
    const page = await opened().samePage('#/q/jobs/tuned/options');
    const rows = page.getByLabel('Options', { exact: true }).locator('tbody tr');
    const row = (name: string): Promise<string[]> =>
      rows.filter({ hasText: name }).locator('td').allInnerTexts();
    await rows.first().waitFor();
    assert.deepEqual((await row('Dead letter')).slice(0, 3), [
      'Dead letter',
      'after 1 failed try to __deadletter__',
      'the namespace',
    ]);
    await page.getByRole('button', { name: 'Change …' }).click();
    await page.getByLabel('Dead letter of this queue').selectOption('none');
    await page.getByLabel('Retry delay of this queue').selectOption('own value');
    await page.getByLabel('First, seconds').fill('5');
    await page.getByLabel('Factor').fill('1000');
    await page.getByRole('button', { name: 'Store the options of tuned' }).click();
    await page.getByRole('alert').filter({ hasText: 'factor' }).waitFor();
    await page.getByLabel('Factor').fill('3');
    await page.getByRole('button', { name: 'Store the options of tuned' }).click();
    await rows.filter({ hasText: '5 s, × 3' }).waitFor();
    assert.deepEqual((await row('Dead letter')).slice(1, 3), ['none', 'stored with the queue']);
    const response = await opened().request('GET', '/q/jobs/tuned/options');
    const { stored } = (await response.json()) as { stored: object };
    assert.deepEqual(stored, { deadLetter: null, retryDelay: { first: 5, factor: 3, max: 3600, jitter: 0 } });
    const look = await opened().page('#/q/jobs/tuned/options', { who: READER });
    await look.getByLabel('Options', { exact: true }).waitFor();
    assert.equal(await look.getByRole('button', { name: 'Change …' }).count(), 0);
  });

  it('does not overwrite options of a queue that were stored elsewhere since the page was opened', async () => {
    await opened().insert('jobs', 'shared', '1');
    const page = await opened().samePage('#/q/jobs/shared/options');
    await page.getByRole('button', { name: 'Change …' }).click();
    await page.getByLabel('Dead letter of this queue').selectOption('none');
    await opened().request('PUT', '/q/jobs/shared/options', { body: JSON.stringify({ ttl: 60 }) });
    await page.getByRole('button', { name: 'Store the options of shared' }).click();
    await page.getByRole('alert').filter({ hasText: 'do not have the version' }).waitFor();
    const response = await opened().request('GET', '/q/jobs/shared/options');
    assert.deepEqual(((await response.json()) as { stored: object }).stored, { ttl: 60 });
  });

  it('lists and counts the deliveries of the first group that a stream has, until another is chosen, and how many each group has', async () => {
    for (const groups of ['audit', 'audit,billing', 'audit,billing', 'audit,shipping'])
      await opened().request('PUT', `/q/events/late-groups?groups=${groups}`, { body: '1' });
    const page = await opened().samePage('#/q/events/late-groups');
    const states = page.getByRole('navigation', { name: 'States' });
    await page.getByText('All 4 that match').waitFor();
    await states.getByRole('link', { name: 'All 4', exact: true }).waitFor();
    await page.getByRole('combobox', { name: 'Group' }).selectOption('billing');
    await page.getByText('All 2 that match').waitFor();
    await states.getByRole('link', { name: 'All 2', exact: true }).waitFor();
    const groups = page.getByLabel('Groups of late-groups').locator('tbody tr');
    // The group that is furthest behind comes first.
    assert.deepEqual(await groups.locator('td:nth-child(-n + 2)').allInnerTexts(), [
      ...['audit', '4'],
      ...['billing', '2'],
      ...['shipping', '1'],
    ]);
    await groups.getByRole('link', { name: 'shipping' }).click();
    await page.getByText('The only match').waitFor();
    await page.locator('table.rows tbody a').click();
    await page.getByText('Why is it not delivered now?').waitFor();
  });

  it('does not call a stream empty if the user may not read which other groups it has', async () => {
    await opened().request('PUT', '/q/events/unread-groups?groups=third', { body: '1' });
    const page = await opened().page('#/users', { isAlone: true });
    await page.route('**/console/session', async (route) => {
      const response = await route.fetch();
      const rights = { events: ['browse'] };
      await route.fulfill({ response, json: { ...((await response.json()) as object), rights } });
    });
    await page.goto(`${opened().server.url}/console/#/q/events/unread-groups`);
    await page.reload();
    await page.getByText('Of a stream, only the first group is listed').waitFor();
    assert.equal(await page.getByText('The queue is empty').count(), 0);
    await page.goto(`${opened().server.url}/console/#/q/events/unread-groups?group=third`);
    await page.locator('table.rows tbody a').waitFor();
    await opened().request('DELETE', '/q/events/unread-groups?force=1');
  });

  it('says how many elements are gone since they were listed', async () => {
    for (const body of ['1', '2', '3']) await opened().insert('N', 'drained', body);
    const page = await opened().samePage('#/q/N/drained');
    await page.getByText('All 3 that match').waitFor();
    for (const _ of [1, 2]) await (await opened().request('GET', '/q/N/drained')).arrayBuffer();
    await page.getByRole('button', { name: '2 gone: show' }).waitFor();
    await opened().insert('N', 'drained', '4');
    await page.getByRole('button', { name: '1 new, 2 gone: show' }).click();
    await page.getByText('All 2 that match').waitFor();
    assert.equal(await page.getByRole('button', { name: /: show$/ }).count(), 0);
    await opened().request('DELETE', '/q/N/drained?force=1');
  });

  it('counts only those new elements of a stream that the listed group gets', async () => {
    await opened().request('PUT', '/q/events/group-news?groups=audit', { body: '1' });
    const page = await opened().page('#/q/events/group-news', { isAlone: true });
    await page.clock.install();
    await page.reload();
    await page.getByText('The only match').waitFor();
    await opened().request('POST', '/q/events/group-news/elements', {
      headers: { 'content-type': 'application/x-ndjson' },
      body: '{"text":"2","groups":["billing"]}\n{"text":"3","groups":["audit","billing"]}\n',
    });
    const news = page.getByRole('button', { name: /new: show$/ });
    // If the page was still reading, it reads again after as long, without help.
    await page.clock.fastForward(10_000);
    assert.equal(await news.innerText(), '1 new: show');
    await news.click();
    await page.getByText('All 2 that match').waitFor();
  });

  it('inserts into the named groups of a stream, and clones an element only for the group that is shown', async () => {
    const page = await opened().samePage('#/q/events/named-groups');
    const dialog = page.getByRole('dialog');
    const insert = async (): Promise<void> => {
      await dialog.getByRole('button', { name: 'Insert' }).click();
      await dialog.waitFor({ state: 'detached' });
    };
    const elements = async (group: string): Promise<readonly { readonly id: string }[]> => {
      const list = await opened().request('GET', `/q/events/named-groups/elements?group=${group}`);
      return ((await list.json()) as { elements: { id: string }[] }).elements;
    };
    await page.getByRole('button', { name: 'Insert' }).click();
    await dialog.getByLabel('Body').fill('"first"');
    await dialog.getByLabel('Groups').fill('audit, billing');
    await insert();
    const [first] = await elements('audit');
    await page.goto(`${opened().server.url}/console/#/q/events/named-groups/e/${first?.id}?group=audit`);
    await page.getByRole('button', { name: 'Clone and edit …' }).click();
    assert.equal(await dialog.getByLabel('Groups').inputValue(), 'audit');
    await insert();
    const counts = await Promise.all(['audit', 'billing', 'shipping'].map(elements));
    assert.deepEqual(
      counts.map(({ length }) => length),
      [2, 1, 0],
    );
  });

  it('says where the mistake in the selector of a search is', async () => {
    await opened().insert('N', 'searched', '1');
    const page = await opened().samePage('#/q/N/searched?search=env => (');
    await page.getByText('Line 1, column 9: The selector ends too soon.', { exact: true }).waitFor();
  });

  it('names the group that an element waits for, even if the stream has many', async () => {
    const all = Array.from({ length: 12 }, (_, i) => `g${String(i).padStart(2, '0')}`);
    await opened().request('PUT', `/q/events/crowded?groups=${all.join(',')}`, { body: '1' });
    const put = await opened().request('PUT', '/q/events/crowded?groups=g11', { body: '2' });
    const { id } = (await put.json()) as { id: string };
    const page = await opened().samePage(`#/q/events/crowded/e/${id}?group=g00`);
    await page.getByLabel('Groups that it waits for').getByRole('link', { name: 'g11' }).waitFor();
  });

  it('sends no request for a queue whose name browsers remove from paths, since it would take an element of another queue', async () => {
    await insertRaw(opened().server.url, '/q/N/.', '1');
    const others = ['status', 'elements', 'options', 'history', 'paused', 'export'];
    for (const queue of others) await opened().insert('N', queue, '1');
    const page = await opened().page('#/q/N/.');
    await page.getByText('browsers remove it from paths').first().waitFor();
    await page.getByRole('button', { name: 'More of .' }).click();
    await page.getByRole('button', { name: 'Import …' }).waitFor();
    assert.equal(await page.getByRole('link', { name: 'Export' }).count(), 0);
    await page.goto(`${opened().server.url}/console/#/q/N/./options`);
    await page.getByText('browsers remove it from paths').first().waitFor();
    for (const queue of others) {
      const status = await opened().request('GET', `/q/N/${queue}/status`);
      assert.equal(((await status.json()) as { totalSize: number }).totalSize, 1, queue);
    }
  });

  it('shows past and future events of an element', async () => {
    await opened().insert('jobs', 'timed', '1', { 'x-ks-hdr-a': 'b' });
    await opened().fail('jobs', 'timed', 'smtp 421');
    const taken = await opened().request(
      'GET',
      '/q/jobs/__deadletter__/elements?where=env.msg.hdrs["x-dl-reason"]==="smtp 421"',
    );
    const { elements } = (await taken.json()) as { elements: { id: string }[] };
    const page = await opened().samePage(`#/q/jobs/__deadletter__/e/${elements[0]?.id}`);
    const timeline = page.getByLabel('Timeline').locator('li');
    await timeline.filter({ hasText: 'Inserted' }).waitFor();
    await timeline
      .filter({ hasText: 'Became a dead letter of timed jobs after 1 failed try: smtp 421' })
      .waitFor();
    await opened().request('PUT', '/q/N/timed?ttl=600', { body: '2' });
    const held = await opened().request('GET', '/q/N/timed?reserve=true&tid=w-1&lease=300000');
    await held.arrayBuffer();
    await page.goto(`${opened().server.url}/console/#/q/N/timed/e/${held.headers.get('x-ks-id')}`);
    await timeline.filter({ hasText: 'Reserved by admin, tid w-1' }).waitFor();
    const lines = await timeline.locator('span:last-child').allInnerTexts();
    assert.deepEqual(lines, [
      'Inserted',
      'Reserved by admin, tid w-1',
      'The lease ends, unless it is extended or settled',
      'Expires: no longer delivered',
    ]);
  });

  it('shows examples that run without changes, except that they need the password', async (t) => {
    const page = await opened().samePage(`#/q/N/${encodeURIComponent("it's tried")}/try`);
    const example = async (title: string): Promise<string> => {
      const card = page.locator('section', { has: page.getByRole('heading', { name: title, exact: true }) });
      return (await card.locator('pre').innerText())
        .replace('…', ADMIN.password)
        .replace(/'admin'(?= -)/, `'admin:${ADMIN.password}'`);
    };
    await run('sh', ['-c', await example('Insert, with curl')]);
    assert.match(
      await run('sh', ['-c', await example('Get the next element, waiting 30 s')]),
      /"hello": "world"/,
    );
    assert.match(
      await runPython(['-c', await example('Insert and reserve, with Python')]),
      /'hello': 'world'/,
    );
    const folder = await mkdtemp(path.join(tmpdir(), 'quayside-try-'));
    t.after(() => rm(folder, { recursive: true, force: true }));
    await linkClient(folder);
    await writeFile(path.join(folder, 'example.mjs'), await example('Insert and process, with TypeScript'));
    const worker = spawnOwned(process.execPath, ['example.mjs'], {
      cwd: folder,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const ended = once(worker, 'close');
    try {
      assert.ok(worker.stdout);
      let printed = '';
      for await (const chunk of worker.stdout) {
        printed += chunk;
        if (printed.includes("{ hello: 'world' }")) break;
      }
      assert.match(printed, /{ hello: 'world' }/);
    } finally {
      worker.kill();
      await ended;
    }
    await opened().request('DELETE', "/q/N/it's%20tried?force=1");
  });

  it('says what the end of a lease does to an element, by the options of its queue', async () => {
    const page = await opened().samePage('#/');
    const why = page.getByLabel('Why it is not delivered now');
    for (const [ns, options, effect] of [
      ['N', null, 'then a try is counted, and it becomes ready again.'],
      ['jobs', null, 'then its last try is counted, and it becomes a dead letter in __deadletter__.'],
      [
        'jobs',
        { deadLetter: { maxTries: 9 }, retryDelay: { first: 90 } },
        'becomes ready again 1 min 30 s later.',
      ],
    ] as const) {
      const queue = `/q/${ns}/leased`;
      if (options !== null)
        await opened().request('PUT', `${queue}/options`, { body: JSON.stringify(options) });
      await opened().insert(ns, 'leased', '1');
      const held = await opened().request('GET', `${queue}?reserve=true&lease=300000`);
      await held.arrayBuffer();
      await page.goto(`${opened().server.url}/console/#${queue}/e/${held.headers.get('x-ks-id')}`);
      await why.getByText(effect).waitFor();
    }
    await opened().request('DELETE', '/q/jobs/leased?force=1');
    await opened().request('DELETE', '/q/N/leased?force=1');
  });

  it('reads an element again when it has matured and when its lease has ended', async () => {
    const page = await opened().samePage('#/');
    const why = page.getByLabel('Why it is not delivered now');
    const ready = why.locator('p:not([data-before])', {
      hasText: 'It is ready, and no consumer is waiting.',
    });
    /**
     * Waits until the page shows a state and then its end. On a busy machine the state may end before it is shown: then
     * it is caused again and lasts longer.
     */
    const seeStateEnd = async (
      state: Locator,
      causeState: (seconds: number) => Promise<boolean>,
    ): Promise<void> => {
      for (let seconds = 1; ; seconds *= 2) {
        if (!(await causeState(seconds))) continue;
        await state.or(ready).waitFor();
        if ((await state.count()) > 0) break;
      }
      await ready.waitFor();
    };
    await seeStateEnd(why.getByText('It matures in'), async (seconds) => {
      const put = await opened().request('PUT', `/q/N/ripe-${seconds}?delay=${seconds}`, { body: '1' });
      const { id } = (await put.json()) as { id: string };
      await page.goto(`${opened().server.url}/console/#/q/N/ripe-${seconds}/e/${id}`);
      await page.getByRole('heading', { name: id }).waitFor();
      return true;
    });
    const queue = /q\/N\/(ripe-\d+)/.exec(page.url())?.[1];
    await seeStateEnd(why.getByText('The lease ends in'), async (seconds) => {
      const taken = `/q/N/${queue}?reserve=true&lease=${seconds * 1000}`;
      await (await opened().request('GET', taken)).arrayBuffer();
      // The old sentence stays until the page has read the element; the new one is in another paragraph.
      await why.locator('p').evaluate((one) => one.setAttribute('data-before', ''));
      const read = page.waitForResponse('**/elements/*');
      await page.getByRole('button', { name: 'Reload' }).click();
      return (await read).headers()['x-ks-state'] === 'reserved';
    });
  });

  it('says how many consumers wait if it lists only the first of them, and finds the others by a filter', async () => {
    let waiting = 0;
    const wait = (queue: string): void => {
      const end = (): void => {
        waiting -= 1;
      };
      waiting += 1;
      opened().request('GET', `/q/N/${queue}?tid=crowd`).then(end, end);
    };
    for (let i = 0; i < 201; i += 1) wait('crowded');
    const page = await opened().page('#/clients');
    await page.getByText(/^the first 200 of 20\d consumers$/).waitFor();
    wait('after-all');
    await until(async () => {
      const response = await opened().request('GET', '/q/N/after-all/consumers');
      return ((await response.json()) as unknown[]).length === 1;
    });
    const rows = page.getByLabel('Waiting now').locator('tbody tr');
    const consumer = { ns: 'N', queue: 'crowded', group: null, kind: 'take', window: 10, unacknowledged: 1 };
    const session = {
      id: 's',
      protocol: 'amqp',
      user: 'admin',
      address: '',
      since: new Date().toISOString(),
    };
    const consumers = [...Array.from({ length: 29 }, () => consumer), { ...consumer, queue: 'after-all' }];
    const sessions = [{ node: 'n', ...session, consumers }];
    const json = { node: 'n', missing: [], total: 1, sessions };
    await page.route('**/sessions?*', (route) => route.fulfill({ json }));
    await page.getByLabel('Filter clients').fill('AFTER admin');
    await page.getByText('and 10 more').waitFor();
    // Those that the filter names come first.
    await page
      .getByLabel('Sessions of STOMP and AMQP')
      .last()
      .getByRole('link', { name: 'after-all' })
      .waitFor();
    await rows.filter({ hasText: 'after-all' }).waitFor();
    assert.equal(await rows.count(), 1);
    await page.getByLabel('Filter clients').fill('nowhere');
    await page.getByRole('button', { name: 'Show all clients' }).first().click();
    await page.getByText(/^the first 200 of 20\d consumers$/).waitFor();
    await page.goto(`${opened().server.url}/console/#/q/N/crowded/consumers`);
    await page.getByText('the first 200 of 201 consumers').waitFor();
    assert.equal(await rows.count(), 200);
    await page.getByRole('link', { name: 'All clients of this queue' }).click();
    await page.getByText(/^the first 200 of 20\d consumers$/).waitFor();
    assert.equal(await page.getByLabel('Filter clients').inputValue(), 'N crowded');
    // Loops of exchanges wait as well, so that one of these may come after the first cancel.
    await until(async () => {
      for (const queue of ['crowded', 'after-all'])
        await opened().request('DELETE', `/q/N/${queue}/consumer/crowd`);
      return waiting === 0;
    });
  });

  it('shows the exact values of options', async () => {
    await opened().insert('N', 'exact', '1');
    await opened().request('PUT', '/q/N/exact/options', {
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ lease: 630, ttl: 86_400, retryDelay: { first: 0.25, max: 90 } }),
    });
    const page = await opened().samePage('#/q/N/exact/options');
    await page.getByText('10 min (630 s)', { exact: true }).waitFor();
    await page.getByText('1 d', { exact: true }).waitFor();
    await page.getByText(/^0\.25 s, .*up to 1 min 30 s \(90 s\)/).waitFor();
  });

  it('stores a view in addition to those that another tab has stored', async () => {
    const page = await opened().page('#/queues');
    const other = await page.context().newPage();
    await other.goto(`${opened().server.url}/console/#/queues`);
    for (const [tab, name] of [
      [page, 'one'],
      [other, 'two'],
    ] as const) {
      await tab.getByRole('button', { name: 'Saved views' }).click();
      // The browser tells the other tab a moment later.
      if (tab === other) await tab.locator('.saved', { hasText: 'one' }).waitFor({ state: 'attached' });
      await tab.getByLabel('Name of this view').fill(name);
      await tab.getByRole('button', { name: 'Save', exact: true }).click();
      await tab.locator('.saved', { hasText: name }).waitFor({ state: 'attached' });
    }
    assert.deepEqual(await other.locator('.saved a').allTextContents(), ['one', 'two']);
    await page.locator('.saved', { hasText: 'two' }).waitFor({ state: 'attached' });
  });

  it('shows an element only for the group in the address', async () => {
    await opened().insert('events', 'grouped', '1');
    const taken = await opened().request('GET', '/q/events/grouped?group=billing');
    await taken.arrayBuffer();
    const address = `#/q/events/grouped/e/${taken.headers.get('x-ks-id')}?group=`;
    const page = await opened().page(`${address}shipping`);
    await page.getByText('Why is it not delivered now?').waitFor();
    await page.evaluate(`location.hash = '${address}billing'`);
    await page.getByText('Group billing has finished it').waitFor();
    assert.equal(await page.getByText('Why is it not delivered now?').count(), 0);
  });

  it('counts only the consumers of its group as waiting for an element of a stream', async () => {
    const aborted = new AbortController();
    // It waits for more elements than there are, so the element stays ready.
    const waits = opened()
      .request('POST', '/q/events/two-groups/take', {
        body: JSON.stringify({ group: 'billing', min: 2, count: 2, to: 600_000, tid: 'waiter' }),
        signal: aborted.signal,
      })
      .catch(() => {});
    await until(async () => {
      const consumers = await opened().request('GET', '/q/events/two-groups/consumers');
      return ((await consumers.json()) as unknown[]).length === 1;
    });
    const put = await opened().request('PUT', '/q/events/two-groups', { body: '1' });
    const { id } = (await put.json()) as { id: string };
    const page = await opened().samePage(`#/q/events/two-groups/e/${id}?group=shipping`);
    await page.getByText('It is ready, and no consumer is waiting.').waitFor();
    await page.goto(`${opened().server.url}/console/#/q/events/two-groups/e/${id}?group=billing`);
    await page.getByText('It is ready, and 1 consumer waits').waitFor();
    aborted.abort();
    await waits;
    await opened().request('DELETE', '/q/events/two-groups?force=1');
  });

  /** Opens the page of a dead letter and its redrive dialog. */
  async function openRedrive(queue: string, reason: string): Promise<{ page: Page; id: string }> {
    await opened().insert('jobs', queue, '1');
    await opened().fail('jobs', queue, reason);
    const list = await opened().request(
      'GET',
      `/q/jobs/__deadletter__/elements?where=env.msg.hdrs["x-dl-reason"]==="${reason}"`,
    );
    const { elements } = (await list.json()) as { elements: { id: string }[] };
    const id = elements[0]?.id ?? '';
    const page = await opened().page(`#/q/jobs/__deadletter__/e/${id}`);
    await page.getByRole('button', { name: 'Redrive …' }).click();
    const confirm = page.getByRole('button', {
      name: 'Redrive 1 element of __deadletter__',
      disabled: false,
    });
    await confirm.waitFor();
    return { page, id };
  }

  it('shows a dead letter as such until its redrive has reached it', async () => {
    const { page, id } = await openRedrive('waited-for', 'smtp 455');
    const at = '2026-11-24T12:00:00.000Z';
    const json = {
      id: 'slow',
      action: 'redrive',
      source: { ns: 'jobs', queue: '__deadletter__' },
      where: { ids: [id] },
      dryRun: false,
      state: 'running',
      ...{ seen: 0, matched: 0, changed: 0, failed: 0, estimate: 1 },
      samples: [],
      by: ADMIN.user,
      startedAt: at,
      endedAt: null,
      error: null,
    };
    await page.route('**/operations', (route) => route.fulfill({ status: 202, json }));
    await page.route('**/operations/slow', (route) => route.fulfill({ json }));
    await page.getByRole('button', { name: 'Redrive 1 element of __deadletter__' }).click();
    await page.getByText('0 elements of __deadletter__ redriven').waitFor();
    await page.getByRole('dialog').getByRole('button', { name: 'Close' }).last().click();
    const seen = page.getByLabel('What happened to it').locator('li');
    await seen.filter({ hasText: 'It is still a dead letter: smtp 455' }).waitFor();
    await opened().request('DELETE', `/q/jobs/__deadletter__/${id}`);
  });

  it('stays at a dead letter that a redrive has not changed', async () => {
    const { page, id } = await openRedrive('not-redriven', 'smtp 456');
    await opened().request('DELETE', `/q/jobs/__deadletter__/${id}`);
    await page.getByRole('button', { name: 'Redrive 1 element of __deadletter__' }).click();
    await page.getByText('0 elements of __deadletter__ redriven').waitFor();
    await page.getByRole('dialog').getByText('done').waitFor();
    await page.getByRole('dialog').getByRole('button', { name: 'Close' }).last().click();
    await page.getByRole('alert').filter({ hasText: 'It was consumed, moved or removed' }).waitFor();
  });

  it('tells users who may not see bodies that an element is gone', async () => {
    const put = await opened().request('PUT', '/q/N/gone-unseen', { body: '1' });
    const { id } = (await put.json()) as { id: string };
    const page = await opened().page(`#/q/N/gone-unseen/e/${id}`, { who: MASKED });
    await page.getByText('Bodies are hidden from you in N.').waitFor();
    await (await opened().request('GET', '/q/N/gone-unseen')).arrayBuffer();
    const gone = page.getByRole('alert').filter({ hasText: 'It was consumed, moved or removed' });
    for (const reload of [() => page.getByRole('button', { name: 'Reload' }).click(), () => page.reload()]) {
      await reload();
      await gone.waitFor();
      assert.equal(await page.getByText('Why is it not delivered now?').count(), 0);
      assert.equal(await page.getByRole('button', { name: 'More actions' }).count(), 0);
    }
  });

  it('follows a dead letter after its redrive', async () => {
    const { page } = await openRedrive('retried', 'smtp 451');
    await page.getByRole('button', { name: 'Redrive 1 element of __deadletter__' }).click();
    await page.getByText('1 element of __deadletter__ redriven').waitFor();
    await page.getByRole('dialog').getByRole('button', { name: 'Close' }).last().click();
    const seen = page.getByLabel('What happened to it').locator('li');
    await seen.filter({ hasText: 'It is ready in retried' }).waitFor();
    await opened().fail('jobs', 'retried', 'smtp 452');
    await seen.filter({ hasText: 'It is a dead letter again: smtp 452' }).waitFor();
    const again = (await seen.locator('a').last().getAttribute('href')) ?? '';
    await opened().request('DELETE', `/q/jobs/__deadletter__/${again.split('/').at(-1)}`);
    await seen.filter({ hasText: 'and not a dead letter' }).waitFor();
  });

  it('does not report an element as gone if there are groups in which it was not searched', async () => {
    const groups = Array.from({ length: 11 }, (_, i) => `g${i}`).join(',');
    await opened().request('PUT', `/q/events/many-groups?groups=${groups}`, { body: '1' });
    const page = await opened().samePage('#/q/events/many-groups/watch/none?dead=none');
    await page.getByText('It is not among the first').waitFor();
  });

  it('does not report an element as gone if not all dead letters were searched', async () => {
    const page = await opened().page('#/users');
    const json = { elements: [], next: 'more', looked: 10_000, failed: 0, error: null };
    await page.route('**/__deadletter__/elements?*', (route) => route.fulfill({ json }));
    await page.goto(`${opened().server.url}/console/#/q/jobs/orders/watch/none?dead=__deadletter__`);
    await page
      .getByText('It is not among the first 50,000 elements of orders, nor of the dead letters')
      .waitFor();
  });

  it('searches less often for a redriven element if the server examines many others for it', async () => {
    const page = await opened().page('#/users');
    const json = { elements: [], next: null, looked: 3_000, failed: 0, error: null };
    await page.route('**/elements?*', (route) => route.fulfill({ json }));
    await page.goto(`${opened().server.url}/console/#/q/jobs/orders/watch/none?dead=__deadletter__`);
    await page.getByText('checked every 30 s').waitFor();
  });

  it('says which groups of a stream an element still waits for after one has finished it', async () => {
    const put = await opened().request('PUT', '/q/events/signups', { body: '1' });
    const { id } = (await put.json()) as { id: string };
    await (await opened().request('GET', '/q/events/signups?group=billing')).arrayBuffer();
    const page = await opened().samePage(`#/q/events/signups/e/${id}?group=billing`);
    const groups = page.getByLabel('Groups that it waits for');
    await groups.getByRole('heading', { name: 'Group billing has finished it' }).waitFor();
    await groups.getByRole('link', { name: 'shipping' }).click();
    await page.getByText('Why is it not delivered now?').waitFor();
  });

  it('remembers chosen columns and saved views of the list of queues', async () => {
    await opened().insert('N', 'viewed', '1');
    const page = await opened().page('#/queues?filter=viewed&sort=-ready');
    await page.getByRole('link', { name: 'viewed' }).waitFor();
    const heads = page.locator('table.rows thead th');
    assert.equal(await heads.filter({ hasText: /^Depth$/ }).count(), 0);
    await page.getByRole('button', { name: 'Columns' }).click();
    await page.getByLabel('Depth', { exact: true }).check();
    await heads.filter({ hasText: /^Depth$/ }).waitFor();
    await page.keyboard.press('Escape');
    await page.getByRole('button', { name: 'Saved views' }).click();
    await page.getByLabel('Name of this view').fill('Mine');
    await page.getByRole('button', { name: 'Save', exact: true }).click();
    await page.goto(`${opened().server.url}/console/#/queues`);
    await page.reload();
    await heads.filter({ hasText: /^Depth$/ }).waitFor();
    await page.getByRole('button', { name: 'Saved views' }).click();
    await page.getByRole('link', { name: 'Mine' }).click();
    await page.waitForURL('**/#/queues?filter=viewed&sort=-ready');
    await page.getByRole('link', { name: 'viewed' }).waitFor();
    await page.getByRole('button', { name: 'Saved views' }).click();
    await page.getByRole('button', { name: 'Remove view Mine' }).click();
    assert.equal(await page.getByRole('link', { name: 'Mine' }).count(), 0);
  });

  it('exports a queue, and imports its file into another without repeating elements', async () => {
    for (const body of ['"a"', '"b"', '"c"']) await opened().insert('N', 'exported', body);
    const page = await opened().samePage('#/q/N/exported');
    await page.getByRole('button', { name: 'More of exported' }).click();
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('link', { name: 'Export' }).click(),
    ]);
    assert.equal(download.suggestedFilename(), 'N-exported.ndjson');
    const lines = await readFile(await download.path(), 'utf8');
    assert.equal(lines.trim().split('\n').length, 3);
    await page.goto(`${opened().server.url}/console/#/q/N/imported`);
    await page.getByRole('button', { name: 'More of imported' }).click();
    await page.getByRole('button', { name: 'Import …' }).click();
    const dialog = page.getByRole('dialog', { name: 'Import into imported' });
    const send = async (text: string): Promise<void> => {
      const buffer = Buffer.from(text);
      await dialog.getByLabel('File').setInputFiles({ name: 'q.ndjson', mimeType: 'text/plain', buffer });
      await dialog.getByRole('button', { name: 'Import into imported' }).click();
    };
    await send(`${lines}{"id":7}\n`);
    await dialog.getByRole('alert').filter({ hasText: 'line 4' }).waitFor();
    await send(lines);
    await dialog.getByText('3 elements imported', { exact: true }).waitFor();
    assert.equal(await opened().size('N', 'imported'), 3);
    await send(lines);
    await dialog.getByText('0 elements imported; 3 elements skipped').waitFor();
  });

  it('reports an import as failed if a proxy answers it with a page of its own', async () => {
    const page = await opened().page('#/q/N/not-imported');
    await page.route('**/import', (route) => route.fulfill({ contentType: 'text/html', body: '<p>Sign in' }));
    await page.getByRole('button', { name: 'More of not-imported' }).click();
    await page.getByRole('button', { name: 'Import …' }).click();
    const dialog = page.getByRole('dialog');
    const file = { name: 'q.ndjson', mimeType: 'text/plain', buffer: Buffer.from('{}') };
    await dialog.getByLabel('File').setInputFiles(file);
    await dialog.getByRole('button', { name: 'Import into not-imported' }).click();
    await dialog.getByRole('alert').filter({ hasText: 'JSON' }).waitFor();
  });

  it('purges ready elements after naming their number, and returns the focus if the user cancels that', async () => {
    for (const body of ['1', '2', '3']) await opened().insert('N', 'purged', body);
    const taken = await opened().request('GET', '/q/N/purged?reserve=true');
    await taken.arrayBuffer();
    const page = await opened().samePage('#/q/N/purged');
    await page.getByText('All 3 that match').waitFor();
    const more = page.getByRole('button', { name: 'More of purged' });
    await more.click();
    await page.getByRole('button', { name: 'Purge …' }).click();
    await page.getByRole('button', { name: 'Remove 2 elements of purged' }).waitFor();
    await page.keyboard.press('Escape');
    await more.and(page.locator(':focus')).waitFor();
    await more.click();
    await page.getByRole('button', { name: 'Purge …' }).click();
    await page.getByRole('button', { name: 'Remove 2 elements of purged' }).click();
    await page.getByText('2 elements of purged removed').waitFor();
    await page.getByText('The only match').waitFor();
  });

  it('deletes a queue on which calls wait only after a warning', async () => {
    await opened().insert('N', 'waited-on', '1');
    await (await opened().request('GET', '/q/N/waited-on')).arrayBuffer();
    const waiting = opened()
      .request('GET', '/q/N/waited-on?to=120000')
      .then(
        () => '',
        (error: Error) => error.message,
      );
    const page = await opened().page('#/q/N/waited-on/consumers', { isFailing: true });
    await page.getByText('1 consumer', { exact: true }).waitFor();
    await page.getByRole('button', { name: 'More of waited-on' }).click();
    await page.getByRole('button', { name: 'Delete the queue …' }).click();
    await page.getByRole('button', { name: 'Delete waited-on and 0 elements' }).click();
    await page.getByRole('dialog').getByRole('alert').waitFor();
    await page.getByRole('button', { name: 'Delete waited-on and 0 elements anyway' }).click();
    await page.getByText('waited-on is deleted').waitFor();
    assert.match(await waiting, /410/);
  });

  it('says that the server has not paused a queue yet, and shows when it has, even while refreshing is paused', async () => {
    await opened().insert('N', 'unrefreshed', '1');
    const page = await opened().page('#/q/N/unrefreshed');
    await page.getByRole('button', { name: 'Refresh: Live' }).click();
    await page.getByRole('button', { name: 'Paused', exact: true }).click();
    const { promise: mayPause, resolve: pause } = Promise.withResolvers<void>();
    await page.route('**/unrefreshed/pause', (route) => mayPause.then(() => route.continue()));
    await page.getByRole('button', { name: 'Pause', exact: true }).click();
    await page.getByText('Waiting for the server').waitFor();
    pause();
    await page.getByRole('button', { name: 'Resume' }).waitFor();
    await page.getByText('Waiting for the server').waitFor({ state: 'detached' });
    await opened().request('PUT', '/q/N/unread?delay=900', { body: '1' });
    await page.goto(`${opened().server.url}/console/#/q/N/unread`);
    await page
      .locator('.facts > div', { hasText: 'Next mature' })
      .getByText(/^in 1[45] min/)
      .waitFor();
    await page.getByRole('button', { name: 'Pause', exact: true }).click();
    await page.getByRole('button', { name: 'Resume' }).waitFor();
  });

  it('lets users who may not read a queue resume and pause it, whatever its state', async () => {
    await opened().insert('N', 'unseen-pause', '1');
    await opened().request('POST', '/q/N/unseen-pause/pause');
    const page = await opened().page('#/q/N/unseen-pause', { who: MASKED });
    const pause = page.getByRole('button', { name: 'Pause', exact: true });
    const resume = page.getByRole('button', { name: 'Resume' });
    await pause.waitFor();
    await resume.click();
    await page.getByText('unseen-pause runs again').waitFor();
    await resume.waitFor({ state: 'detached' });
    const status = await opened().request('GET', '/q/N/unseen-pause/status');
    assert.equal(((await status.json()) as { paused: boolean }).paused, false);
    await pause.click();
    await pause.waitFor({ state: 'detached' });
    await opened().request('POST', '/q/N/unseen-pause/resume');
  });

  it('finds the clients of a queue whose name has more words than a filter may have', async () => {
    const queue = Array.from({ length: 20 }, (_, i) => `w${i}`).join(' ');
    const path = `/q/N/${encodeURIComponent(queue)}`;
    const waiting = opened()
      .request('GET', `${path}?tid=wordy`)
      .catch(() => {});
    const page = await opened().page(`#${path}/consumers`);
    const row = page.getByLabel('Waiting now').locator('tbody tr');
    await row.getByText('wordy').waitFor();
    await page.getByRole('link', { name: 'All clients of this queue' }).click();
    await row.getByRole('link', { name: queue }).waitFor();
    await opened().request('DELETE', `${path}/consumer/wordy`);
    await waiting;
  });

  it('moves elements to a namespace in which the user may write, although not in their own', async () => {
    await opened().insert('N', 'movable', '1');
    const page = await opened().page('#/q/N/movable', { who: MOVER });
    await page.getByRole('button', { name: 'Move …' }).click();
    await page.getByLabel('To queue').fill('moved-here');
    await page
      .getByRole('button', { name: 'Move 1 element of movable to moved-here', disabled: false })
      .click();
    await page.getByText('1 element of movable moved to moved-here of jobs').waitFor();
    assert.equal(await opened().size('jobs', 'moved-here'), 1);
    await opened().request('DELETE', '/q/jobs/moved-here?force=1');
    // Elements may leave a namespace only for users who may read it.
    await page.route('**/console/session', async (route) => {
      const response = await route.fetch();
      const rights = { N: ['browse', 'manage'], jobs: ['write'] };
      await route.fulfill({ response, json: { ...((await response.json()) as object), rights } });
    });
    await opened().insert('N', 'movable', '2');
    await page.reload();
    await page.getByRole('button', { name: 'Delay …' }).waitFor();
    assert.equal(await page.getByRole('button', { name: 'Move …' }).count(), 0);
  });

  it('starts an action once, however often its button is pressed, and names the target queue', async () => {
    await opened().insert('N', 'pressed', '1');
    const page = await opened().page('#/q/N/pressed');
    await page.getByRole('button', { name: 'Copy …' }).click();
    await page.getByLabel('To queue').fill('pressed-copy');
    await page.getByText('This queue does not exist yet').waitFor();
    const name = 'Copy 1 element of pressed to pressed-copy';
    // Wait before the route is set, which would hold the count as well.
    await page.getByRole('button', { name, disabled: false }).waitFor();
    const { promise: mayStart, resolve: start } = Promise.withResolvers<void>();
    await page.route('**/operations', (route) => mayStart.then(() => route.continue()));
    await page.getByRole('button', { name, disabled: false }).click();
    await page.getByRole('button', { name, disabled: true }).waitFor();
    start();
    await page.getByText('1 element of pressed copied').waitFor();
    assert.equal(await opened().size('N', 'pressed-copy'), 1);
  });
}
