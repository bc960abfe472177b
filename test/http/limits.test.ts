import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { afterEach, beforeEach, describe, it, type TestContext } from 'node:test';
import { MAX_PLACE_WAIT_MS } from '../../src/access/body-limit.ts';
import type { Authenticator, User } from '../../src/access/user.ts';
import { HTTP_DEFAULTS } from '../../src/http/options.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { RIGHTS } from '../../src/model/rights.ts';
import { BytePieces } from '../../src/util/byte-pieces.ts';
import { plain } from '../support/broker.ts';
import { type HeldInserts, holdInserts } from '../support/held-inserts.ts';
import { jsonOf } from '../support/http-client.ts';
import { memoryInUse } from '../support/memory.ts';
import { until } from '../support/until.ts';
import { basic, sharedHarness, statusOf } from './harness.ts';
import { AUTHORIZATION, exchange, type RawAnswer, RawConnection, rawRequest } from './raw.ts';
import { takeFrom } from './takes.ts';

const MIB = 1_048_576;

function codeOf(answer: RawAnswer | undefined): string {
  return JSON.parse(answer?.body ?? '{}').code;
}

function put(...headers: string[]): Buffer {
  return rawRequest(['PUT /q/N/q HTTP/1.1', 'Host: test', AUTHORIZATION, ...headers]);
}

describe('Bodies over the limit', () => {
  const harness = sharedHarness({ http: { bodyLimit: 1_000 } });

  it('are rejected with 413 before they are sent, if their length is declared', async () => {
    const connection = await RawConnection.open(harness().port);
    connection.send(put('Content-Length: 10000000000'));
    const [answer] = await connection.answers(1);
    assert.equal(answer?.status, 413);
    assert.equal(codeOf(answer), 'body-too-large');
    connection.destroy();
  });

  it('are rejected with 413 at the limit while the client is still sending, if they are chunked', async () => {
    const connection = await RawConnection.open(harness().port);
    connection.send(put('Transfer-Encoding: chunked'));
    connection.send(`3e8\r\n${'x'.repeat(1_000)}\r\n`);
    connection.send('1\r\nx\r\n');
    const [answer] = await connection.answers(1);
    assert.equal(answer?.status, 413);
    connection.destroy();
  });

  it('are not joined before they are discarded, which takes as much memory again', async (t) => {
    const joined = t.mock.method(BytePieces.prototype, 'take');
    const connection = await RawConnection.open(harness().port);
    connection.send(put('Transfer-Encoding: chunked'));
    for (let i = 0; i < 3; i += 1) connection.send(`190\r\n${'x'.repeat(400)}\r\n`);
    const [answer] = await connection.answers(1);
    assert.deepEqual([answer?.status, joined.mock.callCount()], [413, 0]);
    connection.destroy();
  });

  it('are discarded if the client sends them anyway, and the connection can be used again', async () => {
    const connection = await RawConnection.open(harness().port);
    connection.send(put(`Content-Length: ${MIB}`));
    connection.send(Buffer.alloc(MIB));
    connection.send(put('Content-Length: 1', 'Connection: close'));
    connection.send('a');
    const answers = await connection.untilClosed();
    assert.deepEqual(
      answers.map(({ status }) => status),
      [413, 200],
    );
  });

  it('end the connection after 256 small chunks, and other connections get their bodies', async () => {
    const chunked = rawRequest(['PUT /q/N/q HTTP/1.1', 'Host: test', 'Transfer-Encoding: chunked']);
    const send = async (count: number): Promise<(number | undefined)[]> => {
      const connection = await RawConnection.open(harness().port);
      connection.send(chunked);
      await connection.answers(1);
      connection.send(`${'1\r\nx\r\n'.repeat(count)}0\r\n\r\n`);
      connection.send(rawRequest(['GET /livez HTTP/1.1', 'Host: test', 'Connection: close']));
      return (await connection.untilClosed()).map(({ status }) => status);
    };
    assert.deepEqual(await send(256), [401, 200]);
    for (let i = 0; i < 3; i++) assert.deepEqual(await send(257), [401]);
    const queue = harness().queue();
    for (const body of ['a', 'b', 'c', 'd']) {
      const [answer] = await exchange(
        harness().port,
        rawRequest(
          [
            `PUT /q/N/${queue} HTTP/1.1`,
            'Host: test',
            AUTHORIZATION,
            'Content-Length: 1',
            'Connection: close',
          ],
          body,
        ),
      );
      assert.equal(answer?.status, 200);
      assert.equal((await harness().client().get('N', queue)).body.toString(), body);
    }
  });

  it('end the connection if the client does not stop sending', async () => {
    const connection = await RawConnection.open(harness().port);
    connection.send(put('Transfer-Encoding: chunked'));
    const chunk = Buffer.from(`100000\r\n${'x'.repeat(MIB)}\r\n`);
    let sent = 0;
    while (!connection.socket.destroyed && sent < 100) {
      connection.send(chunk);
      sent += 1;
      if (connection.socket.writableNeedDrain) await connection.next('drain');
    }
    const answers = await connection.untilClosed();
    assert.ok(answers.every(({ status }) => status === 413));
    assert.ok(sent < 100, 'the connection ended before the client stopped sending');
  });

  it('do not include one of exactly the limit in many chunks, which is stored unchanged', async () => {
    const connection = await RawConnection.open(harness().port);
    connection.send(put('Transfer-Encoding: chunked', 'Connection: close'));
    for (let i = 0; i < 100; i++) connection.send(`a\r\n${String(i).padStart(10, '.')}\r\n`);
    connection.send('0\r\nX-Trailer: ignored\r\n\r\n');
    const [answer] = await connection.untilClosed();
    assert.equal(answer?.status, 200);
    const bodies = Array.from({ length: 100 }, (_, i) => String(i).padStart(10, '.')).join('');
    const client = harness().client();
    await client.get('N', 'q');
    assert.equal((await client.get('N', 'q')).body.toString(), bodies);
  });
});

