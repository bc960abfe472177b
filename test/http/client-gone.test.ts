import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newElement } from '../support/elements.ts';
import { headerOf, jsonOf, queuePath } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { basic, Harness, type Status, sharedHarness, statusOf } from './harness.ts';
import { AUTHORIZATION, exchange, RawConnection, rawRequest } from './raw.ts';

async function blockedGet(
  harness: Harness,
  queue: string,
  query = '',
  authorization = AUTHORIZATION,
): Promise<RawConnection> {
  const connection = await RawConnection.open(harness.port);
  connection.send(rawRequest([`GET ${queuePath('N', queue)}${query} HTTP/1.1`, 'Host: test', authorization]));
  return connection;
}

describe('The access log line of a client that disconnected', () => {
  const harness = sharedHarness({ http: { logsAccess: true } });

  const addresses = (): unknown[] =>
    harness().log.flatMap(({ fields }) => (fields.event === 'access' ? [fields.address] : []));

  it('has its address, although nothing read the address before the connection was closed', async () => {
    const connection = await blockedGet(harness(), harness().queue());
    await harness().waiting(1);
    connection.socket.resetAndDestroy();
    await until(() => addresses().length === 1);
    assert.deepEqual(addresses(), ['127.0.0.1']);
  });

  it('has its address, although it reset the connection before the server read the request', async () => {
    const connection = await RawConnection.open(harness().port);
    // A response on another connection means that this one has been accepted.
    await harness().client().namespaces();
    const before = addresses().length;
    // Both reach the server in the same turn.
    connection.send(rawRequest(['GET /livez HTTP/1.1', 'Host: test']));
    connection.socket.resetAndDestroy();
    await until(() => addresses().length === before + 1);
    assert.equal(addresses().at(-1), '127.0.0.1');
  });
});

describe('Many clients that disconnect at once', () => {
  const harness = sharedHarness();

  it('are responded to for 5 ms per turn of the event loop, so that other requests are served in between', async () => {
    const count = 100;
    const queue = harness().queue();
    const gone = await Promise.all(Array.from({ length: count }, () => blockedGet(harness(), queue)));
    await harness().waiting(count);
    const responses = (): number => harness().server.requestTimes.get('take')?.count ?? 0;
    const before = responses();
    // For the clock of the server, each takes half a millisecond.
    harness().opened.clock.monotonic = () => responses() / 2;
    let [last, most] = [before, 0];
    for (const { socket } of gone) socket.end();
    await until(() => {
      most = Math.max(most, responses() - last);
      last = responses();
      return last === before + count;
    });
    for (const connection of gone) connection.destroy();
    assert.equal(harness().broker.waiting, 0);
    assert.ok(most <= 10, `${most} responses between two turns`);
  });
});

describe('A client that disconnects while it waits', () => {
  const harness = sharedHarness();

  const ways: readonly (readonly [string, (connection: RawConnection) => void])[] = [
    ['resets the connection', ({ socket }) => socket.resetAndDestroy()],
    ['closes the connection', ({ socket }) => socket.destroy()],
    ['closes its half of the connection', ({ socket }) => socket.end()],
  ];

  for (const [what, leave] of ways) {
    it(`stops waiting at once and never takes an element if it ${what}`, async () => {
      const queue = harness().queue();
      const connection = await blockedGet(harness(), queue);
      await harness().waiting(1);
      leave(connection);
      await harness().waiting(0);
      await harness().client().insert('N', queue, 'a');
      assert.equal((await statusOf(harness(), queue)).size, 1);
      assert.deepEqual(jsonOf(await harness().client().consumers('N', queue)), []);
    });
  }

  it('leaves the element to the next consumer in the wait queue', async () => {
    const queue = harness().queue();
    const gone = await blockedGet(harness(), queue);
    await harness().waiting(1);
    const next = harness().client().get('N', queue);
    await harness().waiting(2);
    gone.destroy();
    await harness().waiting(1);
    await harness().client().insert('N', queue, 'a');
    assert.equal((await next).body.toString(), 'a');
  });

  it('takes no element with the requests that it pipelined behind the waiting one', async () => {
    const queue = harness().queue();
    const request = rawRequest([`GET ${queuePath('N', queue)} HTTP/1.1`, 'Host: test', AUTHORIZATION]);
    const connection = await RawConnection.open(harness().port);
    connection.send(Buffer.concat([request, request, request]));
    await harness().waiting(1);
    connection.destroy();
    await harness().waiting(0);
    for (const body of ['a', 'b', 'c']) await harness().client().insert('N', queue, body);
    assert.equal((await statusOf(harness(), queue)).size, 3);
  });

  it('leaves no waiter behind, even a thousand times', async () => {
    const queue = harness().queue();
    for (let round = 0; round < 20; round++) {
      const connections = await Promise.all(Array.from({ length: 50 }, () => blockedGet(harness(), queue)));
      await harness().waiting(50);
      for (const connection of connections) connection.destroy();
      await harness().waiting(0);
    }
    await harness().client().insert('N', queue, 'a');
    assert.equal((await statusOf(harness(), queue)).size, 1);
  });
});

