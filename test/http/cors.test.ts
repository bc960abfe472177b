import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Networks } from '../../src/access/networks.ts';
import { HTTP_DEFAULTS } from '../../src/http/options.ts';
import { routeTable } from '../../src/http/routes/table.ts';
import { type Answer, headerOf, queuePath } from '../support/http-client.ts';
import { Harness, sharedHarness } from './harness.ts';

const ORIGIN = 'https://console.example';

describe('A page of an allowed origin', () => {
  const harness = sharedHarness({ http: { allowedOrigins: ['https://Console.example'] } });
  const page = { origin: ORIGIN, 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'cors' };

  function assertReadable(answer: Answer): void {
    assert.equal(headerOf(answer, 'access-control-allow-origin'), ORIGIN);
    assert.equal(headerOf(answer, 'access-control-allow-credentials'), 'true');
    assert.equal(headerOf(answer, 'vary'), 'origin');
  }

  it('may read responses, errors included, and each element header by its name', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const headers = { ...page, 'x-ks-hdr-kind': 'mail', 'x-ks-hdr-lang': 'en' };
    assertReadable(await client.insert('N', queue, 'a', { headers }));
    const taken = await client.reserve('N', queue, { headers: page });
    assertReadable(taken);
    const exposed = headerOf(taken, 'access-control-expose-headers').split(', ');
    for (const name of ['x-ks-id', 'x-ks-lease', 'x-ks-hdr-kind', 'x-ks-hdr-lang', 'link']) {
      assert.ok(exposed.includes(name), name);
    }
    assertReadable(await client.request('GET', '/nowhere', { headers: page }));
    assertReadable(await harness().client(null).request('GET', '/q', { headers: page }));
    assertReadable(await client.get('N', queue, { to: 0, headers: page }));
  });

  it('may read every response header that the route table names', async () => {
    const answer = await harness().client().request('GET', '/q', { headers: page });
    const exposed = headerOf(answer, 'access-control-expose-headers').split(', ');
    const named = routeTable({ options: HTTP_DEFAULTS, version: '0' }).flatMap(({ responses }) =>
      responses.flatMap(({ headers = {} }) => Object.keys(headers)),
    );
    for (const name of ['etag', 'location', 'x-ks-origin-id', ...named]) {
      assert.ok(exposed.includes(name) || name === 'x-ks-hdr-*', name);
    }
  });

  it('may send preflight requests without credentials, which do not reveal what exists', async () => {
    const ask = (path: string): Promise<Answer> =>
      harness()
        .client(null)
        .request('OPTIONS', path, {
          headers: {
            ...page,
            'access-control-request-method': 'PATCH',
            'access-control-request-headers': 'authorization,x-ks-hdr-kind',
          },
        });
    for (const path of ['/q/N/a/pause', '/nowhere']) {
      const answer = await ask(path);
      assert.equal(answer.status, 204);
      assertReadable(answer);
      assert.equal(headerOf(answer, 'access-control-allow-methods'), 'GET, HEAD, PUT, POST, PATCH, DELETE');
      assert.equal(headerOf(answer, 'access-control-allow-headers'), 'authorization,x-ks-hdr-kind');
      assert.equal(headerOf(answer, 'access-control-max-age'), '600');
    }
  });

  it('is not granted malformed header names', async () => {
    const answer = await harness()
      .client(null)
      .request('OPTIONS', '/q', {
        headers: {
          ...page,
          'access-control-request-method': 'GET',
          'access-control-request-headers': 'a b: c',
        },
      });
    assert.equal(answer.status, 204);
    assert.equal(answer.headers['access-control-allow-headers'], undefined);
  });

  it('may not prefetch', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    const answer = await client.get('N', queue, { headers: { ...page, 'sec-purpose': 'prefetch' } });
    assert.equal(answer.status, 403);
  });

  it('is the only one that receives CORS headers and preflight responses', async () => {
    const client = harness().client();
    const asked = { 'access-control-request-method': 'GET' };
    for (const headers of [{}, { origin: 'https://evil.example', ...asked }, asked]) {
      for (const method of ['GET', 'OPTIONS']) {
        const answer = await client.request(method, queuePath('N', 'q').replace(/q$/, 'q/status'), {
          headers,
        });
        const names = Object.keys(answer.headers).filter((name) => name.startsWith('access-control'));
        assert.deepEqual(names, []);
        assert.notEqual(answer.status, 204);
      }
    }
  });
});