describe('Bodies of one user', () => {
  const harness = sharedHarness({
    users: ['one', 'two'].map((name) => ({ name, password: 'pw', rights: null })),
  });
  const open: RawConnection[] = [];
  afterEach(() => {
    for (const connection of open.splice(0)) connection.destroy();
  });

  /** Requests to send a body; the server answers with 100 when it reads it. */
  const announce = async (user: string, ...headers: string[]): Promise<RawConnection> => {
    const connection = await RawConnection.open(harness().port);
    open.push(connection);
    const authorization = `Authorization: ${basic(user, 'pw')}`;
    const lines = ['PUT /q/N/q HTTP/1.1', 'Host: test', authorization, 'Expect: 100-continue', ...headers];
    connection.send(rawRequest(lines));
    return connection;
  };
  const statuses = async (connection: RawConnection, count: number): Promise<(number | undefined)[]> =>
    (await connection.answers(count)).map(({ status }) => status);

  for (const header of [`Content-Length: ${MIB}`, 'Transfer-Encoding: chunked']) {
    it(`occupy at most 128 MiB; the next one is read when one of them has ended (${header})`, async () => {
      const read = await Promise.all(Array.from({ length: 128 }, () => announce('one', header)));
      for (const connection of read) assert.deepEqual(await statuses(connection, 1), [100]);
      const [waiting, gone] = [await announce('one', header), await announce('one', header)];
      assert.deepEqual(await statuses(await announce('two', header), 1), [100], 'another user does not wait');
      assert.deepEqual(await statuses(await announce('one', 'Content-Length: 65536'), 1), [100]);
      assert.equal(waiting.received + gone.received, '');
      gone.destroy();
      read[0]?.destroy();
      assert.deepEqual(await statuses(waiting, 1), [100]);
      const body = 'x'.repeat(1000);
      const last = await announce('one', 'Content-Length: 100000');
      waiting.send(
        header.startsWith('T') ? `3e8\r\n${body}\r\n0\r\n\r\n` : Buffer.concat([Buffer.alloc(MIB, body)]),
      );
      assert.deepEqual(await statuses(waiting, 2), [100, 200]);
      assert.deepEqual(await statuses(last, 1), [100]);
    });
  }
});

