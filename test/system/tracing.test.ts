import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { showConfig } from '../../src/config/declared.ts';
import { loadConfig } from '../../src/config/load.ts';
import { AmqpClient } from '../amqp/client.ts';
import { StompClient } from '../stomp/client.ts';
import { freePort } from '../support/free-port.ts';
import { QueueClient } from '../support/http-client.ts';
import { memoryInUse } from '../support/memory.ts';
import { ServerInProcess } from '../support/server-in-process.ts';
import { type ReceivedSpan, TraceReceiver } from '../support/trace-receiver.ts';
import { until } from '../support/until.ts';

const INTERNAL = 1;
const SERVER = 2;
const LOGIN = { login: 'test1', passcode: 'test1' };

const REQUEST_TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const REQUEST_SPAN = '00f067aa0ba902b7';
const ELEMENT_TRACE = '0af7651916cd43dd8448eb211c80319c';
const ELEMENT_SPAN = 'b7ad6b7169203331';
const ELEMENT_LINK = { traceId: ELEMENT_TRACE, spanId: ELEMENT_SPAN };
const SENT_BY_PRODUCER = `00-${ELEMENT_TRACE}-${ELEMENT_SPAN}-01`;

describe('A server with tracing', () => {
  let receiver: TraceReceiver;
  let server: ServerInProcess;
  let client: QueueClient;

  beforeEach(async () => {
    receiver = await TraceReceiver.start();
  });
  afterEach(async () => {
    client?.close();
    await server?.dispose();
    await receiver.stop();
  });

  const start = async (tracing: object = {}): Promise<void> => {
    const config = {
      http: { users: { test1: 'test1' } },
      stomp: { port: 0 },
      amqp: { port: 0 },
      tracing: { otlp: receiver.url, ...tracing },
      namespaces: { N: { url: 'sqlite::memory:' } },
      exchanges: { x: { src: { ns: 'N', queue: 'source' }, dst: [{ ns: 'N', queue: 'copies' }] } },
    };
    server = await ServerInProcess.start({ config });
    client = new QueueClient({ url: server.url });
  };

  /** Stops the server, which sends the remaining spans. */
  const stop = async (): Promise<void> => {
    client.close();
    await server.dispose();
  };

  const insertFromProducer = (queue: string, headers = {}) =>
    client.insert('N', queue, 'x', { headers: { 'x-ks-hdr-traceparent': SENT_BY_PRODUCER, ...headers } });

  const portOf = (name: string): number => Number(new URL(server.otherUrls[name] ?? '').port);

  /** Resolves when `count` spans have had this outcome. */
  const counted = (outcome: string, count: number): Promise<void> => {
    const line = new RegExp(`^quayside_trace_spans_total\\{outcome="${outcome}"\\} (\\d+)$`, 'm');
    return until(async () => {
      const text = (await client.request('GET', '/metrics')).body.toString();
      return Number(line.exec(text)?.[1]) >= count;
    }, 100);
  };

  it('exports a span per request, as a child of its traceparent, and a span per engine call', async () => {
    await start({ service: 'jobs' });
    await insertFromProducer('orders', { traceparent: `00-${REQUEST_TRACE}-${REQUEST_SPAN}-01` });
    await stop();
    const request = receiver.received(({ kind, traceId }) => kind === SERVER && traceId === REQUEST_TRACE);
    assert.equal(request.parentSpanId, REQUEST_SPAN);
    assert.equal(request.name, 'PUT /q/:namespace/:queue');
    assert.deepEqual(request.attributes, {
      'http.request.method': 'PUT',
      'http.route': '/q/:namespace/:queue',
      'url.scheme': 'http',
      'url.path': '/q/N/orders',
      'messaging.destination.name': 'N/orders',
      'http.response.status_code': 200,
    });
    assert.equal(request.resource['service.name'], 'jobs');
    assert.equal(request.resource['service.version'], 'test');
    const call = receiver.received(
      ({ parentSpanId, name }) => parentSpanId === request.spanId && name.startsWith('insert'),
    );
    assert.deepEqual([call.kind, call.name, call.traceId], [INTERNAL, 'insert N/orders', REQUEST_TRACE]);
    const { 'messaging.message.id': id, ...attributes } = call.attributes;
    assert.ok(id !== undefined);
    assert.deepEqual(attributes, {
      'quayside.engine': 'sqlite',
      'messaging.system.name': 'quayside',
      'messaging.operation.name': 'insert',
      'messaging.operation.type': 'send',
      'messaging.destination.name': 'N/orders',
    });
    assert.deepEqual(call.links, [ELEMENT_LINK]);
  });

  it('truncates the path of an unauthenticated request in its span', async () => {
    await start();
    const anybody = new QueueClient({ url: server.url, credentials: null });
    const { status } = await anybody.request('GET', `/${'x'.repeat(15_000)}`);
    anybody.close();
    assert.equal(status, 401);
    await stop();
    const { attributes } = receiver.received(({ kind }) => kind === SERVER);
    assert.match(String(attributes['url.path']), /^\/x{2000,4095}…?$/);
  });

  it('truncates a rejected queue name in its span', async () => {
    await start();
    const { status } = await client.request('GET', `/q/N/${'x'.repeat(15_000)}/status`);
    assert.equal(status, 400);
    await stop();
    const { attributes } = receiver.received(({ kind }) => kind === SERVER);
    assert.match(String(attributes['messaging.destination.name']), /^N\/x{255,4095}…?$/);
  });

  it('does not retain the headers and the query of a request until its spans are sent', async () => {
    await start({ otlp: `http://127.0.0.1:${await freePort()}` });
    // A busy machine measures up to 0.7 MB too much, so the padding of a run (3.6 MB) is several times that.
    const count = 600;
    const bytes = 6_000;
    const run = async (id: string, padding: number): Promise<number> => {
      const more = padding === 0 ? '' : `-${'x'.repeat(padding)}`;
      const headers = { traceparent: `01-${REQUEST_TRACE}-${REQUEST_SPAN}-01${more}` };
      const before = await memoryInUse();
      for (let i = 0; i < count; i += 1) {
        const path = `/q/N/orders/commit/none-of-some-length-${id}-${i}`;
        const { status } = await client.request('PATCH', path, { headers, query: { padding: more } });
        assert.equal(status, 404);
      }
      return (await memoryInUse()) - before;
    };
    await run('first', 0);
    const short = await run('short', 0);
    const long = await run('long', bytes);
    // The padding occurs in both the query and the header.
    assert.ok(long - short < (count * bytes) / 4, `${short} and ${long} bytes`);
  });

  it('links a get and a batch take with the inserts of their elements, and exports the engine call of a status', async () => {
    await start();
    const waiting = client.get('N', 'orders', { to: 60_000 });
    await insertFromProducer('orders');
    assert.equal((await waiting).status, 200);
    await insertFromProducer('orders');
    await insertFromProducer('orders');
    await client.request('POST', '/q/N/orders/take', { query: { count: 10 } });
    await client.request('GET', '/q/N/orders/status');
    await stop();
    const got = receiver.received(({ name }) => name === 'GET /q/:namespace/:queue');
    assert.deepEqual(got.links, [ELEMENT_LINK]);
    const gotMany = receiver.received(({ name }) => name === 'POST /q/:namespace/:queue/take');
    assert.deepEqual(gotMany.links, [ELEMENT_LINK, ELEMENT_LINK]);
    const take = receiver.received(({ parentSpanId }) => parentSpanId === gotMany.spanId);
    assert.equal(take.attributes['messaging.batch.message_count'], 2);
    assert.equal(take.attributes['messaging.operation.type'], 'receive');
    const read = receiver.received(({ name }) => name === 'GET /q/:namespace/:queue/status');
    receiver.received(({ parentSpanId, name }) => parentSpanId === read.spanId && name === 'count N/orders');
  });

  it('exports inserts over STOMP and AMQP in the trace of the sender, and links the takes with them', async () => {
    await start();
    const stomp = await StompClient.login(portOf('stomp'), '1.2', LOGIN);
    await stomp.ask('SEND', { destination: '/q/N/a', traceparent: SENT_BY_PRODUCER }, 'x');
    await stomp.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
    const { headers } = await stomp.expect('MESSAGE');
    await stomp.ask('ACK', { id: headers.get('ack') ?? '' });
    await stomp.disconnect();
    const amqp = await AmqpClient.open(portOf('amqp'), 'test1');
    const sender = await amqp.sender('N/b');
    await sender.send({ body: 'x', application_properties: { traceparent: SENT_BY_PRODUCER } });
    const consumer = await amqp.receiver('N/b', {}, 1);
    (await consumer.next()).delivery.accept();
    await amqp.close();
    await stop();
    for (const queue of ['a', 'b']) {
      const insert = receiver.received(({ name }) => name === `insert N/${queue}`);
      assert.deepEqual([insert.traceId, insert.parentSpanId], [ELEMENT_TRACE, ELEMENT_SPAN], queue);
      const take = receiver.received(({ name }) => name === `take N/${queue}`);
      assert.notEqual(take.traceId, ELEMENT_TRACE);
      assert.deepEqual(take.links, [ELEMENT_LINK], queue);
      receiver.received(({ name }) => name === `settle N/${queue}`);
    }
  });

  it('links a step of an exchange with the inserts of the forwarded elements', async () => {
    await start({ ratio: 0 });
    await insertFromProducer('source');
    assert.equal((await client.get('N', 'copies', { to: 20_000 })).status, 200);
    await stop();
    const forwarded = receiver.received(({ name }) => name === 'settle N/source');
    assert.deepEqual(forwarded.links, [ELEMENT_LINK]);
  });

  it('applies `ratio` only to traces that start here, and exports no probes', async () => {
    await start({ ratio: 0 });
    const request = (flag: string) => ({ traceparent: `00-${REQUEST_TRACE}-${REQUEST_SPAN}-${flag}` });
    await client.insert('N', 'none', 'x');
    await client.insert('N', 'not-sampled', 'x', { headers: request('00') });
    for (const damaged of [
      'sampled',
      `ff-${REQUEST_TRACE}-${REQUEST_SPAN}-01`,
      `00-${REQUEST_TRACE}-${REQUEST_SPAN}-01-more`,
      `00-${'0'.repeat(32)}-${REQUEST_SPAN}-01`,
      `00-${REQUEST_TRACE}-${'0'.repeat(16)}-01`,
    ]) {
      await client.insert('N', 'damaged', 'x', { headers: { traceparent: damaged } });
    }
    await client.insert('N', 'sampled', 'x', { headers: request('01') });
    await stop();
    const names = receiver.spans.map(({ name }) => name).sort();
    assert.deepEqual(names, ['PUT /q/:namespace/:queue', 'insert N/sampled']);
    await start({ ratio: 1 });
    await client.request('GET', '/livez');
    await client.request('GET', '/metrics');
    await client.insert('N', 'last', 'x');
    await stop();
    assert.ok(receiver.spans.some(isRequestTo('/q/N/last')));
    assert.ok(!receiver.spans.some(isRequestTo('/livez')) && !receiver.spans.some(isRequestTo('/metrics')));
  });

  it('exports no query, and the status of a failed request', async () => {
    await start();
    await client.request('PATCH', '/q/N/orders/commit/none', { query: { lease: 'Canary' } });
    await stop();
    const failed = receiver.spans.find(({ attributes }) => attributes['http.request.method'] === 'PATCH');
    assert.equal(failed?.attributes['http.response.status_code'], 404);
    assert.equal(failed?.status, null);
    assert.ok(!JSON.stringify(receiver.spans).includes('Canary'));
  });

  it('sends its credentials to the collector, but never logs or shows them', async () => {
    const tracing = {
      otlp: receiver.url.replace('//', '//collector:Canary%401@'),
      headers: { 'x-token': 'Canary2' },
    };
    await start(tracing);
    await client.insert('N', 'orders', 'x');
    await receiver.requested(1);
    const [{ authorization, 'x-token': token } = {}] = receiver.requests;
    assert.equal(authorization, `Basic ${Buffer.from('collector:Canary@1').toString('base64')}`);
    assert.equal(token, 'Canary2');
    receiver.replies.push({ status: 401 });
    await client.insert('N', 'orders', 'x');
    await stop();
    assert.match(server.output, /spans could not be sent to the collector/);
    const env = {
      QUAYSIDE_TRACING__OTLP: tracing.otlp,
      'QUAYSIDE_TRACING__HEADERS__x-token': tracing.headers['x-token'],
    };
    const { config } = await loadConfig({ file: null, env, cwd: '/' });
    assert.match(await showConfig(config), /x-token: ['"]?\*\*\*/);
    for (const text of [server.output, await showConfig(config)]) assert.ok(!text.includes('Canary'), text);
  });

  it('sends a header once, whatever its case: those of the configuration replace the Basic credentials', async () => {
    const otlp = receiver.url.replace('//', '//collector:password@');
    const headers = { Authorization: 'Bearer token', 'Content-Type': 'application/json' };
    await start({ otlp, headers });
    await client.insert('N', 'orders', 'x');
    await receiver.span(({ name }) => name === 'insert N/orders');
    assert.equal(receiver.requests[0]?.authorization, 'Bearer token');
    await stop();
  });

  it('drops and counts spans if its queue is full, and continues once the collector is available again', async () => {
    const port = await freePort();
    await start({ otlp: `http://127.0.0.1:${port}`, maxQueue: 4 });
    for (let i = 0; i < 10; i += 1) assert.equal((await client.insert('N', 'orders', 'x')).status, 200);
    await counted('dropped', 1);
    await until(() => server.output.includes('spans could not be sent'), 20);
    const back = await TraceReceiver.start(port);
    await back.span(({ name }) => name === 'insert N/orders');
    await counted('exported', 1);
    await stop();
    assert.match(server.output, /spans reach the collector again/);
    await back.stop();
  });

  it('repeats an export if the collector is busy, and drops spans that it rejects', async () => {
    await start();
    receiver.replies.push({ status: 503, headers: { 'retry-after': '0' } });
    await client.insert('N', 'busy', 'x');
    await receiver.span(({ name }) => name === 'insert N/busy');
    await counted('exported', 1);
    receiver.replies.push({ status: 400 }, { status: 200, body: { partialSuccess: { rejectedSpans: '1' } } });
    await client.insert('N', 'rejected', 'x');
    await counted('failed', 1);
    await client.insert('N', 'half', 'x');
    await receiver.span(({ name }) => name === 'insert N/half');
    assert.ok(!receiver.spans.some(({ name }) => name === 'insert N/rejected'));
    await stop();
  });

  it('does not start with an invalid address or header', async () => {
    for (const [tracing, message] of [
      [{ otlp: 'grpc://x' }, /tracing\.otlp: .*Write it as http:\/\/localhost:4318/],
      [{ otlp: 'http://u:a/b@x' }, /tracing\.otlp: is not a URL/],
      [{ otlp: 'http://u:%zz@x' }, /tracing\.otlp: is not a URL/],
      [
        { otlp: 'http://127.0.0.1:6000' },
        /tracing\.otlp: has a port of another protocol.*Let the collector use another/,
      ],
      [{ headers: { 'x token': 'Canary' } }, /tracing\.headers\["x token"\]: is no header that can be sent/],
      [{ headers: { Host: 'Canary' } }, /tracing\.headers\.Host: is a header that the server sets itself/],
    ] as const) {
      await assert.rejects(start(tracing), (error: Error) => {
        assert.match(error.message, message);
        assert.ok(!error.message.includes('Canary'));
        return true;
      });
    }
  });
});

function isRequestTo(path: string): (span: ReceivedSpan) => boolean {
  return ({ attributes }) => attributes['url.path'] === path;
}
