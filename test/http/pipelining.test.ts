import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import { readAccounts } from '../../src/access/account.ts';
import { PasswordAuthenticator } from '../../src/access/password-authenticator.ts';
import { SILENT_LOG } from '../support/broker.ts';
import { newElement } from '../support/elements.ts';
import { jsonOf, queuePath } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { basic, type Status, sharedHarness, statusOf } from './harness.ts';
import { AUTHORIZATION, lastRequest, RawConnection, rawRequest } from './raw.ts';

const MIB = 1_048_576;

describe('A connection that pipelines', () => {
  const harness = sharedHarness({ http: { bodyLimit: 64 * MIB } });

  const get = (queue: string, query = ''): Buffer =>
    rawRequest([`GET ${queuePath('N', queue)}${query} HTTP/1.1`, 'Host: test', AUTHORIZATION]);

  it('and does not read takes one element, however many it requested', async () => {
    const client = harness().client();
    const queue = harness().queue();
    // More than the kernel buffers for a client that does not read.
    await client.insert('N', queue, Buffer.alloc(32 * MIB, 'x'));
    for (let i = 0; i < 13; i++) await client.insert('N', queue, Buffer.alloc(MIB, String(i % 10)));
    const connection = await RawConnection.open(harness().port);
    connection.socket.pause();
    const gets = Array.from({ length: 13 }, () => get(queue));
    connection.send(Buffer.concat([...gets, lastRequest('GET', `${queuePath('N', queue)}?to=0`)]));
    await until(async () => (await statusOf(harness(), queue)).stats.get > 0);
    assert.equal((await statusOf(harness(), queue)).size, 13);
    assert.equal((await client.get('N', queue)).body.length, MIB, 'others are served');
    connection.socket.resume();
    const answers = await connection.untilClosed();
    assert.deepEqual(
      answers.map(({ status, body }) => [status, body.length > MIB]),
      [[200, true], ...Array.from({ length: 12 }, () => [200, false]), [504, false]],
    );
  });

  const put = (queue: string, body: string): Buffer =>
    rawRequest(
      [
        `PUT ${queuePath('N', queue)} HTTP/1.1`,
        'Host: test',
        AUTHORIZATION,
        `Content-Length: ${body.length}`,
      ],
      body,
    );

  it('is answered in the order of its requests, even if gets and inserts are mixed', async () => {
    const queue = harness().queue();
    const connection = await RawConnection.open(harness().port);
    const puts = [put(queue, 'a'), put(queue, 'b')] as const;
    connection.send(Buffer.concat([puts[0], get(queue), puts[1], get(queue), get(queue, '?to=0')]));
    const answers = await connection.answers(5);
    assert.deepEqual(
      answers.map(({ status }) => status),
      [200, 200, 200, 200, 504],
    );
    assert.deepEqual([answers[1]?.body, answers[3]?.body], ['a', 'b']);
    connection.destroy();
  });

  it('may have at most 100 gets behind the waiting one; further ones are answered with 503', async () => {
    const queue = harness().queue();
    const connection = await RawConnection.open(harness().port);
    connection.send(Buffer.concat(Array.from({ length: 103 }, () => get(queue))));
    await harness().waiting(1);
    const client = harness().client();
    for (let i = 0; i < 101; i++) await client.insert('N', queue, String(i));
    const answers = await connection.answers(103);
    assert.deepEqual(
      answers.map(({ status }) => status),
      [...Array.from({ length: 101 }, () => 200), 503, 503],
    );
    assert.equal(JSON.parse(answers[102]?.body ?? '').code, 'overloaded');
    connection.destroy();
  });
});

describe('A connection on which nobody has logged in, and that pipelines', () => {
  const harness = sharedHarness();
  const wrong = `Authorization: ${basic('test1', 'wrong')}`;

  const rejected: readonly (readonly [string, string, readonly string[]])[] = [
    ['GET', '/q', []],
    ['GET', '/livez', []],
    ['PUT', '/q/N/q', ['Content-Length: 1']],
    ['GET', '/q', [wrong]],
    ['PUT', '/q/N/q', [wrong, 'Content-Length: 1']],
  ];

  for (const [method, path, headers] of rejected) {
    it(`is closed after ten requests in one turn of the event loop: ${[method, path, ...headers].join(' ')}`, async () => {
      const lines = [`${method} ${path} HTTP/1.1`, 'Host: test', ...headers];
      const one = rawRequest(lines, method === 'PUT' ? 'a' : '');
      const connection = await RawConnection.open(harness().port);
      const handled = () =>
        [...harness().server.requestTimes.values()].reduce((sum, { count }) => sum + count, 0);
      const before = handled();
      connection.send(Buffer.concat(Array.from({ length: 500 }, () => one)));
      const answers = await connection.untilClosed();
      assert.deepEqual(
        answers.map(({ status }) => status),
        [...Array.from({ length: 10 }, () => (path === '/livez' ? 200 : 401)), 503],
      );
      assert.equal(JSON.parse(answers.at(-1)?.body ?? '').code, 'overloaded');
      assert.equal(answers.at(-1)?.headers.get('connection'), 'close');
      assert.equal(handled() - before, 11, 'the requests behind them are not handled');
    });
  }

  it('may send more once the user of a request is known', async () => {
    await harness().client().namespaces();
    const one = rawRequest(['GET /q HTTP/1.1', 'Host: test', AUTHORIZATION]);
    const connection = await RawConnection.open(harness().port);
    connection.send(Buffer.concat(Array.from({ length: 50 }, () => one)));
    const answers = await connection.answers(50);
    assert.ok(answers.every(({ status }) => status === 200));
    connection.destroy();
  });
});