describe('Bodies of one user that are being stored', () => {
  const harness = sharedHarness({ http: { bodyLimit: 32 * MIB } });
  const BODY = 'x'.repeat(70_000);
  const CHUNKS = `${BODY.length.toString(16)}\r\n${BODY}\r\n0\r\n\r\n`;
  const open: RawConnection[] = [];
  afterEach(() => {
    for (const connection of open.splice(0)) connection.destroy();
  });

  const request = (line: string, header: string, body = ''): Buffer =>
    rawRequest([`${line} HTTP/1.1`, 'Host: test', AUTHORIZATION, header], body);
  /** Counts as 32 MiB, since its length is not known: four occupy all that the user may have. */
  const chunked = (queue: string): Buffer =>
    request(`PUT /q/N/${queue}`, 'Transfer-Encoding: chunked', CHUNKS);
  const send = async (...requests: Buffer[]): Promise<RawConnection> => {
    const connection = await RawConnection.open(harness().port);
    open.push(connection);
    connection.send(Buffer.concat(requests));
    return connection;
  };
  /** The server answers this with 100 when it reads the body. */
  const announce = (): Promise<RawConnection> =>
    send(request('PUT /q/N/last', 'Transfer-Encoding: chunked\r\nExpect: 100-continue'));
  const hold = (t: TestContext): HeldInserts => {
    const held = holdInserts(harness().opened.engine.storage);
    t.after(held.release);
    return held;
  };

  it('count until then, also if their clients reset the connections', async (t) => {
    const held = hold(t);
    const stored = await Promise.all(Array.from({ length: 4 }, () => send(chunked('gone'))));
    await until(() => held.total === stored.length * BODY.length);
    for (const { socket } of stored) socket.resetAndDestroy();
    const next = await announce();
    // The server reads what arrived before these requests.
    for (let i = 0; i < 100; i += 1) await harness().client().status('N', 'none');
    assert.equal(next.received, '');
    held.release();
    assert.equal((await next.answers(1))[0]?.status, 100);
  });

  it('make another one wait for at most 60 s', async (t) => {
    const held = hold(t);
    for (let i = 0; i < 4; i += 1) await send(chunked('full'));
    await until(() => held.total === 4 * BODY.length);
    const late = await announce();
    // The server reads what arrived before these requests.
    for (let i = 0; i < 100; i += 1) await harness().client().status('N', 'none');
    await harness().passTime(MAX_PLACE_WAIT_MS - 1);
    assert.equal(late.received, '');
    await harness().passTime(1);
    assert.equal(codeOf((await late.answers(1))[0]), 'overloaded');
  });

  it('make another one wait, which counts until its time to arrive is over, although its response waits for an earlier one', async (t) => {
    const held = hold(t);
    for (let i = 0; i < 4; i += 1) await send(chunked('ahead'));
    await until(() => held.total === 4 * BODY.length);
    const never = request('PUT /q/N/never', 'Transfer-Encoding: chunked');
    const slow = await send(request('GET /q/N/empty', 'X: y'), never);
    // The server reads what arrived before these requests.
    const settle = async (): Promise<void> => {
      for (let i = 0; i < 100; i += 1) await harness().client().status('N', 'none');
    };
    await settle();
    held.release();
    for (let i = 0; i < 3; i += 1) assert.equal((await (await announce()).answers(1))[0]?.status, 100);
    await harness().passTime(HTTP_DEFAULTS.requestTimeoutMs / 2);
    const last = await announce();
    await settle();
    assert.equal(last.received, '');
    await harness().passTime(HTTP_DEFAULTS.requestTimeoutMs / 2);
    // By then, it would be rejected.
    await harness().passTime(MAX_PLACE_WAIT_MS / 2);
    assert.equal((await last.answers(1))[0]?.status, 100);
    assert.equal(slow.received, '');
    await harness().client().insert('N', 'empty', 'a');
    assert.deepEqual(
      (await slow.untilClosed()).map(({ status }) => status),
      [200, 408],
    );
  });

  it('count no longer afterwards, although their responses wait for an earlier one', async () => {
    const puts = Array.from({ length: 5 }, () => chunked('behind'));
    const connection = await send(request('GET /q/N/empty', 'X: y'), ...puts);
    await until(async () => (await statusOf(harness(), 'behind')).size === puts.length);
    assert.equal((await (await announce()).answers(1))[0]?.status, 100);
    assert.equal(connection.received, '');
  });

  it('add no listeners to their connection, of which Node would warn', async (t) => {
    const warning = t.mock.method(process, 'emitWarning', () => {});
    const held = hold(t);
    const length = `Content-Length: ${BODY.length}`;
    const puts = Array.from({ length: 12 }, () => request('PUT /q/N/pipelined', length, BODY));
    const connection = await send(...puts);
    await until(() => held.total === puts.length * BODY.length);
    held.release();
    for (const { status } of await connection.answers(puts.length)) assert.equal(status, 200);
    assert.equal(warning.mock.callCount(), 0);
  });
});

