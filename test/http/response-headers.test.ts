import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { HTTP_DEFAULTS, type HttpParts } from '../../src/http/options.ts';
import { INERT_HEADERS, route } from '../../src/http/route.ts';
import { HttpServer } from '../../src/http/server.ts';
import { systemClock } from '../../src/util/clock.ts';
import { SILENT_LOG } from '../support/broker.ts';

const OWN_POLICY = "default-src 'self'";
const common = { methods: ['GET'], summary: '', access: 'open', responses: [] } as const;
const ROUTES = [
  route({ ...common, id: 'plain', path: '/plain', handle: (call) => call.sendJson({}) }),
  route({
    ...common,
    id: 'page',
    path: '/page',
    responseHeaders: { 'content-security-policy': OWN_POLICY },
    handle: (call) => call.sendText(200, '<p>', [], 'text/html'),
  }),
  route({
    ...common,
    id: 'broken',
    path: '/broken',
    responseHeaders: { 'content-security-policy': OWN_POLICY },
    handle: () => Promise.reject(new Error('planted')),
  }),
];

describe('The first headers of a response', () => {
  let server: HttpServer;
  let url: string;

  before(async () => {
    const log = { ...SILENT_LOG, debug: () => {}, error: () => {}, isLevelEnabled: () => false };
    const events = { drain: () => {} };
    const broker = { questions: { register: () => {} } };
    const parts = { options: { ...HTTP_DEFAULTS, port: 0 }, clock: systemClock, log, events, broker };
    server = new HttpServer(parts as unknown as HttpParts, ROUTES);
    await server.start();
    url = `http://127.0.0.1:${server.address.port}`;
  });

  after(() => server.stop());

  async function headersOf(path: string): Promise<Headers> {
    const response = await fetch(url + path);
    await response.text();
    return response.headers;
  }

  it('make it inert in a browser if its route has no headers of its own, or if no route matched', async () => {
    for (const path of ['/plain', '/unknown']) {
      const headers = await headersOf(path);
      for (const [name, value] of Object.entries(INERT_HEADERS)) assert.equal(headers.get(name), value);
    }
  });

  it('are those of its route if it has its own, even on errors', async () => {
    for (const path of ['/page', '/broken']) {
      const headers = await headersOf(path);
      assert.equal(headers.get('content-security-policy'), OWN_POLICY);
      assert.equal(headers.get('x-content-type-options'), null);
    }
  });
});
