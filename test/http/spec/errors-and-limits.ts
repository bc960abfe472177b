import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { HTTP_DEFAULTS } from '../../../src/http/options.ts';
import { routeTable } from '../../../src/http/routes/table.ts';
import { headerOf } from '../../support/http-client.ts';
import type { Harness } from '../harness.ts';

/** Tests of the spec's sections 5 and 8, as far as they concern queues and no other row says the same. */
export function errorAndLimitRows(harness: () => Harness): void {
  describe('5 Authentication', () => {
    it('every operation requires HTTP Basic credentials', async () => {
      const options = { ...HTTP_DEFAULTS, consoleFolder: null };
      const probes = ['/livez', '/readyz'];
      const routes = routeTable({ options, version: '0' }).filter(({ path }) => !probes.includes(path));
      for (const credentials of [null, 'test1:wrong', 'nobody:test1']) {
        const client = harness().client(credentials);
        for (const { methods, path } of routes) {
          for (const method of methods) {
            const answer = await client.request(method, path.replaceAll(/:\w+/g, 'N'));
            assert.equal(answer.status, 401, `${method} ${path}`);
            assert.equal(headerOf(answer, 'www-authenticate'), 'Basic realm="Quayside", charset="UTF-8"');
          }
        }
      }
    });
  });

  describe('8 Limits', () => {
    it('the default blocking time is indefinite', async () => {
      const client = harness().client();
      const queue = harness().queue();
      const waiting = client.get('N', queue);
      await harness().waiting(1);
      // The test clock runs every timer on the way, and nodes signal every two seconds: so an hour, not a year.
      await harness().passTime(3600 * 1000);
      await harness().waiting(1);
      await client.insert('N', queue, 'a');
      assert.equal((await waiting).status, 200);
    });
  });
}