describe('Bodies of one user of whom 1000 wait', () => {
  const harness = sharedHarness({ http: { bodyLimit: 32 * MIB } });
  const CHUNKED = ['Host: test', AUTHORIZATION, 'Transfer-Encoding: chunked'];

  const announce = async (): Promise<RawConnection> => {
    const connection = await RawConnection.open(harness().port);
    connection.send(rawRequest(['PUT /q/N/q HTTP/1.1', 'Expect: 100-continue', ...CHUNKED]));
    return connection;
  };
  const INSERT_MANY = rawRequest(
    ['POST /q/N/many/elements HTTP/1.1', 'Content-Type: application/x-ndjson', ...CHUNKED],
    'c\r\n{"text":"a"}\r\n0\r\n\r\n',
  );

  it('are rejected, and leave nothing on their connection', async (t) => {
    // Each may have 32 MiB, so four occupy all that the user may have.
    const read = await Promise.all(Array.from({ length: 4 }, announce));
    for (const connection of read) assert.equal((await connection.answers(1))[0]?.status, 100);
    const waiting = await Promise.all(Array.from({ length: 1001 }, announce));
    await until(() => waiting.some(({ received }) => received !== ''));
    const warning = t.mock.method(process, 'emitWarning', () => {});
    const connection = await RawConnection.open(harness().port);
    connection.send(Buffer.concat(Array.from({ length: 12 }, () => INSERT_MANY)));
    for (const answer of await connection.answers(12)) assert.equal(codeOf(answer), 'overloaded');
    assert.equal(warning.mock.callCount(), 0);
    assert.equal(waiting.filter(({ received }) => received !== '').length, 1);
    for (const connection of [...read, ...waiting]) connection.destroy();
    // The server has noticed that when it reads another body.
    await until(async () => {
      const connection = await announce();
      const [answer] = await connection.answers(1);
      connection.destroy();
      return answer?.status === 100;
    });
    connection.send(INSERT_MANY);
    assert.equal((await connection.answers(13)).at(-1)?.status, 200);
    connection.destroy();
  });
});

describe('Expect: 100-continue', () => {
  const harness = sharedHarness({ http: { bodyLimit: 1_000 } });

  it('is answered with 100 once the request is valid, and then the body is read', async () => {
    const connection = await RawConnection.open(harness().port);
    connection.send(put('Content-Length: 1', 'Expect: 100-Continue', 'Connection: close'));
    const [first] = await connection.answers(1);
    assert.equal(first?.status, 100);
    connection.send('a');
    const [, second] = await connection.untilClosed();
    assert.equal(second?.status, 200);
  });

  const rejected: readonly (readonly [string, number, Buffer])[] = [
    ['a body over the limit', 413, put('Content-Length: 1001', 'Expect: 100-continue')],
    ['another expectation', 417, put('Content-Length: 1', 'Expect: tea', 'Connection: close')],
    [
      'wrong credentials',
      401,
      rawRequest(['PUT /q/N/q HTTP/1.1', 'Host: x', 'Content-Length: 1', 'Expect: 100-continue']),
    ],
    [
      'a bad parameter',
      400,
      rawRequest([
        'PUT /q/N/q?tries=x HTTP/1.1',
        'Host: x',
        AUTHORIZATION,
        'Content-Length: 1',
        'Expect: 100-continue',
      ]),
    ],
  ];
  for (const [what, status, bytes] of rejected) {
    it(`is answered with ${status} for ${what}, and the connection ends`, async () => {
      const answers = await exchange(harness().port, bytes);
      assert.deepEqual(
        answers.map((answer) => answer.status),
        [status],
      );
    });
  }

  it('is accepted on a get, which has no body', async () => {
    await harness().client().insert('N', 'q', 'a');
    const lines = [
      'GET /q/N/q HTTP/1.1',
      'Host: x',
      AUTHORIZATION,
      'Expect: 100-continue',
      'Connection: close',
    ];
    const answers = await exchange(harness().port, rawRequest(lines));
    assert.equal(answers.at(-1)?.body, 'a');
  });
});

