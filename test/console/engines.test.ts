import assert from 'node:assert/strict';
import { after, afterEach, before, describe, it } from 'node:test';
import { eventually } from '../cluster/nodes.ts';
import { freshSchema, sharedPostgres } from '../engines/postgres.ts';
import { freshPrefix, sharedRedis } from '../engines/redis.ts';
import { QueueClient } from '../support/http-client.ts';
import { withParameter } from '../support/run-servers.ts';
import { ServerProcess } from '../support/server-process.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { ADMIN, configOf, OpenedConsole } from './opened.ts';

/** The pages of queues and dead letters depend on the engine, so that they are tested on Redis and PostgreSQL, too. */
describe('The console in a browser, on engines with servers', () => {
  let opened: OpenedConsole;
  let redisPort: number;
  /** In front of the engine of `lists`. */
  let proxy: TcpProxy;
  let namespaces: Readonly<Record<string, Readonly<Record<string, unknown>>>>;

  before(async () => {
    const [redis, postgres] = await Promise.all([sharedRedis(), sharedPostgres()]);
    const deadLetter = { maxTries: 1 };
    const throughProxy = new URL(redis);
    redisPort = Number(throughProxy.port);
    proxy = await TcpProxy.start(redisPort);
    throughProxy.port = String(proxy.port);
    namespaces = {
      redis: { url: withParameter(redis, 'prefix', freshPrefix()), deadLetter },
      lists: { url: withParameter(throughProxy.href, 'prefix', freshPrefix()), variant: 'list' },
      moving: { url: 'sqlite:moving.db' },
      moved: { url: withParameter(redis, 'prefix', freshPrefix()) },
      postgres: { url: withParameter(postgres, 'schema', freshSchema()), deadLetter },
    };
    opened = await OpenedConsole.open(namespaces);
  });

  afterEach((context) => opened.check(context));

  after(async () => {
    await opened?.close();
    await proxy?.stop();
  });

  it('shows the clients and the differing options of another node, cancels its calls, and reports if that node does not respond', async () => {
    const changed = { ...namespaces, redis: { ...namespaces.redis, lease: 77 } };
    await using other = await ServerProcess.start({ config: configOf(changed) });
    const client = new QueueClient({ url: other.url, credentials: `${ADMIN.user}:${ADMIN.password}` });
    const countNodes = async (): Promise<number> =>
      ((await (await opened.request('GET', '/nodes')).json()) as unknown[]).length;
    try {
      await eventually('two nodes', async () => (await countNodes()) === 2);
      const waiting = client.get('redis', 'waited', { to: 120_000, tid: 'far' });
      const page = await opened.page('#/clients');
      const row = page.getByLabel('Waiting now').locator('tbody tr').filter({ hasText: 'waited' });
      await row.getByText(`(${other.pid})`).waitFor();
      await row.getByRole('button', { name: 'Cancel' }).click();
      assert.equal((await waiting).status, 410);
      await page.getByText('No consumer is waiting').waitFor();
      const overview = await opened.page();
      await overview.getByText(/^lease of redis is 77.* on .*\(\d+\), and 120.* on this node\.$/).waitFor();
      const missing = page.getByText('did not respond: what it knows is not shown').first();
      // A node that was silent for 7 s is not listed any more, and a busy machine may take that long to request the
      // page: then the node is frozen again.
      await eventually('the note of a frozen node', async () => {
        process.kill(other.pid, 'SIGCONT');
        await eventually('two nodes', async () => (await countNodes()) === 2);
        process.kill(other.pid, 'SIGSTOP');
        await page.reload();
        return missing.waitFor({ timeout: 6_000 }).then(
          () => true,
          () => false,
        );
      });
    } finally {
      process.kill(other.pid, 'SIGCONT');
      client.close();
    }
  });

  it('names a node that does not respond by its host, although it has left', async () => {
    await using other = await ServerProcess.start({ config: configOf(namespaces) });
    const page = await opened.page('#/');
    const rows = page.locator('[aria-label=Nodes] tbody tr');
    await rows.filter({ hasText: `(${other.pid})` }).waitFor();
    const listed = (await (await opened.request('GET', '/nodes')).json()) as { id: string; pid: number }[];
    const left = listed.find(({ pid }) => pid === other.pid);
    const name = await rows
      .filter({ hasText: `(${left?.pid})` })
      .locator('td')
      .first()
      .innerText();
    await page.route('**/engines', async (route) => {
      const response = await route.fetch();
      await route.fulfill({ json: { ...((await response.json()) as object), missing: [left?.id] } });
    });
    await other.stop();
    await rows.nth(1).waitFor({ state: 'detached' });
    await page.evaluate("location.hash = '#/users'");
    await page.getByRole('heading', { name: 'Users', level: 1 }).waitFor();
    await page.evaluate("location.hash = '#/'");
    await page.getByText(`${name} did not respond`).waitFor();
  });

  it('offers no actions on elements of a Redis list and no pages of them, and says why', async () => {
    await opened.insert('lists', 'listed', '"a"', { 'x-ks-hdr-tenant': 'acme' });
    const page = await opened.page('#/q/lists/listed');
    await page.getByText('Elements of a Redis list cannot be changed individually').waitFor();
    assert.equal(await page.getByRole('checkbox').count(), 0);
    for (const name of ['Delete …', 'Move …']) {
      assert.equal(await page.getByRole('button', { name }).count(), 0, name);
    }
    await page.locator('table.rows tbody').getByText('"a"').waitFor();
    assert.equal(await page.locator('table.rows tbody a').count(), 0);
    await page.getByRole('button', { name: 'More of listed' }).click();
    await page.getByRole('button', { name: 'Purge …' }).click();
    await page.getByRole('button', { name: 'Remove 1 element of listed' }).click();
    await page.getByText('The queue is empty').waitFor();
  });

  it('shows a migration as far as consumers have emptied the old engine', async () => {
    for (const body of ['1', '2']) await opened.insert('moving', 'leaving', body);
    await opened.request('POST', '/operations', {
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ action: 'migrate', source: { ns: 'moving' }, to: { ns: 'moved' } }),
    });
    const page = await opened.page('#/operations');
    const row = page.locator('tbody tr').filter({ hasText: 'migrate' });
    for (const percent of [0, 50]) {
      await row.locator(`[role=progressbar][aria-valuenow="${percent}"]`).waitFor();
      await (await opened.request('GET', '/q/moving/leaving?to=5000')).arrayBuffer();
    }
    await row.getByText('done').waitFor();
  });

  it('keeps the rows of queues whose engine is away', async () => {
    await opened.insert('lists', 'kept', '"a"');
    const page = await opened.page('#/queues', { isFailing: true, isAlone: true });
    // The page is sorted again when it begins to follow the server, which must happen before the engine is away.
    const { promise: mayFollow, resolve: follow } = Promise.withResolvers<void>();
    await page.route(/\/events\?/, (route) => mayFollow.then(() => route.continue()));
    await page.reload();
    const row = page.getByRole('link', { name: 'kept', exact: true });
    await row.waitFor();
    await opened.insert('lists', 'kept-too', '"a"');
    follow();
    await page.getByRole('link', { name: 'kept-too', exact: true }).waitFor();
    proxy.targetPort = 9;
    proxy.reset();
    await page.getByRole('navigation', { name: 'Pages' }).getByText('1 alarm').waitFor();
    const missing = page.getByText(/^Queues of lists are missing, or shown as they were last read/);
    await missing.waitFor();
    await page.evaluate('new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))');
    assert.equal(await row.count(), 1);
    proxy.targetPort = redisPort;
    await missing.waitFor({ state: 'detached' });
    for (const queue of ['kept', 'kept-too']) await opened.request('DELETE', `/q/lists/${queue}?force=1`);
  });

  it('keeps the rows of queues that the stream has not sent yet when their engine is away', async () => {
    await opened.insert('lists', 'unsent', '"a"');
    const page = await opened.page('#/queues', { isFailing: true, isAlone: true });
    await page.addInitScript(`window.EventSource = class extends EventSource {
      addEventListener(type, listener) { if (type !== 'queues') super.addEventListener(type, listener); }
    }`);
    await page.reload();
    const row = page.getByRole('link', { name: 'unsent', exact: true });
    await row.waitFor();
    await page.getByRole('button', { name: 'Refresh: Live' }).waitFor();
    proxy.targetPort = 9;
    proxy.reset();
    const missing = page.getByText(/^Queues of lists are missing, or shown as they were last read/);
    await missing.waitFor();
    await page.evaluate('new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))');
    assert.equal(await row.count(), 1);
    proxy.targetPort = redisPort;
    await missing.waitFor({ state: 'detached' });
    await opened.request('DELETE', '/q/lists/unsent?force=1');
  });

  it('lists elements again when the engine is back', async () => {
    await opened.insert('lists', 'away', '"a"');
    const page = await opened.page('#/q/lists/away', { isFailing: true });
    const only = page.locator('table.rows tbody').getByText('"a"');
    await only.waitFor();
    proxy.targetPort = 9;
    proxy.reset();
    await page.getByRole('button', { name: 'Reload' }).click();
    await page.getByRole('alert').getByText('Try again when the engine is back').first().waitFor();
    await page.getByRole('navigation', { name: 'Pages' }).getByText('1 alarm').waitFor();
    assert.equal(await only.count(), 0);
    const list = await opened.page('#/queues', { isFailing: true });
    await list.getByText(/^Queues of lists are missing, or shown as they were last read/).waitFor();
    proxy.targetPort = redisPort;
    await only.waitFor();
    await opened.request('DELETE', '/q/lists/away?force=1');
  });

  for (const ns of ['redis', 'postgres'] as const) {
    it(`shows a queue by states, searches it and deletes the matches, on ${ns}`, async () => {
      for (const [i, tenant] of ['acme', 'acme', 'other', 'other', 'other'].entries())
        await opened.insert(ns, 'orders', JSON.stringify({ order: i }), { 'x-ks-hdr-tenant': tenant });
      const later = { body: '"later"', headers: { 'content-type': 'application/json' } };
      await opened.request('PUT', `/q/${ns}/orders?delay=900`, later);
      const taken = await opened.request('GET', `/q/${ns}/orders?reserve=true&tid=worker-7`);
      await taken.arrayBuffer();
      const page = await opened.page(`#/q/${ns}/orders`);
      const tabs = page.getByRole('navigation', { name: 'States' });
      for (const tab of ['All 6', 'Ready 4', 'Scheduled 1', 'Reserved 1'])
        await tabs.getByRole('link', { name: tab, exact: true }).waitFor();
      await tabs.getByRole('link', { name: 'Reserved' }).click();
      // Until then the elements of all states are shown.
      await page.getByText('The only match').waitFor();
      await page.getByLabel('Elements of orders').locator('tbody a').click();
      await page.getByText('It is reserved by admin, tid worker-7').waitFor();
      await page.goto(`${opened.server.url}/console/#/q/${ns}/orders?state=ready`);
      await page.getByLabel('Search elements').fill('env.msg.hdrs.tenant === "other"');
      await page.getByRole('button', { name: 'Search', exact: true }).click();
      await page.getByText('All 3 that match').waitFor();
      await page.getByRole('button', { name: 'Delete …' }).click();
      await page.getByRole('button', { name: 'Delete 3 elements of orders' }).click();
      await page.getByText('3 elements of orders deleted').waitFor();
      assert.equal(await opened.size(ns, 'orders'), 3);
    });

    it(`redrives the dead letters of one reason, on ${ns}`, async () => {
      for (const reason of ['smtp 550', 'smtp 550', 'no route']) {
        await opened.insert(ns, 'mails', '1');
        await opened.fail(ns, 'mails', reason);
      }
      const page = await opened.page('#/dead-letters');
      const card = page.locator('section.card').filter({ hasText: ns });
      await card.getByRole('button', { name: 'Redrive smtp 550' }).click();
      await page.getByText('2 elements match').waitFor();
      await page.getByRole('button', { name: 'Redrive 2 elements of __deadletter__' }).click();
      await page.getByText('2 elements of __deadletter__ redriven').waitFor();
      assert.equal(await opened.size(ns, 'mails'), 2);
      assert.equal(await opened.size(ns, '__deadletter__'), 1);
    });
  }
});