describe('A client that disconnects before it has read its element', () => {
  const users = ['test1', 'ann', 'ben'].map((name) => ({ name, password: name, rights: null }));
  const harness = sharedHarness({ users, http: { bodyLimit: 64 * 1_048_576 } });
  /** More than the kernel buffers for a client that does not read. */
  const large = Buffer.alloc(32 * 1_048_576, 'x');

  for (const [what, query] of [
    ['a pop', ''],
    ['a reserve', '?reserve=1'],
  ] as const) {
    it(`returns the element of ${what} to its place, without counting a try or a take`, async () => {
      const client = harness().client();
      const queue = harness().queue();
      const { id } = jsonOf<{ id: string }>(await client.insert('N', queue, large, { tries: 2 }));
      await client.insert('N', queue, 'second');
      const connection = await blockedGet(harness(), queue, query);
      connection.socket.pause();
      await until(async () => {
        const { stats } = await statusOf(harness(), queue);
        return stats.get + stats.reserve === 1;
      });
      connection.destroy();
      await until(async () => (await statusOf(harness(), queue)).size === 2);
      const { stats, resvSize } = await statusOf(harness(), queue);
      assert.deepEqual([stats.get, stats.reserve, stats.rollback, resvSize], [0, 0, 0, 0]);
      const again = await client.get('N', queue);
      assert.equal(headerOf(again, 'x-ks-id'), id, 'the element is in its old place');
      assert.equal(headerOf(again, 'x-ks-tries'), '2');
      assert.ok(again.body.equals(large));
    });
  }

  it('clients of one user that do not read buffer at most 128 MiB; a further take is rejected and undone', async () => {
    const queue = harness().queue();
    const half = newElement({ body: Buffer.alloc(64 * 1_048_576) });
    const { storage } = harness().opened.engine;
    for (let i = 0; i < 3; i += 1) await storage.insert({ ns: 'N', name: queue }, [half]);
    const connections = [];
    for (const left of [2, 1]) {
      const connection = await blockedGet(harness(), queue, '?reserve=1');
      connection.socket.pause();
      connections.push(connection);
      await until(async () => (await statusOf(harness(), queue)).size === left);
    }
    const rejected = await harness().client().reserve('N', queue);
    assert.deepEqual([rejected.status, jsonOf<{ code: string }>(rejected).code], [503, 'overloaded']);
    for (const connection of connections) connection.destroy();
    await until(async () => (await statusOf(harness(), queue)).size === 3);
    assert.equal((await harness().client().reserve('N', queue)).body.length, half.body.byteLength);
  });

  it('unread responses to browse requests count toward the same limit, which also rejects other large responses', async () => {
    const queue = harness().queue();
    const half = newElement({ body: Buffer.alloc(64 * 1_048_576) });
    const [id = ''] = await harness().opened.engine.storage.insert({ ns: 'N', name: queue }, [half]);
    const path = `${queuePath('N', queue)}/elements/${id}`;
    const looked = (): number => harness().server.requestTimes.get('browseElement')?.count ?? 0;
    const connections = [];
    for (const count of [1, 2]) {
      const connection = await RawConnection.open(harness().port);
      connection.socket.pause();
      connection.send(rawRequest([`GET ${path} HTTP/1.1`, 'Host: test', AUTHORIZATION]));
      connections.push(connection);
      await until(() => looked() === count);
    }
    const client = harness().client();
    const insertMany = (count: number) => client.insertLines('N', queue, Array(count).fill({ text: 'a' }));
    const selector = 'env => { env.msg.payload = "x".repeat(100000); return true }';
    const declaration = { src: { ns: 'N', queue }, dst: [{ ns: 'N', queue: 'to', selector }], consumer: {} };
    for (const ask of [
      () => client.request('GET', path),
      () => client.reserve('N', queue),
      // The responses to these would have more than 64 KiB.
      () => insertMany(5_000),
      () => client.settleMany('N', queue, { commit: Array(1_000).fill('none') }),
      () => client.request('POST', '/x/none/test', { body: JSON.stringify({ declaration }) }),
    ]) {
      const rejected = await ask();
      assert.deepEqual([rejected.status, jsonOf<{ code: string }>(rejected).code], [503, 'overloaded']);
    }
    assert.equal((await insertMany(100)).status, 200);
    assert.equal((await statusOf(harness(), queue)).size, 101, 'rejected inserts store nothing');
    for (const connection of connections) connection.destroy();
    await until(async () => (await client.request('GET', path)).status === 200);
    assert.equal((await insertMany(5_000)).status, 200);
  });

  it('clients of two users that do not read do not prevent a third user from taking', async () => {
    const queue = harness().queue();
    const half = newElement({ body: Buffer.alloc(64 * 1_048_576) });
    const { storage } = harness().opened.engine;
    for (let i = 0; i < 4; i += 1) await storage.insert({ ns: 'N', name: queue }, [half]);
    const connections = [];
    for (const [at, user] of ['ann', 'ann', 'ben', 'ben'].entries()) {
      const authorization = `Authorization: ${basic(user, user)}`;
      const connection = await blockedGet(harness(), queue, '?reserve=1', authorization);
      connection.socket.pause();
      connections.push(connection);
      await until(async () => (await statusOf(harness(), queue)).size === 3 - at);
    }
    const client = harness().client();
    await client.insert('N', queue, large);
    assert.ok((await client.reserve('N', queue)).body.equals(large));
    for (const connection of connections) connection.destroy();
    await until(async () => (await statusOf(harness(), queue)).size === 4);
  });

  it('a waiting client receives the element that another did not read', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const connection = await blockedGet(harness(), queue);
    connection.socket.pause();
    await harness().waiting(1);
    await client.insert('N', queue, large);
    await harness().waiting(0);
    const next = client.get('N', queue);
    await harness().waiting(1);
    connection.destroy();
    assert.ok((await next).body.equals(large));
  });

  it('a client that read its whole response keeps the element, however it disconnects', async () => {
    const client = harness().client();
    for (const leave of ['destroy', 'resetAndDestroy'] as const) {
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      const connection = await blockedGet(harness(), queue);
      const [answer] = await connection.answers(1);
      assert.equal(answer?.body, 'a');
      connection.socket[leave]();
      assert.equal((await statusOf(harness(), queue)).totalSize, 0);
    }
  });
});