describe('Requests that take too long to arrive', () => {
  const harness = sharedHarness({
    http: { bodyLimit: 32 * MIB, headersTimeoutMs: 100, requestTimeoutMs: 200, keepAliveTimeoutMs: 1 },
  });

  const slow: readonly (readonly [string, Buffer | string])[] = [
    ['a connection without a request', ''],
    ['a request whose headers never end', 'GET /q HTTP/1.1\r\nHost: test\r\n'],
    ['a request whose body never comes', put('Content-Length: 10')],
    [
      'a request whose chunks never end',
      Buffer.concat([put('Transfer-Encoding: chunked'), Buffer.from('1\r\na\r\n')]),
    ],
  ];
  for (const [what, bytes] of slow) {
    it(`${what} is answered with 408, and the connection ends`, async () => {
      const [answer] = await exchange(harness().port, bytes);
      assert.equal(answer?.status, 408);
      assert.equal(codeOf(answer), 'request-timeout');
    });
  }

  it('do not include calls that wait for an element', async () => {
    const waiting = harness().client().get('N', 'patient');
    await harness().waiting(1);
    // The check that ends this slow request has examined the waiting call's connection, too.
    await exchange(harness().port, 'GET /q HTTP/1.1\r\n');
    await harness().client().insert('N', 'patient', 'a');
    assert.equal((await waiting).status, 200);
  });

  it('do not include bodies that wait for their place until others are stored', async (t) => {
    const held = holdInserts(harness().opened.engine.storage);
    t.after(held.release);
    const send = async (...lines: string[]): Promise<RawConnection> => {
      const connection = await RawConnection.open(harness().port);
      t.after(() => connection.destroy());
      connection.send(rawRequest(['PUT /q/N/place HTTP/1.1', 'Host: test', AUTHORIZATION, ...lines]));
      return connection;
    };
    // Each counts as 32 MiB, since its length is not known: four occupy all that the user may have.
    const body = 'x'.repeat(70_000);
    const storing = await Promise.all(Array.from({ length: 4 }, () => send('Transfer-Encoding: chunked')));
    for (const { socket } of storing) socket.write(`${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`);
    await until(() => held.total === storing.length * body.length);
    const [whole, slow] = [await send('Content-Length: 70000'), await send('Content-Length: 70000')];
    whole.socket.write(body);
    slow.socket.write(body.slice(1));
    // The check that ends this slow request has examined the others, too.
    await exchange(harness().port, put('Content-Length: 10'));
    assert.equal(whole.received + slow.received, '');
    held.release();
    assert.equal((await whole.answers(1))[0]?.status, 200);
    // Its time begins when the server reads it.
    await exchange(harness().port, put('Content-Length: 10'));
    assert.equal(slow.received, '');
    await harness().passTime(200);
    assert.equal((await slow.untilClosed()).at(-1)?.status, 408);
  });

  it('do not affect idle connections, which end without an error', async () => {
    const connection = await RawConnection.open(harness().port);
    connection.send(rawRequest(['GET /livez HTTP/1.1', 'Host: test']));
    const [answer] = await connection.untilClosed();
    assert.equal(answer?.status, 200);
    assert.equal(answer?.headers.get('connection'), 'keep-alive');
  });

  it('store nothing', async () => {
    const { totalSize } = jsonOf<{ totalSize: number }>(await harness().client().status('N', 'q'));
    assert.equal(totalSize, 0);
  });
});

describe('Connections', () => {
  const harness = sharedHarness({ http: { maxSockets: 2 } });

  it('beyond the limit are closed at once and logged once a minute', async () => {
    const held = [await RawConnection.open(harness().port), await RawConnection.open(harness().port)];
    const probe = rawRequest(['GET /livez HTTP/1.1', 'Host: test']);
    for (const connection of held) connection.send(probe);
    for (const connection of held) assert.equal((await connection.answers(1))[0]?.status, 200);
    for (let i = 0; i < 3; i++) {
      const further = connect({ port: harness().port, host: '127.0.0.1' });
      further.on('error', () => {});
      await once(further, 'close');
    }
    const logged = (): object[] =>
      harness()
        .log.filter(({ message }) => message.includes('maxSockets'))
        .map(({ fields }) => fields);
    const fields = { protocol: 'HTTP', maxSockets: 2 };
    assert.deepEqual(logged(), [fields], 'one line, however many connections are closed');
    await harness().passTime(60_000);
    assert.deepEqual(logged(), [fields, { ...fields, leftOut: 2 }]);
    for (const connection of held) connection.destroy();
  });
});

