import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newElement } from '../support/elements.ts';
import { headerOf, jsonOf, queuePath } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { basic, Harness, sharedHarness } from './harness.ts';
import { AUTHORIZATION, exchange, RawConnection, rawRequest } from './raw.ts';

interface Status {
  readonly size: number;
  readonly resvSize: number;
  readonly totalSize: number;
  readonly stats: { readonly get: number; readonly reserve: number; readonly rollback: number };
}

async function statusOf(harness: Harness, queue: string): Promise<Status> {
  return jsonOf<Status>(await harness.client().status('N', queue));
}

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

describe('The access log of a client that goes away', () => {
  const harness = sharedHarness({ http: { logsAccess: true } });

  it('has its address, though nothing else asked for it before the connection was closed', async () => {
    const connection = await blockedGet(harness(), harness().queue());
    await harness().waiting(1);
    connection.socket.resetAndDestroy();
    await until(() => harness().log.some(({ fields }) => fields.event === 'access'));
    const [line] = harness().log.filter(({ fields }) => fields.event === 'access');
    assert.equal(line?.fields.address, '127.0.0.1');
  });
});

describe('Clients that go away at once', () => {
  const harness = sharedHarness();

  it('leave the event loop to other requests between responses to fifty of them', async () => {
    const count = 100;
    const queue = harness().queue();
    const gone = await Promise.all(Array.from({ length: count }, () => blockedGet(harness(), queue)));
    await harness().waiting(count);
    const responses = (): number => harness().server.requestTimes.get('take')?.count ?? 0;
    const before = responses();
    let [last, most] = [before, 0];
    for (const { socket } of gone) socket.end();
    await until(() => {
      most = Math.max(most, responses() - last);
      last = responses();
      return last === before + count;
    });
    for (const connection of gone) connection.destroy();
    assert.equal(harness().broker.waiting, 0);
    assert.ok(most <= 50, `${most} responses between two turns`);
  });
});

describe('A client that goes away while it waits', () => {
  const harness = sharedHarness();

  const ways: readonly (readonly [string, (connection: RawConnection) => void])[] = [
    ['resets the connection', ({ socket }) => socket.resetAndDestroy()],
    ['closes the connection', ({ socket }) => socket.destroy()],
    ['closes its half of the connection', ({ socket }) => socket.end()],
  ];

  for (const [what, leave] of ways) {
    it(`${what}: stops waiting at once and never takes an element`, async () => {
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

  it('the next consumer in the wait queue gets the element instead', async () => {
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

  it('with pipelined calls behind the one that waits: none of them takes an element', async () => {
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

  it('a thousand times: nothing is left, and all elements are there', async () => {
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

describe('A client that goes away before its element was handed over', () => {
  const users = ['test1', 'ann', 'ben'].map((name) => ({ name, password: name, rights: null }));
  const harness = sharedHarness({ users, http: { bodyLimit: 64 * 1_048_576 } });
  /** More than the kernel takes into its buffers for a client that does not read. */
  const large = Buffer.alloc(32 * 1_048_576, 'x');

  for (const [what, query] of [
    ['a pop', ''],
    ['a reserve', '?reserve=1'],
  ] as const) {
    it(`${what}: the element goes back, same id, no try counted, and is counted in no statistic`, async () => {
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
      assert.equal(headerOf(again, 'x-ks-id'), id, 'it has its old place');
      assert.equal(headerOf(again, 'x-ks-tries'), '2');
      assert.ok(again.body.equals(large));
    });
  }

  it('clients that do not read hold no more than 128 MiB for a user: what one more takes goes back', async () => {
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

  it('clients that look at elements and do not read them are counted in the same way', async () => {
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
    assert.equal((await statusOf(harness(), queue)).size, 101, 'nothing of what was rejected is stored');
    for (const connection of connections) connection.destroy();
    await until(async () => (await client.request('GET', path)).status === 200);
    assert.equal((await insertMany(5_000)).status, 200);
  });

  it('clients of two users that do not read keep no third user from taking', async () => {
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

  it('a waiting client gets what another one could not take', async () => {
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

  it('a client that read its whole answer keeps it, however it leaves then', async () => {
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

describe('A client that does not read its answer', () => {
  const harness = sharedHarness({
    http: { bodyLimit: 64 * 1_048_576, headersTimeoutMs: 1500, requestTimeoutMs: 1500 },
  });
  /** Not over HTTP: a busy machine may take longer than that to read such a request. */
  const storeLarge = (name: string): Promise<unknown> => {
    const large = newElement({ body: Buffer.alloc(32 * 1_048_576) });
    return harness().opened.engine.storage.insert({ ns: 'N', name }, [large]);
  };

  it('is cut off after a while, and its element goes back', async () => {
    const queue = harness().queue();
    await storeLarge(queue);
    const connection = await blockedGet(harness(), queue);
    connection.socket.pause();
    await until(async () => (await statusOf(harness(), queue)).stats.get === 1);
    await until(async () => (await statusOf(harness(), queue)).size === 1);
    connection.destroy();
  });

  it('is cut off though the answer had to wait for another one on its connection', async () => {
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
  it('is answered with 500 and a request id, goes back, and is logged; the server continues', async () => {
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

describe('A client that goes away in the middle of an insert', () => {
  const harness = sharedHarness();

  it('of many, behind a call that waits: its turn is for the next one', async () => {
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
    // Fewer than may wait for their turn, more than have it at once.
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
    it(`${what}: nothing is stored`, async () => {
      const queue = harness().queue();
      const connection = await RawConnection.open(harness().port);
      const path = queuePath('N', queue);
      connection.send(
        rawRequest([`PUT ${path} HTTP/1.1`, 'Host: test', AUTHORIZATION, framing], '5\r\nhello\r\n'),
      );
      await harness().client().status('N', queue);
      connection.destroy();
      assert.equal((await statusOf(harness(), queue)).totalSize, 0);
    });
  }
});

describe('Clients that do not read long texts', () => {
  const metrics = 'x'.repeat(64 * 1_048_576);
  const http = { metricsWithoutLogin: true };
  const harness = sharedHarness({ http, metricsText: () => metrics });

  it('hold no more than 128 MiB without a login, and users are served', async () => {
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
