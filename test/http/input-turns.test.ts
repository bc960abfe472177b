import assert from 'node:assert/strict';
import { after, describe, it } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { readAccounts, type UserDefinition } from '../../src/access/account.ts';
import { PasswordAuthenticator } from '../../src/access/password-authenticator.ts';
import { SILENT_LOG } from '../support/broker.ts';
import { queuePath } from '../support/http-client.ts';
import { longestTurn } from '../support/turns.ts';
import { basic, Harness, type HarnessOptions, sharedHarness, statusOf } from './harness.ts';
import { AUTHORIZATION, RawConnection, rawRequest } from './raw.ts';

const USERS: readonly UserDefinition[] = ['flood', 'honest'].map((name) => ({
  name,
  password: name,
  rights: null,
}));

const opened: Harness[] = [];

/** A server for whose clock each request takes half a millisecond. */
async function slowServer(options: HarnessOptions = {}): Promise<{
  harness: Harness;
  authenticator: PasswordAuthenticator;
  started: Map<string, number>;
  total: () => number;
  /** Advances the clock by more than the time for which clients are read in parts after one had to wait. */
  calm: () => void;
  /** Advances the clock. */
  spend: (ms: number) => void;
}> {
  const started = new Map<string, number>();
  let [total, calmMs] = [0, 0];
  let authenticator!: PasswordAuthenticator;
  const harness = await Harness.start({
    ...options,
    users: USERS,
    authenticator: ({ clock }) => {
      const accounts = readAccounts(USERS, ['N']);
      authenticator = new PasswordAuthenticator({ accounts, clock, log: SILENT_LOG });
      const recall = authenticator.recall.bind(authenticator);
      authenticator.recall = (authorization) => {
        total += 1;
        started.set(authorization, (started.get(authorization) ?? 0) + 1);
        return recall(authorization);
      };
      return authenticator;
    },
  });
  opened.push(harness);
  for (const { name } of USERS) await harness.client(`${name}:${name}`).namespaces();
  harness.opened.clock.monotonic = () => total / 2 + calmMs;
  const spend = (ms: number): void => {
    calmMs += ms;
  };
  const calm = (): void => spend(10_000);
  return { harness, authenticator, started, total: () => total, calm, spend };
}

/** Connections of a user on which there was a request. */
async function connectionsOf(harness: Harness, user: string, count: number): Promise<RawConnection[]> {
  const connections = await Promise.all(
    Array.from({ length: count }, () => RawConnection.open(harness.port)),
  );
  for (const connection of connections) connection.send(get(user));
  await Promise.all(connections.map((connection) => connection.answers(1)));
  return connections;
}

/** Sends so many requests that the connections of all users are read in parts. */
async function flood(harness: Harness): Promise<void> {
  const connections = await connectionsOf(harness, 'flood', 4);
  for (const connection of connections) {
    connection.send(Buffer.concat(Array.from({ length: 100 }, () => get('flood'))));
  }
  for (const connection of connections) await connection.answers(101);
}

/** Resolves at the end of the first turn of the event loop in which `isTrue` returns true. */
async function untilTurn(isTrue: () => boolean): Promise<void> {
  while (!isTrue()) await nextTurn();
}

function get(user: string): Buffer {
  return rawRequest(['GET /q HTTP/1.1', 'Host: test', `Authorization: ${basic(user, user)}`]);
}

function put(user: string, queue: string, body: string): Buffer {
  return rawRequest(
    [
      `PUT ${queuePath('N', queue)} HTTP/1.1`,
      'Host: test',
      `Authorization: ${basic(user, user)}`,
      `Content-Length: ${body.length}`,
    ],
    body,
  );
}