describe('Connections of one user', () => {
  const users = ['test1', 'other'].map((name) => ({ name, password: name, rights: null }));
  const harness = sharedHarness({ http: { maxSockets: 10 }, users });
  const request = (name: string): Buffer =>
    rawRequest(['GET /q/N/q/status HTTP/1.1', 'Host: test', `Authorization: ${basic(name, name)}`]);
  const ask = async (connection: RawConnection, name: string, count = 1): Promise<RawAnswer | undefined> => {
    connection.send(request(name));
    return (await connection.answers(count)).at(-1);
  };

  it('are at most nine tenths of all, idle ones included, so that another user can still connect', async () => {
    const held: RawConnection[] = [];
    const open = async (): Promise<RawConnection> => {
      const connection = await RawConnection.open(harness().port);
      held.push(connection);
      return connection;
    };
    for (let i = 0; i < 9; i += 1) assert.equal((await ask(await open(), 'other'))?.status, 200);
    const rejected = await open();
    rejected.send(request('other'));
    const [answer] = await rejected.answers(1);
    assert.equal(answer?.status, 503);
    assert.equal(codeOf(answer), 'overloaded');
    assert.equal(answer?.headers.get('connection'), 'close');
    await rejected.untilClosed();
    const honest = await open();
    assert.equal((await ask(honest, 'test1'))?.status, 200);
    // A proxy sends requests of many users over one connection.
    assert.equal((await ask(held[0] as RawConnection, 'test1', 2))?.status, 200);
    assert.equal((await ask(honest, 'other', 2))?.status, 200);
    for (const connection of held) connection.destroy();
  });
});

describe('A body in chunks of one byte', () => {
  const login = Promise.withResolvers<User>();
  const harness = sharedHarness();
  const slowLogin = sharedHarness({
    authenticator: () => ({
      recall: () => null,
      login: () => login.promise,
      loginWithoutPassword: () => null,
      renew: (user) => user,
    }),
  });
  const CHUNK = '1\r\nx\r\n';
  /** The server's sockets of the requests that have started. */
  let sockets: Socket[] = [];
  const onStart = (message: unknown): void => {
    sockets.push((message as { socket: Socket }).socket);
  };
  beforeEach(() => {
    sockets = [];
    subscribe('http.server.request.start', onStart);
  });
  afterEach(() => unsubscribe('http.server.request.start', onStart));

  async function begun(port: number, method: string, path: string): Promise<RawConnection> {
    const connection = await RawConnection.open(port);
    const lines = [`${method} ${path} HTTP/1.1`, 'Host: test', AUTHORIZATION, 'Transfer-Encoding: chunked'];
    connection.send(rawRequest(lines));
    await until(() => sockets.length === 1);
    return connection;
  }

  /** Bytes that the server retains after reading `chunks`. @param count min. bytes of the body that it reads */
  async function kept(connection: RawConnection, chunks: Buffer, count: number): Promise<number> {
    const [socket] = sockets;
    const before = await memoryInUse();
    const end = (socket?.bytesRead ?? 0) + CHUNK.length * count;
    connection.send(chunks);
    await until(() => (socket?.bytesRead ?? 0) >= end);
    return (await memoryInUse()) - before;
  }

  it('occupies less than ten times its size in memory and is stored unchanged', async () => {
    const size = MIB / 2;
    const chunks = Buffer.from(CHUNK.repeat(size));
    const connection = await begun(harness().port, 'PUT', '/q/N/pieces');
    const bytes = await kept(connection, chunks, size);
    connection.send('0\r\n\r\n');
    assert.equal((await connection.answers(1))[0]?.status, 200);
    connection.destroy();
    const { body } = await harness().client().get('N', 'pieces', { to: 0 });
    assert.ok(body.equals(Buffer.alloc(size, 'x')));
    assert.ok(bytes < 10 * size, `${bytes} bytes`);
  });

  it('occupies no more while its login is being checked', async () => {
    const size = MIB / 8;
    const chunks = Buffer.from(CHUNK.repeat(size));
    const connection = await begun(slowLogin().port, 'PUT', '/q/N/q');
    const bytes = await kept(connection, chunks, 65_536);
    login.reject(new QuaysideError('unauthorized', 'The password is wrong.'));
    assert.equal((await connection.answers(1))[0]?.status, 401);
    connection.destroy();
    assert.ok(bytes < 10 * size, `${bytes} bytes`);
  });

  it('occupies no more than 100 bytes per byte as an incomplete line of an import', async () => {
    const count = 10_000;
    const connection = await begun(harness().port, 'POST', '/q/N/imported/import');
    connection.socket.setNoDelay();
    const [socket] = sockets;
    const one = Buffer.from(CHUNK);
    const before = await memoryInUse();
    for (let i = 0; i < count; i += 1) {
      const end = (socket?.bytesRead ?? 0) + one.length;
      connection.send(one);
      await until(() => (socket?.bytesRead ?? 0) >= end);
    }
    const bytes = (await memoryInUse()) - before;
    connection.destroy();
    assert.ok(bytes < 100 * count, `${bytes} bytes`);
  });
});