describe('A rejected request', () => {
  /** Trusted proxies that count their look-ups. */
  class Counted extends Networks {
    asked = 0;

    override has(address: string): boolean {
      this.asked += 1;
      return super.has(address);
    }
  }
  const trustedProxies = new Counted(['127.0.0.0/8']);
  const harness = sharedHarness({ http: { trustedProxies } });

  it('is not examined for its log line unless the log level is debug', async () => {
    const headers = { forwarded: 'for=192.0.2.1' };
    const answer = await harness().client(null).request('GET', '/nowhere', { headers });
    assert.equal(answer.status, 401);
    assert.equal(trustedProxies.asked, 0);
  });
});

describe('The log of foreign pages', () => {
  const trustedProxies = new Networks(['127.0.0.1']);

  const ask = (on: Harness, address: string): Promise<Answer> =>
    on.client(null).request('GET', '/livez', {
      headers: { origin: 'https://evil.example', 'x-forwarded-for': address },
    });
  const warned = (on: Harness): unknown[] =>
    on.log
      .filter(({ level, fields }) => level === 'warn' && fields.event === 'forbidden')
      .map(({ fields }) => fields.address ?? [fields.network, fields.leftOut]);

  it('has one line per network and minute, then a count of the omitted lines', async () => {
    const on = await Harness.start({ http: { trustedProxies }, logsDebug: true });
    for (const last of [1, 2, 3, 4]) assert.equal((await ask(on, `192.0.2.${last}`)).status, 403);
    await ask(on, '2001:db8::1');
    assert.deepEqual(warned(on), ['192.0.2.1', '2001:db8::1']);
    assert.equal(on.log.filter(({ level, fields }) => level === 'debug' && fields.origin).length, 3);
    await on.passTime(60_000);
    assert.deepEqual(warned(on).slice(2), [['192.0.2.0/24', 3]]);
    await ask(on, '192.0.2.1');
    await ask(on, '2001:db8::2');
    assert.deepEqual(warned(on).slice(3), ['2001:db8::2']);
    await on.passTime(60_000);
    assert.deepEqual(warned(on).slice(4), [['192.0.2.0/24', 1]]);
    await on.passTime(60_000);
    await ask(on, '192.0.2.9');
    await ask(on, '192.0.2.9');
    assert.deepEqual(warned(on).slice(5), ['192.0.2.9']);
    await on.close();
    assert.deepEqual(warned(on).slice(6), [['192.0.2.0/24', 1]]);
  });

  it('combines the networks beyond a thousand per minute into one count', async () => {
    const on = await Harness.start({ http: { trustedProxies } });
    for (let i = 0; i < 1_010; i += 1) await ask(on, `10.${i >> 8}.${i & 255}.1`);
    assert.equal(warned(on).length, 1_001);
    await on.close();
    assert.deepEqual(warned(on).slice(1_001), [[null, 9]]);
  });
});

describe('The path of a request that lacks a right', () => {
  it('is logged with at most 256 characters per segment', async () => {
    const users = [{ name: 'r', password: 'r', rights: { N: ['read' as const] } }];
    const on = await Harness.start({ users });
    const path = `/q/N/${'a://'.repeat(1_000).replaceAll('/', '%2F')}`;
    assert.equal((await on.client('r:r').request('PUT', path, { body: 'x' })).status, 403);
    const [line] = on.log.filter(({ fields }) => fields.event === 'forbidden');
    assert.equal(String(line?.fields.queue).length, 257);
    await on.close();
  });
});
