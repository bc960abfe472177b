import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { gunzipSync } from 'node:zlib';
import { type Answer, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import { Harness, sharedHarness } from './harness.ts';

const INDEX = `<!doctype html><title>Quayside</title>${'<p>page</p>'.repeat(50)}`;
const SCRIPT = `export const text = '${'x'.repeat(500)}';`;
const BROWSER = { accept: 'text/html,application/xhtml+xml;q=0.9,*/*;q=0.8' };

async function build(folder: string): Promise<void> {
  await mkdir(join(folder, 'assets'), { recursive: true });
  await writeFile(join(folder, 'index.html'), INDEX);
  await writeFile(join(folder, 'icon.svg'), '<svg/>');
  await writeFile(join(folder, 'assets', 'index-a1b2.js'), SCRIPT);
}

describe('The console', () => {
  let folder: string;
  let harness: Harness;
  let client: QueueClient;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'quayside-console-'));
    await build(folder);
    harness = await Harness.start({ http: { consoleFolder: folder } });
    client = harness.client(null);
  });

  after(async () => {
    await harness.close();
    await rm(folder, { recursive: true, force: true });
  });

  const get = (path: string, headers: Readonly<Record<string, string>> = {}): Promise<Answer> =>
    client.request('GET', path, { headers });

  it('is served without a login, each file with its content type', async () => {
    for (const [path, type, content] of [
      ['/console/', 'text/html; charset=utf-8', INDEX],
      ['/console/index.html', 'text/html; charset=utf-8', INDEX],
      ['/console/icon.svg', 'image/svg+xml', '<svg/>'],
      ['/console/assets/index-a1b2.js', 'text/javascript; charset=utf-8', SCRIPT],
    ] as const) {
      const answer = await get(path);
      assert.equal(answer.status, 200, path);
      assert.equal(headerOf(answer, 'content-type'), type);
      assert.equal(headerOf(answer, 'x-content-type-options'), 'nosniff');
      assert.equal(answer.body.toString(), content);
      const head = await client.request('HEAD', path);
      assert.equal(head.status, 200);
      assert.equal(headerOf(head, 'content-length'), String(content.length));
      assert.equal(head.body.length, 0);
    }
  });

  it('allows only its own scripts and cannot be framed', async () => {
    const answer = await get('/console/');
    assert.deepEqual(headerOf(answer, 'content-security-policy').split('; '), [
      "default-src 'none'",
      "script-src 'self'",
      "style-src 'self'",
      "connect-src 'self'",
      "img-src 'self' blob:",
      "font-src 'self'",
      "require-trusted-types-for 'script'",
      "trusted-types 'none'",
      "frame-ancestors 'none'",
      "base-uri 'none'",
      "form-action 'self'",
    ]);
    assert.equal(headerOf(answer, 'x-frame-options'), 'DENY');
    assert.equal(headerOf(answer, 'cross-origin-opener-policy'), 'same-origin');
    assert.equal(headerOf(answer, 'referrer-policy'), 'no-referrer');
  });

  it('is cached forever where file names contain a hash, and revalidated elsewhere', async () => {
    const asset = await get('/console/assets/index-a1b2.js');
    assert.equal(headerOf(asset, 'cache-control'), 'public, max-age=31536000, immutable');
    for (const path of ['/console/', '/console/icon.svg']) {
      const answer = await get(path);
      assert.equal(headerOf(answer, 'cache-control'), 'no-cache');
      const tag = headerOf(answer, 'etag');
      const again = await get(path, { 'if-none-match': `"other", ${tag}` });
      assert.equal(again.status, 304);
      assert.equal(again.body.length, 0);
      assert.equal(headerOf(again, 'etag'), tag);
      assert.equal((await get(path, { 'if-none-match': '"other"' })).status, 200);
    }
  });

  it('is compressed for clients that accept gzip, if that makes it smaller', async () => {
    for (const accepted of ['gzip', 'br, gzip;q=0.5', 'deflate, GZIP']) {
      const answer = await get('/console/', { 'accept-encoding': accepted });
      assert.equal(headerOf(answer, 'content-encoding'), 'gzip');
      assert.equal(headerOf(answer, 'vary'), 'accept-encoding');
      assert.ok(answer.body.length < INDEX.length);
      assert.equal(gunzipSync(answer.body).toString(), INDEX);
    }
    for (const accepted of ['br', 'gzip;q=0', 'gzip;q=0.0, br', '']) {
      const answer = await get('/console/', { 'accept-encoding': accepted });
      assert.equal(answer.headers['content-encoding'], undefined, accepted);
      assert.equal(answer.body.toString(), INDEX);
    }
    const small = await get('/console/icon.svg', { 'accept-encoding': 'gzip' });
    assert.equal(small.headers['content-encoding'], undefined);
  });

  it('is where browsers are redirected, by relative addresses that work behind a proxy', async () => {
    for (const path of ['/', '/console']) {
      const answer = await get(path, BROWSER);
      assert.equal(answer.status, 302);
      assert.equal(headerOf(answer, 'location'), 'console/');
      const seen = new URL(headerOf(answer, 'location'), `https://a.example/sub/path${path}`);
      assert.equal(seen.pathname, '/sub/path/console/');
    }
    assert.equal((await get('/')).status, 401);
    assert.equal((await get('/', { accept: 'application/json' })).status, 401);
    const program = await harness.client().request('GET', '/');
    assert.equal(jsonOf<{ code: string }>(program).code, 'route-not-found');
  });

  it('may be opened by a link on a foreign page, unlike the routes of its session', async () => {
    const link = { ...BROWSER, 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate' };
    assert.equal((await get('/', link)).status, 302);
    assert.equal((await get('/console/', link)).status, 200);
    for (const path of [
      '/console/session',
      '/console/%73ession',
      '/console/sessions',
      '/console/sessions/a',
    ]) {
      assert.equal((await get(path, link)).status, 403, path);
    }
    const post = await client.request('POST', '/console/session', { headers: link, body: '{}' });
    assert.equal(post.status, 403);
  });

  it('serves its own files only', async () => {
    for (const path of [
      '/console/none.js',
      '/console/assets/none.js',
      '/console/assets/',
      '/console/..%2fpackage.json',
      '/console/assets/..%2f..%2fpackage.json',
      '/console/assets%2findex-a1b2.js%00',
      '/console/assets/a/b',
    ]) {
      const answer = await get(path);
      assert.ok([401, 404].includes(answer.status), `${path}: ${answer.status}`);
    }
    assert.equal((await client.request('PUT', '/console/icon.svg')).status, 401);
  });
});