describe('A slow login', () => {
  const user: User = {
    name: 'slow',
    isAdministrator: false,
    may: (right) => RIGHTS.includes(right),
    maySee: () => true,
    maySeeBodies: () => true,
  };
  const login = Promise.withResolvers<User>();
  const authenticator: Authenticator = {
    recall: () => null,
    login: () => login.promise,
    loginWithoutPassword: () => null,
    renew: (user) => user,
  };
  const harness = sharedHarness({ authenticator: () => authenticator });

  it('delays the reading of the body, of which nothing is lost, and tolerates clients that disconnect', async () => {
    const body = Buffer.alloc(MIB, 'abcdefg');
    const connection = await RawConnection.open(harness().port);
    connection.send(put(`Content-Length: ${body.length}`, 'Connection: close'));
    connection.send(body);
    const leaver = await RawConnection.open(harness().port);
    leaver.send(rawRequest(['GET /q/N/q HTTP/1.1', 'Host: test', AUTHORIZATION]));
    leaver.destroy();
    await once(leaver.socket, 'close');
    login.resolve(user);
    const [answer] = await connection.untilClosed();
    assert.equal(answer?.status, 200);
    const [taken] = await exchange(
      harness().port,
      rawRequest(['GET /q/N/q HTTP/1.1', 'Host: test', AUTHORIZATION, 'Connection: close']),
    );
    assert.ok(Buffer.from(taken?.body ?? '', 'latin1').equals(body));
  });
});

describe('A namespace that is full', () => {
  const harness = sharedHarness({ namespaces: [plain('N')], maxElements: 1 });

  it('rejects inserts with 507 and the setting to change, while consuming continues', async () => {
    const client = harness().client();
    const queue = harness().queue();
    assert.equal((await client.insert('N', queue, 'a')).status, 200);
    const answer = await client.insert('N', queue, 'b');
    assert.equal(answer.status, 507);
    const { code, detail } = jsonOf<{ code: string; detail: string }>(answer);
    assert.equal(code, 'namespace-full');
    assert.match(detail, /"N".*1 elements.*maxElements/);
    assert.equal((await client.get('N', queue, { to: 0 })).body.toString(), 'a');
  });

  it('answers a repeated insert with its first id, and creates no queue for a rejected insert', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await harness().passTime(1001);
    const keyed = { headers: { 'idempotency-key': 'k' } };
    const first = await client.insert('N', queue, 'a', keyed);
    const again = await client.insert('N', queue, 'a', keyed);
    assert.deepEqual([again.status, again.body.toString()], [200, first.body.toString()]);
    assert.equal((await client.insert('N', 'another', 'a', keyed)).status, 507);
    assert.ok(!Object.hasOwn(jsonOf<object>(await client.queues('N')), 'another'));
    assert.equal((await client.get('N', queue, { to: 0 })).body.toString(), 'a');
  });
});

