import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { request } from 'node:http';
import { createRequire } from 'node:module';
import { type AddressInfo, connect, createServer, type Server } from 'node:net';
import { after, afterEach, before, describe, it } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { EventClient } from '../support/event-client.ts';
import { freePort } from '../support/free-port.ts';
import { type Answer, headerOf, jsonOf, QueueClient } from '../support/http-client.ts';
import { type ProxyKind, ReverseProxy } from '../support/proxies.ts';
import { ServerProcess } from '../support/server-process.ts';

/** An address of this machine other than the proxy's. */
const CLIENT = '127.0.0.2';
const CREDENTIALS = 'test1:test1';
const PAGE = await readFile(new URL('../../docs/operate/proxies.md', import.meta.url), 'utf8');

const CONFIG = {
  http: { host: '127.0.0.1', users: { test1: 'test1' }, trustedProxies: ['127.0.0.1'] },
  stomp: { port: 0, trustedProxies: ['127.0.0.1'], webSocket: true },
  log: { access: true },
  namespaces: { N: { url: 'sqlite::memory:' } },
};

/** Only prevents a hanging test; nothing is measured with it. */
const PATIENCE_MS = 60_000;

interface Waiting {
  readonly tid: string;
}

let queues = 0;

describe('docs/operate/proxies.md', () => {
  let server: ServerProcess;
  let direct: QueueClient;
  let port: number;
  let stompPort: number;
  let proxy: ReverseProxy | null = null;
  const clients: QueueClient[] = [];

  before(async () => {
    server = await ServerProcess.start({ config: CONFIG });
    direct = new QueueClient({ url: server.url });
  });

  afterEach(async () => {
    for (const client of clients.splice(0)) client.close();
    await proxy?.stop();
    proxy = null;
  });

  after(async () => {
    direct?.close();
    await server?.dispose();
  });

  /** Starts a proxy with the configuration of the page, modified by `change`. Resolves with a client of it. */
  const startProxy = async (kind: ProxyKind, change?: (config: string) => string): Promise<QueueClient> => {
    [port, stompPort] = [await freePort(), await freePort()];
    const page = configOf(kind);
    const config = change?.(page) ?? page;
    if (change !== undefined) assert.notEqual(config, page, 'the change has no effect on the configuration');
    const addresses: Readonly<Record<string, string>> = {
      3444: new URL(server.url).host,
      8080: `127.0.0.1:${port}`,
      61613: stompAddress(server),
      61612: `127.0.0.1:${stompPort}`,
    };
    // Replaces whole ports in one pass, because a free port may start with, or equal, one of the ports to replace.
    const moved = config.replaceAll(
      /127\.0\.0\.1:(3444|8080|61613|61612)\b/g,
      (_, from) => addresses[from] ?? '',
    );
    // HAProxy listens at its ports one after the other, at the one for STOMP last; nginx has none for STOMP.
    proxy = await ReverseProxy.start(kind, moved, kind === 'haproxy' ? stompPort : port);
    const client = new QueueClient({ url: `http://127.0.0.1:${port}` });
    clients.push(client);
    return client;
  };
  const queueName = (): string => `q${++queues}`;
  const waitingAt = async (queue: string): Promise<string[]> =>
    jsonOf<Waiting[]>(await direct.consumers('N', queue)).map(({ tid }) => tid);
  const totalOf = async (queue: string): Promise<number> =>
    jsonOf<{ totalSize: number }>(await direct.status('N', queue)).totalSize;
  const until = async (isSo: () => Promise<boolean>): Promise<void> => {
    const end = performance.now() + PATIENCE_MS;
    while (!(await isSo())) {
      if (performance.now() > end) throw new Error(`Not reached.\n${server.output.slice(-2_000)}`);
      await delay(20);
    }
  };
  /** Sends a get through the proxy and disconnects while it waits. */
  const disconnectWhileWaiting = async (client: QueueClient, queue: string): Promise<void> => {
    const aborted = new AbortController();
    const got = client.get('N', queue, { to: 60_000, tid: 'leaves', signal: aborted.signal });
    got.catch(() => {});
    await until(async () => (await waitingAt(queue)).length === 1);
    aborted.abort();
    await assert.rejects(got);
  };
  const addressesOf = (path: string): string[] =>
    server.output
      .split('\n')
      .filter((line) => line.startsWith('{') && line.includes(`"${path}"`))
      .map((line) => (JSON.parse(line) as { address: string }).address);

  for (const kind of ['nginx', 'haproxy'] as const) {
    describe(`with ${kind}`, () => {
      it('forwards WebSocket connections and the address of the client', async () => {
        await startProxy(kind);
        const { WebSocket: WebSocketFrom } = createRequire(import.meta.url)('ws') as {
          WebSocket: new (url: string, protocols: string[], options: { localAddress: string }) => WebSocket;
        };
        const url = `ws://127.0.0.1:${port}/stomp`;
        const socket = new WebSocketFrom(url, ['v12.stomp'], { localAddress: CLIENT });
        let replies = '';
        socket.onmessage = ({ data }) => {
          replies += data;
        };
        await new Promise((resolve) => {
          socket.onopen = resolve;
        });
        const queue = queueName();
        socket.send('CONNECT\naccept-version:1.2\nlogin:test1\npasscode:test1\n\n\0');
        socket.send(`SUBSCRIBE\nid:s\ndestination:/q/N/${queue}\nreceipt:r\n\n\0`);
        await until(async () => replies.includes('RECEIPT\n'));
        const [consumer] = jsonOf<{ address: string }[]>(await direct.consumers('N', queue));
        assert.equal(consumer?.address, CLIENT);
        socket.close();
        await until(async () => (await waitingAt(queue)).length === 0);
      });

      it('forwards elements unchanged: all headers, up to 8 KiB, and %2F in names', async () => {
        const client = await startProxy(kind);
        const own: Record<string, string> = {
          'x-ks-hdr-my_key': 'under',
          'x-ks-hdr-a.b': 'dot',
          'x-ks-hdr-long': 'y'.repeat(8_000),
        };
        const queue = `a/b ${queueName()}`;
        const body = Buffer.from([0, 1, 255, 10, 13]);
        await client.insert('N', queue, body, { headers: own, contentType: 'image/x-é%'.replace('é', 'e') });
        const got = await client.get('N', queue, { to: 0 });
        assert.equal(got.status, 200);
        assert.deepEqual(got.body, body);
        for (const [name, value] of Object.entries(own)) assert.equal(got.headers[name], value, name);
        assert.equal(await totalOf(queue), 0, 'the element was inserted into the queue with this name');
      });

      it('lets Quayside reject a body that is too large', async () => {
        const client = await startProxy(kind);
        const answer = await client.insert('N', queueName(), Buffer.alloc(1_048_577));
        assert.equal(answer.status, 413);
        assert.equal(jsonOf<{ code: string }>(answer).code, 'body-too-large');
      });

      it('lets a get wait until its `to` has passed or an element arrives', async () => {
        const client = await startProxy(kind);
        const queue = queueName();
        const late = await client.get('N', queue, { to: 1_500 });
        assert.equal(late.reason, 'Queue Pop Timeout');
        assert.equal(jsonOf<{ timeout: boolean }>(late).timeout, true);
        const got = client.get('N', queue, { to: 60_000 });
        await until(async () => (await waitingAt(queue)).length === 1);
        await client.insert('N', queue, 'x');
        assert.equal((await got).body.toString(), 'x');
      });

      it('forwards events at once, and closes the stream when the client disconnects', async () => {
        await startProxy(kind);
        const listener = new EventClient({ url: `http://127.0.0.1:${port}`, query: 'ns=N&kinds=queues' });
        await until(async () => listener.isComplete);
        const queue = queueName();
        await direct.insert('N', queue, 'x');
        await until(async () => listener.queue('N', queue)?.size === 1);
        const subscribers = async (): Promise<string> => {
          const text = (await direct.request('GET', '/metrics')).body.toString();
          return /^quayside_event_subscribers (\d+)$/m.exec(text)?.[1] ?? '';
        };
        await until(async () => (await subscribers()) === '1');
        listener.close();
        await until(async () => (await subscribers()) === '0');
      });

      it('cancels the get of a client that disconnected, so that it takes no element', async () => {
        const client = await startProxy(kind);
        const queue = queueName();
        await disconnectWhileWaiting(client, queue);
        await until(async () => (await waitingAt(queue)).length === 0);
        await direct.insert('N', queue, 'x');
        assert.equal(await totalOf(queue), 1);
      });

      it('forwards the address of the client even if the client forges one', async () => {
        await startProxy(kind);
        const path = `/q/N/${queueName()}/status`;
        await requestFrom(CLIENT, port, path, {});
        await requestFrom(CLIENT, port, path, {
          'x-forwarded-for': '203.0.113.9',
          forwarded: 'for=203.0.113.9',
        });
        await until(async () => addressesOf(path).length === 2);
        assert.deepEqual(addressesOf(path), [CLIENT, CLIENT]);
      });

      it('responds with its own 504 if its timeout is shorter than `to`, and no element is lost', async () => {
        const client = await startProxy(kind, (config) => config.replaceAll('75s', '1s'));
        const queue = queueName();
        const answer = await client.get('N', queue, { to: 60_000 });
        assert.equal(answer.status, 504);
        assert.match(answer.headers['content-type'] ?? '', /text\/html/);
        await until(async () => (await waitingAt(queue)).length === 0);
        await direct.insert('N', queue, 'x');
        assert.equal(await totalOf(queue), 1);
      });

      it('does not repeat an insert whose response is lost', async () => {
        const queue = queueName();
        const [status, stored] = await insertThatLosesItsResponse(kind, 'PUT', queue);
        assert.ok(status >= 500, `${status}`);
        assert.equal(stored, 0, 'the insert was repeated');
      });
    });
  }

  /**
   * Puts a second node in front of the server, which reads a whole request and closes, like a node that fails after it
   * has stored the element. Resolves with the highest status and the number of elements stored in addition to the
   * successful insert.
   */
  const insertThatLosesItsResponse = async (
    kind: ProxyKind,
    method: string,
    queue: string,
    change = (config: string): string => config,
  ): Promise<[number, number]> => {
    const failing = await failingNode();
    const { port: other } = failing.address() as AddressInfo;
    try {
      const client = await startProxy(kind, (config) => twoServers(change(config), other));
      const answers: Answer[] = [];
      // The nodes take turns: of two requests, at least one goes to each.
      for (const body of ['a', 'b']) answers.push(await client.request(method, `/q/N/${queue}`, { body }));
      const good = answers.filter(({ status }) => status === 200).length;
      return [Math.max(...answers.map(({ status }) => status)), (await totalOf(queue)) - Math.min(good, 1)];
    } finally {
      failing.close();
    }
  };

  it('is right that nginx repeats a PUT, but not a POST, without `proxy_next_upstream off`', async () => {
    const repeats = (config: string): string => config.replace('proxy_next_upstream off;', '');
    assert.deepEqual(await insertThatLosesItsResponse('nginx', 'PUT', queueName(), repeats), [200, 1]);
    await proxy?.stop();
    const [status, stored] = await insertThatLosesItsResponse('nginx', 'POST', queueName(), repeats);
    assert.deepEqual([status >= 500, stored], [true, 0]);
  });

  /** The statuses of inserts that alternate between two nodes, the first of which is down. */
  const statusesWithNodeDown = async (
    kind: ProxyKind,
    queue: string,
    inserts: number,
    change = (config: string): string => config,
  ): Promise<number[]> => {
    const down = await freePort();
    // nginx counts failures with its default settings. HAProxy checks neither node, so it does not know that one is
    // down.
    const client = await startProxy(kind, (config) =>
      twoServers(change(config), down).replace(' max_fails=0', ''),
    );
    const statuses: number[] = [];
    for (let i = 0; i < inserts; i++) {
      statuses.push((await client.request('PUT', `/q/N/${queue}`, { body: `${i}` })).status);
    }
    return statuses;
  };

  it('is right that HAProxy connects to another node if one refuses, unnoticed by clients', async () => {
    const queue = queueName();
    assert.deepEqual(await statusesWithNodeDown('haproxy', queue, 4), [200, 200, 200, 200]);
    assert.equal(await totalOf(queue), 4);
    await proxy?.stop();
    const without = (config: string): string => config.replace('option redispatch', '');
    const statuses = await statusesWithNodeDown('haproxy', queueName(), 2, without);
    assert.deepEqual(statuses.toSorted(), [200, 503]);
  });

  it('is right that one request through nginx fails with 502 if a node is down, and that nginx then avoids that node', async () => {
    const queue = queueName();
    const statuses = await statusesWithNodeDown('nginx', queue, 4);
    assert.deepEqual(statuses.toSorted(), [200, 200, 200, 502]);
    assert.equal(await totalOf(queue), 3);
  });

  it('is right about the element headers that nginx drops by default', async () => {
    const client = await startProxy('nginx', (config) =>
      config.replace('underscores_in_headers on;', '').replace('ignore_invalid_headers off;', ''),
    );
    const queue = queueName();
    await client.insert('N', queue, 'x', {
      headers: { 'x-ks-hdr-my_key': 'u', 'x-ks-hdr-a.b': 'd', 'x-ks-hdr-plain': 'p' },
    });
    const { headers } = await client.get('N', queue, { to: 0 });
    assert.deepEqual(
      [headers['x-ks-hdr-my_key'], headers['x-ks-hdr-a.b'], headers['x-ks-hdr-plain']],
      [undefined, undefined, 'p'],
    );
  });

  it('is right that nginx loses an element with large headers with its default buffers', async () => {
    const client = await startProxy('nginx', (config) =>
      config.replace('proxy_buffer_size 32k;', '').replace('proxy_buffers 8 32k;', ''),
    );
    const queue = queueName();
    await direct.insert('N', queue, 'x', { headers: { 'x-ks-hdr-long': 'y'.repeat(8_000) } });
    assert.equal((await client.get('N', queue, { to: 0 })).status, 502);
    assert.equal(await totalOf(queue), 0);
  });

  it('is right that nginx rejects a body above 1 MiB with its own page without `client_max_body_size`', async () => {
    const client = await startProxy('nginx', (config) => config.replace('client_max_body_size 0;', ''));
    const answer = await client.insert('N', queueName(), Buffer.alloc(1_048_577));
    assert.deepEqual([answer.status, answer.headers['content-type']], [413, 'text/html']);
  });

  it('is right that a get through HAProxy outlives its client and takes an element without `option abortonclose`', async () => {
    const client = await startProxy('haproxy', (config) => config.replace('option abortonclose', ''));
    const queue = queueName();
    await disconnectWhileWaiting(client, queue);
    await direct.insert('N', queue, 'lost');
    assert.equal(await totalOf(queue), 0, 'the element was popped for a client that has disconnected');
    const kept = queueName();
    await disconnectWhileWaiting(client, kept);
    assert.deepEqual(await waitingAt(kept), ['leaves']);
    const aborted = new AbortController();
    const reserved = queueName();
    const got = client.reserve('N', reserved, { to: 60_000, lease: 1_000, signal: aborted.signal });
    got.catch(() => {});
    await until(async () => (await waitingAt(reserved)).length === 1);
    aborted.abort();
    await assert.rejects(got);
    await direct.insert('N', reserved, 'kept');
    const again = await direct.reserve('N', reserved, { to: 30_000 });
    assert.equal(again.body.toString(), 'kept');
    assert.equal(headerOf(again, 'x-ks-tries'), '1', 'the lease of the disconnected client has expired');
  });

  it('has a HAProxy configuration that forwards the addresses of STOMP clients', async () => {
    await startProxy('haproxy');
    const before = server.output.length;
    const socket = connect({ port: stompPort, host: '127.0.0.1', localAddress: CLIENT });
    await once(socket, 'connect');
    socket.write('CONNECT\naccept-version:1.2\nhost:x\nlogin:test1\npasscode:test1\n\n\0');
    const [answer] = (await once(socket, 'data')) as [Buffer];
    assert.match(answer.toString(), /^CONNECTED\n/);
    socket.end('DISCONNECT\nreceipt:1\n\n\0');
    await once(socket, 'close');
    const ended = new RegExp(`"protocol":"STOMP".*"address":"${CLIENT}"`);
    await until(async () => ended.test(server.output.slice(before)));
  });
});