describe('A client that does not read its response', () => {
  const harness = sharedHarness({
    http: { bodyLimit: 64 * 1_048_576, headersTimeoutMs: 1500, requestTimeoutMs: 1500 },
  });
  /** Bypasses HTTP: a busy machine may take longer than the request timeout to read such a request. */
  const storeLarge = (name: string): Promise<unknown> => {
    const large = newElement({ body: Buffer.alloc(32 * 1_048_576) });
    return harness().opened.engine.storage.insert({ ns: 'N', name }, [large]);
  };

  it('is disconnected after the timeout, and its element is returned to the queue', async () => {
    const queue = harness().queue();
    await storeLarge(queue);
    const connection = await blockedGet(harness(), queue);
    connection.socket.pause();
    await until(async () => (await statusOf(harness(), queue)).stats.get === 1);
    await until(async () => (await statusOf(harness(), queue)).size === 1);
    connection.destroy();
  });

  it('is disconnected even if the response had to wait for an earlier one on its connection', async () => {
    const queue = harness().queue();
    const client = harness().client();
    await storeLarge(queue);
    const connection = await RawConnection.open(harness().port);
    const get = (name: string): Buffer =>
      rawRequest([`GET ${queuePath('N', name)} HTTP/1.1`, 'Host: test', AUTHORIZATION]);
    connection.socket.pause();
    connection.send(Buffer.concat([get('waits'), get(queue)]));
    await harness().waiting(1);
    await client.insert('N', 'waits', 'first');
    await until(async () => (await statusOf(harness(), queue)).stats.get === 1);
    await until(async () => (await statusOf(harness(), queue)).size === 1);
    connection.destroy();
  });
});