describe('Queue names that a client invents', () => {
  const MAX_QUEUES = 3;
  const harness = sharedHarness({ namespaces: [plain('N')], maxQueues: MAX_QUEUES });

  it('create no queue if one call would exceed the limit of queues', async () => {
    const client = harness().client();
    const queues = Array.from({ length: MAX_QUEUES + 1 }, (_, i) => ({ ns: 'N', queue: `waits ${i}` }));
    const answer = await takeFrom(client, { from: queues });
    assert.equal(answer.status, 507);
    const { code, detail } = jsonOf<{ code: string; detail: string }>(answer);
    assert.equal(code, 'too-many-queues');
    assert.match(detail, /has 0 queues, and its limit is 3; raise maxQueues to add 4 queues/);
    const [from, ...to] = queues.map(({ queue }) => ({ ns: 'N', queue }));
    const exchange = await client.request('PUT', '/x/wide', {
      body: JSON.stringify({ src: from, dst: to, consumer: {} }),
    });
    assert.equal(jsonOf<{ code: string }>(exchange).code, 'too-many-queues');
    assert.deepEqual(jsonOf(await client.queues('N')), {});
    assert.equal((await takeFrom(client, { from: queues, to: 0 })).status, 504);
  });

  it('do not count toward the limit of queues in calls that create no queue', async () => {
    const client = harness().client();
    for (let i = 0; i < 3 * MAX_QUEUES; i += 1) {
      assert.equal((await client.status('N', `read ${i}`)).status, 200);
      assert.equal((await client.paused('N', `asked ${i}`)).status, 200);
      assert.equal((await client.consumers('N', `listed ${i}`)).status, 200);
      assert.equal((await client.get('N', `polled ${i}`, { to: 0 })).status, 504);
      assert.equal((await client.cancel('N', `cancelled ${i}`, 'T')).status, 200);
      assert.equal((await client.remove('N', `removed ${i}`, 'x-1')).status, 404);
      assert.equal((await client.commit('N', `committed ${i}`, 'x-1')).status, 404);
      assert.equal((await client.rollback('N', `back ${i}`, 'x-1')).status, 404);
      assert.equal((await client.extend('N', `extended ${i}`, 'x-1')).status, 404);
    }
    for (let i = 0; i < MAX_QUEUES; i += 1) {
      assert.equal((await client.insert('N', `used ${i}`, 'x')).status, 200);
    }
    assert.equal((await client.insert('N', 'one more', 'x')).status, 507);
    assert.equal(Object.keys(jsonOf<object>(await client.queues('N'))).length, MAX_QUEUES);
  });
});

describe('Requests that create queues', () => {
  const MAX_QUEUES = 3;
  const harness = sharedHarness({ namespaces: [plain('N')], maxQueues: MAX_QUEUES });

  it('create no more than the namespace may have, however late their bodies arrive', async (t) => {
    const targets = [
      ...['PUT /q/N/one', 'POST /q/N/many/elements', 'PUT /q/N/options/options', 'POST /q/N/import/import'],
      ...['PUT /q/N/another', 'PUT /q/N/others/options'],
    ];
    const body = '{}\n';
    const length = `Content-Length: ${body.length}`;
    const connections = await Promise.all(targets.map(() => RawConnection.open(harness().port)));
    t.after(() => {
      for (const connection of connections) connection.destroy();
    });
    for (const [at, target] of targets.entries()) {
      const type = `Content-Type: ${/many|import/.test(target) ? 'application/x-ndjson' : 'application/json'}`;
      const lines = [`${target} HTTP/1.1`, 'Host: test', AUTHORIZATION, type, length, 'Expect: 100-continue'];
      connections[at]?.send(rawRequest(lines));
    }
    for (const connection of connections) assert.equal((await connection.answers(1))[0]?.status, 100);
    const client = harness().client();
    for (let i = 0; i < MAX_QUEUES; i += 1)
      assert.equal((await client.insert('N', `first ${i}`, 'x')).status, 200);
    for (const connection of connections) {
      connection.send(body);
      const [, answer] = await connection.answers(2);
      assert.deepEqual([answer?.status, codeOf(answer)], [507, 'too-many-queues']);
    }
    assert.equal(Object.keys(jsonOf<object>(await client.queues('N'))).length, MAX_QUEUES);
  });
});

describe('A queue', () => {
  const harness = sharedHarness();
  const QUEUES = 300;
  const TARGET_BYTES = 12_000;

  /** Creates queues. @returns the bytes that are in use then */
  async function create(prefix: string, padding: string): Promise<number> {
    const client = harness().client();
    for (let i = 0; i < QUEUES; i += 1) {
      const query = padding === '' ? {} : { query: { padding } };
      const { status } = await client.request('PUT', `/q/N/${prefix}-of-some-length-${i}`, {
        body: 'x',
        ...query,
      });
      assert.equal(status, 200);
    }
    return memoryInUse();
  }

  it('retains only its name of the request that created it', async () => {
    const first = await create('first', '');
    const second = await create('short', '');
    const third = await create('long', 'x'.repeat(TARGET_BYTES));
    const [short, long] = [second - first, third - second];
    assert.ok(long - short < (QUEUES * TARGET_BYTES) / 4, `${short} and ${long} bytes`);
  });
});