/** The configuration block of a proxy on the page. */
function configOf(kind: ProxyKind): string {
  const found = [...PAGE.matchAll(new RegExp(`^\`\`\`${kind}\\n(.*?)^\`\`\`$`, 'gms'))];
  assert.equal(found.length, 1, `docs/operate/proxies.md has one block for ${kind}`);
  return found[0]?.[1] ?? '';
}

function twoServers(config: string, failingPort: number): string {
  return config
    .replace(
      'server 127.0.0.1:3444;',
      `server 127.0.0.1:${failingPort} max_fails=0;\n  server 127.0.0.1:3444;`,
    )
    .replace(
      'server node1 127.0.0.1:3444 check',
      `server node0 127.0.0.1:${failingPort}\n  server node1 127.0.0.1:3444`,
    );
}

/** A server that reads a whole request and closes without a response. */
async function failingNode(): Promise<Server> {
  const node = createServer((socket) => {
    socket.on('error', () => {});
    let received = '';
    socket.setEncoding('latin1').on('data', (text: string) => {
      received += text;
      if (/\r\n\r\n.$/s.test(received)) socket.destroy();
    });
  }).listen(0, '127.0.0.1');
  await once(node, 'listening');
  return node;
}

function stompAddress({ output }: ServerProcess): string {
  const found = /stomp:\/\/(127\.0\.0\.1:\d+)/.exec(output)?.[1];
  assert.ok(found !== undefined, output);
  return found;
}

/** Sends a request from another address of this machine. */
async function requestFrom(
  localAddress: string,
  port: number,
  path: string,
  headers: Record<string, string>,
): Promise<void> {
  const authorization = `Basic ${Buffer.from(CREDENTIALS).toString('base64')}`;
  const sent = request({
    host: '127.0.0.1',
    port,
    path,
    localAddress,
    headers: { ...headers, authorization },
    agent: false,
  });
  sent.end();
  const [answer] = await once(sent, 'response');
  answer.resume();
  await once(answer, 'end');
}