describe('Pipelined requests of many connections', () => {
  after(() => Promise.all(opened.map((harness) => harness.close())));

  it('are started for some 20 ms in one turn of the event loop, and all are answered in order', async () => {
    const { harness, total } = await slowServer();
    const connections = await connectionsOf(harness, 'flood', 20);
    const before = total();
    const count = 100;
    const all = before + connections.length * count;
    const turns: number[] = [];
    let last = before;
    const countTurn = (): void => {
      turns.push(total() - last);
      last = total();
      if (last < all) setImmediate(countTurn);
    };
    setImmediate(countTurn);
    const bodies = Array.from({ length: count }, (_, i) => `body ${i}`);
    for (const [i, connection] of connections.entries()) {
      connection.send(Buffer.concat(bodies.map((body) => put('flood', `q${i}`, body))));
    }
    for (const connection of connections) {
      const answers = (await connection.answers(count + 1)).slice(1);
      assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([200]));
      assert.equal(answers.length, count);
    }
    // 20 ms of clients that have not waited, after 5 ms of one that has. The counter may count the ends of two turns
    // together.
    assert.ok(Math.max(...turns) <= 120, `${Math.max(...turns)} requests were started in one turn`);
    const client = harness.client('honest:honest');
    for (const body of bodies) assert.equal((await client.get('N', 'q7')).body.toString(), body);
  });

  it('delay the requests of another user by a few of them only', async () => {
    const { harness, started } = await slowServer();
    const flood = await connectionsOf(harness, 'flood', 30);
    const [honest, waiting] = await connectionsOf(harness, 'honest', 2);
    const floodLogin = basic('flood', 'flood');
    const before = started.get(floodLogin) ?? 0;
    for (const connection of flood) {
      connection.send(Buffer.concat(Array.from({ length: 100 }, () => get('flood'))));
    }
    const honestLogin = basic('honest', 'honest');
    const honestBefore = started.get(honestLogin) ?? 0;
    honest?.send(get('honest'));
    const login = `Authorization: ${honestLogin}`;
    waiting?.send(rawRequest([`GET ${queuePath('N', 'empty')} HTTP/1.1`, 'Host: test', login]));
    await untilTurn(() => (started.get(honestLogin) ?? 0) > honestBefore);
    const startedBefore = (started.get(floodLogin) ?? 0) - before;
    assert.ok(startedBefore <= 200, `${startedBefore} requests were started before that of another user`);
    for (const connection of flood) assert.equal((await connection.answers(101)).length, 101);
    await harness.waiting(1);
    await harness.client('honest:honest').insert('N', 'empty', 'later');
    assert.equal((await waiting?.answers(2))?.[1]?.body, 'later');
  });

  it('before a login delay those of other networks by a few of them only', async () => {
    const { harness, started } = await slowServer();
    const wrong = basic('unknown', 'unknown');
    const open = async (address?: string): Promise<RawConnection> => {
      const connection = await RawConnection.open(harness.port, address);
      connection.send(rawRequest(['GET /livez HTTP/1.1', 'Host: test']));
      await connection.answers(1);
      return connection;
    };
    const flood = await Promise.all(Array.from({ length: 100 }, () => open()));
    const honest = await open('127.0.1.1');
    const honestLogin = basic('honest', 'honest');
    const before = started.get(honestLogin) ?? 0;
    for (const connection of flood) {
      connection.send(Buffer.concat(Array.from({ length: 9 }, () => get('unknown'))));
    }
    honest.send(get('honest'));
    await untilTurn(() => (started.get(honestLogin) ?? 0) > before);
    const startedBefore = started.get(wrong) ?? 0;
    assert.ok(startedBefore <= 60, `${startedBefore} requests were started before that of another network`);
    assert.equal((await honest.answers(2))[1]?.status, 200);
    for (const { socket } of flood) socket.destroy();
  });

  it('are answered even if their client closes its sending side at once', async () => {
    const { harness } = await slowServer();
    const connections = await connectionsOf(harness, 'flood', 4);
    for (const connection of connections) {
      connection.socket.end(Buffer.concat(Array.from({ length: 100 }, () => get('flood'))));
    }
    for (const connection of connections) assert.equal((await connection.untilClosed()).length, 101);
  });

  it('leave the parsers of closed connections usable for later ones', async () => {
    const { harness } = await slowServer();
    const connections = await connectionsOf(harness, 'flood', 4);
    for (const connection of connections) {
      connection.send(Buffer.concat(Array.from({ length: 100 }, () => get('flood'))));
    }
    for (const { socket } of connections) socket.resetAndDestroy();
    const later = await connectionsOf(harness, 'honest', 8);
    for (const connection of later) {
      connection.send(Buffer.concat([get('honest'), get('honest')]));
      assert.equal((await connection.answers(3)).length, 3);
    }
  });
});

describe('Requests on a connection on which nobody has logged in', () => {
  after(() => Promise.all(opened.map((harness) => harness.close())));

  it('are not executed behind one that was rejected, although they were parsed before', async () => {
    const { harness, authenticator, calm } = await slowServer({ logsDebug: true });
    const recall = authenticator.recall.bind(authenticator);
    authenticator.recall = (authorization) => {
      // The requests that follow in these bytes start in the next turn.
      if (authorization === basic('unknown', 'unknown')) calm();
      return recall(authorization);
    };
    const log = harness.log as { push(line: unknown): number } & typeof harness.log;
    const push = log.push.bind(log);
    log.push = (line) => {
      // The requests that follow the rejected one would start in the turn after it.
      if (JSON.stringify(line).includes('"overloaded"')) calm();
      return push(line);
    };
    const connection = await RawConnection.open(harness.port);
    const stranger = rawRequest(['GET /q HTTP/1.1', 'Host: test']);
    connection.send(
      Buffer.concat([
        get('unknown'),
        ...Array.from({ length: 11 }, () => stranger),
        put('honest', 'behind', 'x'),
      ]),
    );
    await connection.untilClosed();
    const { status } = await harness.client('honest:honest').get('N', 'behind', { to: 0 });
    assert.equal(status, 504);
  });
});