describe('An element that HTTP cannot write', () => {
  it('is answered with 500 and a request id, returned to the queue and logged', async () => {
    const harness = await Harness.start();
    try {
      const client = harness.client();
      const { storage } = harness.opened.engine;
      const [id] = await storage.insert({ ns: 'N', name: 'q' }, [newElement({ headers: ['snow', '☃'] })]);
      const answer = await client.get('N', 'q');
      assert.equal(answer.status, 500);
      const problem = jsonOf<{ code: string; requestId: string }>(answer);
      assert.equal(problem.code, 'internal');
      assert.doesNotMatch(answer.body.toString(), /snow|header/i);
      const [fault] = harness.faults();
      assert.equal(fault?.fields.requestId, problem.requestId);
      const { size } = jsonOf<Status>(await client.status('N', 'q'));
      assert.equal(size, 1);
      assert.equal((await client.remove('N', 'q', id ?? '')).status, 204);
    } finally {
      await harness.close();
    }
  });
});

describe('A client that disconnects in the middle of an insert', () => {
  const harness = sharedHarness({ http: { logsAccess: true } });

  it('frees its place for bodies if it pipelined a batch behind a waiting call', async () => {
    const queue = harness().queue();
    const path = queuePath('N', queue);
    const insert = (...headers: string[]): string[] => [
      `POST ${path}/elements HTTP/1.1`,
      'Host: test',
      AUTHORIZATION,
      'Content-Type: application/x-ndjson',
      ...headers,
    ];
    const get = rawRequest([`GET ${path} HTTP/1.1`, 'Host: test', AUTHORIZATION]);
    const begun = rawRequest(insert('Transfer-Encoding: chunked'), '3\r\n{}\n\r\n');
    // More than there are places, but fewer than may wait for one.
    const connections = await Promise.all(
      Array.from({ length: 20 }, async () => {
        const connection = await RawConnection.open(harness().port);
        connection.send(Buffer.concat([get, begun]));
        return connection;
      }),
    );
    await harness().waiting(20);
    for (const connection of connections) connection.destroy();
    await harness().waiting(0);
    const line = '{"text":"a"}\n';
    const whole = rawRequest(
      insert('Transfer-Encoding: chunked', 'Connection: close'),
      `${line.length.toString(16)}\r\n${line}\r\n0\r\n\r\n`,
    );
    const [answer] = await exchange(harness().port, whole);
    assert.equal(answer?.status, 200);
    assert.equal((await statusOf(harness(), queue)).totalSize, 1);
  });

  for (const [what, framing] of [
    ['of a declared length', 'Content-Length: 100'],
    ['in chunks', 'Transfer-Encoding: chunked'],
  ] as const) {
    it(`stores nothing of a body ${what}`, async () => {
      const queue = harness().queue();
      const connection = await RawConnection.open(harness().port);
      const path = queuePath('N', queue);
      connection.send(
        rawRequest([`PUT ${path} HTTP/1.1`, 'Host: test', AUTHORIZATION, framing], '5\r\nhello\r\n'),
      );
      await harness().client().status('N', queue);
      connection.destroy();
      await until(() =>
        harness().log.some(({ fields }) => fields.event === 'access' && fields.path === path),
      );
      assert.equal((await statusOf(harness(), queue)).totalSize, 0);
    });
  }
});

describe('Clients that do not read long responses', () => {
  const metrics = 'x'.repeat(64 * 1_048_576);
  const http = { metricsWithoutLogin: true };
  const harness = sharedHarness({ http, metricsText: () => metrics });

  it('buffer at most 128 MiB together without a login, while users are served', async () => {
    const connections: RawConnection[] = [];
    const scraped = (): number => harness().server.requestTimes.get('metrics')?.count ?? 0;
    for (const count of [1, 2]) {
      const connection = await RawConnection.open(harness().port);
      connection.socket.pause();
      connection.send(rawRequest(['GET /metrics HTTP/1.1', 'Host: test']));
      connections.push(connection);
      await until(() => scraped() === count);
    }
    const anybody = harness().client(null);
    const rejected = await anybody.request('GET', '/metrics');
    assert.deepEqual([rejected.status, jsonOf<{ code: string }>(rejected).code], [503, 'overloaded']);
    assert.equal((await harness().client().request('GET', '/metrics')).status, 200);
    for (const connection of connections) connection.destroy();
    await until(async () => (await anybody.request('GET', '/metrics')).status === 200);
  });
});