describe('Gets that are pipelined with the first login of their user', () => {
  const users = [{ name: 'test1', password: 'test1', rights: null }];
  const harness = sharedHarness({
    users,
    authenticator: ({ clock }) =>
      new PasswordAuthenticator({ accounts: readAccounts(users, ['N']), clock, log: SILENT_LOG }),
  });

  it('end with the same error as the eleventh, and take nothing', async () => {
    await harness()
      .broker.namespace('N')
      .queue('q')
      .insert([newElement({ body: 'a' })]);
    const one = rawRequest(['GET /q/N/q HTTP/1.1', 'Host: test', AUTHORIZATION]);
    const connection = await RawConnection.open(harness().port);
    connection.send(Buffer.concat(Array.from({ length: 11 }, () => one)));
    const answers = await connection.untilClosed();
    assert.equal(answers.length, 11);
    for (const { status, body } of answers) {
      assert.equal(status, 503);
      assert.match(JSON.parse(body).detail, /More than 10 requests arrived together/);
    }
    assert.equal((await statusOf(harness(), 'q')).size, 1);
  });
});

describe('Inserts that are pipelined behind a waiting get', () => {
  const harness = sharedHarness();
  let connection: RawConnection;
  afterEach(() => connection.destroy());

  const send = (count: number, method: string, queue: string): void => {
    const lines = [`${method} ${queuePath('N', queue)} HTTP/1.1`, 'Host: test', AUTHORIZATION];
    const one = rawRequest([...lines, 'Content-Length: 0']);
    connection.send(Buffer.concat(Array.from({ length: count }, () => one)));
  };
  const stored = (queue: string, count: number): Promise<void> =>
    until(async () => jsonOf<Status>(await harness().client().status('N', queue)).size === count);
  /** Sends gets, then inserts whose responses exceed 64 KiB, after which the server stops reading. */
  const flood = async (gets: number, queue: string): Promise<void> => {
    connection = await RawConnection.open(harness().port);
    send(gets, 'GET', queue);
    await harness().waiting(1);
    send(500, 'PUT', `${queue}-other`);
    await stored(`${queue}-other`, 500);
    send(1, 'PUT', `${queue}-other`);
  };

  it('are stored at once and answered after the get', async () => {
    const queue = harness().queue();
    connection = await RawConnection.open(harness().port);
    send(1, 'GET', queue);
    await harness().waiting(1);
    send(100, 'PUT', `${queue}-other`);
    await stored(`${queue}-other`, 100);
    send(1, 'PUT', `${queue}-other`);
    await stored(`${queue}-other`, 101);
    assert.equal(harness().broker.waiting, 1);
    await harness().client().insert('N', queue, 'a');
    const answers = await connection.answers(102);
    assert.ok(answers.every(({ status }) => status === 200));
    assert.equal(answers[0]?.body, 'a');
  });

  it('end the get, and further gets behind it, without an element if their responses exceed 64 KiB', async () => {
    const queue = harness().queue();
    await flood(2, queue);
    await until(() => connection.received.split('HTTP/1.1 ').length > 503);
    const [first, second, ...answers] = await connection.answers(503);
    for (const answer of [first, second]) {
      assert.equal(answer?.status, 503);
      assert.equal(JSON.parse(answer?.body ?? '').code, 'overloaded');
    }
    assert.ok(answers.every(({ status }) => status === 200));
    await stored(`${queue}-other`, 501);
    send(1, 'GET', `${queue}-other`);
    assert.equal((await connection.answers(504))[503]?.status, 200, 'the connection can be used again');
  });

  it('do not make it take an element for a client that disconnected', async () => {
    const queue = harness().queue();
    await flood(1, queue);
    connection.destroy();
    await harness().waiting(0);
    await harness().client().insert('N', queue, 'a');
    await stored(queue, 1);
  });
});

describe('A get that waits behind a response that its client did not read at once', () => {
  const harness = sharedHarness({ http: { headersTimeoutMs: 500, requestTimeoutMs: 500 } });

  it('is not ended by the timeout of that response', async () => {
    const get = (queue: string): Buffer =>
      rawRequest([`GET ${queuePath('N', queue)} HTTP/1.1`, 'Host: test', AUTHORIZATION]);
    const store = (name: string): Promise<unknown> => {
      const large = newElement({ body: Buffer.alloc(16 * MIB) });
      return harness().opened.engine.storage.insert({ ns: 'N', name }, [large]);
    };
    await store('first');
    const reader = await RawConnection.open(harness().port);
    reader.send(Buffer.concat([get('first'), get('waits')]));
    await harness().waiting(1);
    // The timeout of this response starts later and therefore ends later.
    await store('second');
    // Opened only now, because a connection without a request is closed after 500 ms.
    const other = await RawConnection.open(harness().port);
    other.socket.pause();
    other.send(get('second'));
    const sizeOf = async (queue: string): Promise<number> =>
      jsonOf<Status>(await harness().client().status('N', queue)).size;
    await until(() => harness().server.requestTimes.get('take')?.count === 2);
    await until(async () => (await sizeOf('second')) === 1);
    assert.equal(harness().broker.waiting, 1);
    await harness().client().insert('N', 'waits', 'a');
    await until(() => reader.received.endsWith('a'));
    reader.destroy();
    other.destroy();
  });
});