describe('Bodies that arrive after their requests have started', () => {
  after(() => Promise.all(opened.map((harness) => harness.close())));

  it('are handled for some 20 ms in one turn of the event loop', async () => {
    const { harness, authenticator, started, spend } = await slowServer();
    const login = basic('honest', 'honest');
    const renew = authenticator.renew.bind(authenticator);
    let handled = 0;
    const connections = await connectionsOf(harness, 'honest', 40);
    const head = (queue: string): Buffer => put('honest', queue, 'xx').subarray(0, -1);
    const before = started.get(login) ?? 0;
    for (const [i, connection] of connections.entries()) connection.send(head(`q${i % 4}`));
    await untilTurn(() => (started.get(login) ?? 0) - before === connections.length);
    authenticator.renew = (user) => {
      handled += 1;
      spend(5);
      return renew(user);
    };
    let [most, last] = [0, 0];
    const countTurn = (): void => {
      most = Math.max(most, handled - last);
      last = handled;
      if (handled < connections.length) setImmediate(countTurn);
    };
    setImmediate(countTurn);
    for (const connection of connections) connection.send(Buffer.from('x'));
    for (const connection of connections) await connection.answers(2);
    assert.ok(most <= 12, `${most} bodies were handled in one turn`);
  });
});

describe('A connection that is read in parts since others had to wait', () => {
  after(() => Promise.all(opened.map((harness) => harness.close())));

  it('is closed by the server, which serves the others', async () => {
    const { harness, calm } = await slowServer();
    const connections = await connectionsOf(harness, 'honest', 2);
    await flood(harness);
    calm();
    // The first one is closed after 256 small chunks, the second one because its response has begun.
    const [discarded, trailing] = connections;
    const head = ['PUT /q/N/q HTTP/1.1', 'Host: test', 'Transfer-Encoding: chunked'];
    discarded?.send(rawRequest(head, '1\r\na\r\n'.repeat(300)));
    trailing?.send(Buffer.concat([get('honest'), Buffer.from('this is not a request\r\n\r\n')]));
    for (const connection of connections) await connection.untilClosed();
    assert.equal((await connectionsOf(harness, 'honest', 1)).length, 1);
  });

  it('is not read further while its body waits for the login', async () => {
    const { harness, authenticator, calm } = await slowServer();
    const [reader, other] = await connectionsOf(harness, 'honest', 2);
    await flood(harness);
    const login = Promise.withResolvers<never>();
    const started = Promise.withResolvers<void>();
    authenticator.login = () => {
      started.resolve();
      return login.promise;
    };
    const head = ['PUT /q/N/q HTTP/1.1', 'Host: test', `Authorization: ${basic('new', 'new')}`];
    const body = Buffer.alloc(64 * 1_048_576);
    reader?.send(rawRequest([...head, `Content-Length: ${body.length + 1}`], 'a'));
    await started.promise;
    calm();
    reader?.send(body);
    for (let count = 2; reader?.socket.writableLength !== 0 && count < 500; count += 1) {
      other?.send(get('honest'));
      await other?.answers(count);
    }
    const unsent = reader?.socket.writableLength;
    login.reject(new Error('the test has ended'));
    reader?.destroy();
    assert.notEqual(unsent, 0);
  });
});

describe('Bodies in chunks of one byte', () => {
  const harness = sharedHarness();

  it('serve other requests while they are read, however many connections send them, and are stored unchanged', async () => {
    const connections = await Promise.all(
      Array.from({ length: 20 }, () => RawConnection.open(harness().port)),
    );
    const body = Array.from({ length: 9000 }, (_, i) => String(i % 10)).join('');
    const chunks = [...body].map((byte) => `1\r\n${byte}\r\n`).join('');
    const head = ['PUT /q/N/chunks HTTP/1.1', 'Host: test', AUTHORIZATION, 'Transfer-Encoding: chunked'];
    const bytes = rawRequest([...head, 'Connection: close'], `${chunks}0\r\n\r\n`);
    const share = await longestTurn(async () => {
      for (const connection of connections) connection.send(bytes);
      for (const connection of connections) {
        const [answer] = await connection.untilClosed();
        assert.equal(answer?.status, 200);
      }
    });
    assert.ok(share < 0.25, `one turn of the event loop took ${share} of the time`);
    assert.equal((await statusOf(harness(), 'chunks')).size, connections.length);
    for (const _ of connections) {
      assert.equal((await harness().client().get('N', 'chunks')).body.toString(), body);
    }
  });
});
