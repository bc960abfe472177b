import assert from 'node:assert/strict';
import { after, afterEach, before, describe, it } from 'node:test';
import { freshSchema, sharedPostgres } from '../engines/postgres.ts';
import { freshPrefix, sharedRedis } from '../engines/redis.ts';
import { withParameter } from '../support/run-servers.ts';
import { OpenedConsole } from './opened.ts';

/** What the pages of queues and dead letters show and do comes from the engine: they are tried on the others, too. */
describe('The console in a browser, on engines with servers', () => {
  let opened: OpenedConsole;

  before(async () => {
    const [redis, postgres] = await Promise.all([sharedRedis(), sharedPostgres()]);
    const deadLetter = { maxTries: 1 };
    opened = await OpenedConsole.open({
      redis: { url: withParameter(redis, 'prefix', freshPrefix()), deadLetter },
      postgres: { url: withParameter(postgres, 'schema', freshSchema()), deadLetter },
    });
  });

  afterEach(() => opened.check());

  after(() => opened?.close());

  for (const ns of ['redis', 'postgres'] as const) {
    it(`shows a queue by states, searches it and deletes what was found, on ${ns}`, async () => {
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
      await page.getByText('All 1 that match').waitFor();
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