describe('A console that is not built', () => {
  let folder: string;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'quayside-console-'));
  });

  after(() => rm(folder, { recursive: true, force: true }));

  it('is answered with how to build it, and is served once it is built', async () => {
    const harness = await Harness.start({ http: { consoleFolder: join(folder, 'dist') } });
    const client = harness.client(null);
    for (const path of ['/console/', '/console/assets/index-a1b2.js']) {
      const answer = await client.request('GET', path);
      assert.equal(answer.status, 503);
      assert.equal(headerOf(answer, 'content-type'), 'text/plain; charset=utf-8');
      assert.match(answer.body.toString(), /npm run build:console/);
    }
    await build(join(folder, 'dist'));
    assert.equal((await client.request('GET', '/console/')).status, 200);
    await harness.close();
  });
});

describe('A server without a console', () => {
  const harness = sharedHarness({ http: { consoleFolder: null } });

  it('serves none of its paths', async () => {
    const client = harness().client();
    for (const path of ['/', '/console', '/console/', '/console/session']) {
      const answer = await client.request('GET', path, { headers: BROWSER });
      assert.equal(jsonOf<{ code: string }>(answer).code, 'route-not-found', path);
      assert.equal((await harness().client(null).request('GET', path, { headers: BROWSER })).status, 401);
    }
  });
});
