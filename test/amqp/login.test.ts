import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { readAccounts } from '../../src/access/account.ts';
import { PasswordAuthenticator } from '../../src/access/password-authenticator.ts';
import type { User } from '../../src/access/user.ts';
import { AMQP_LIMITS } from '../../src/amqp/limits.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { FakeClock } from '../support/clock.ts';
import { until } from '../support/until.ts';
import { AmqpNode } from './node.ts';
import { codeOf, conditionOf, KIND, type RawClient, type ServerFrame } from './raw-client.ts';
import {
  AMQP,
  array32,
  attachReceiver,
  attachSender,
  begin,
  bin,
  bytes,
  described,
  HEART_BEAT,
  list8,
  NULL,
  open,
  plain,
  rawFrame,
  SASL,
  saslInit,
  str,
  sym,
} from './wire.ts';

const FRAMING = 'amqp:connection:framing-error';
const DECODE = 'amqp:decode-error';

const response = (content: string): Buffer => rawFrame(1, 0, described(0x43, list8(bin(content))));

function kinds(frames: readonly ServerFrame[]): ServerFrame['kind'][] {
  return frames.map(({ kind }) => kind);
}

/** The code of the outcome, which must be the last frame from the server. */
async function outcome(client: RawClient): Promise<number | undefined> {
  const frames = await client.readToEnd();
  assert.equal(frames.at(-1)?.kind, KIND.outcome);
  return codeOf(frames.at(-1)?.bytes ?? Buffer.alloc(0));
}

describe('Login by SASL', () => {
  let node: AmqpNode;

  beforeEach(async () => {
    node = await AmqpNode.start();
  });
  afterEach(() => node.stop());

  it('offers only PLAIN', async () => {
    const client = await node.newConnection();
    client.write(SASL);
    await client.until('SASL');
    // RabbitMQ's client requires an array, even for a single symbol.
    const offered = array32(14, 1, 0xb3, 0, 0, 0, 5, Buffer.from('PLAIN'));
    assert.deepEqual((await client.until(KIND.mechanisms)).subarray(-offered.length), offered);
  });

  it('accepts the name and password of a user, then continues with AMQP', async () => {
    const client = await node.newConnection();
    client.write(SASL, plain('test', 'test'));
    assert.equal(codeOf(await client.until(KIND.outcome)), 0);
    client.write(AMQP, open());
    assert.deepEqual(await client.until('AMQP'), AMQP);
    await client.until(KIND.open);
    const { counts } = node.server;
    assert.deepEqual([counts.frames, counts.sessions], [1, 1]);
    const sent = Buffer.concat([SASL, plain('test', 'test'), AMQP, open()]);
    assert.equal(counts.receivedBytes, sent.length);
  });

  it('accepts pipelined frames', async () => {
    const client = await node.newConnection();
    client.write(SASL, plain('test', 'test'), AMQP, open());
    await client.until(KIND.open);
  });

  it('accepts its frames byte by byte', async () => {
    const client = await node.newConnection();
    for (const byte of Buffer.concat([SASL, plain('test', 'test'), AMQP, open()])) {
      client.write(Buffer.from([byte]));
      await new Promise(setImmediate);
    }
    await client.until(KIND.open);
  });

  it('sends a challenge if the init has no initial response', async () => {
    const client = await node.newConnection();
    client.write(SASL, saslInit('PLAIN', null));
    await client.until(KIND.challenge);
    client.write(response('\0test\0test'));
    assert.equal(codeOf(await client.until(KIND.outcome)), 0);
  });

  it('accepts an authorization identity if it is the user itself', async () => {
    const client = await node.newConnection();
    client.write(SASL, plain('test', 'test', 'test'));
    assert.equal(codeOf(await client.until(KIND.outcome)), 0);
  });

  for (const [what, init] of [
    ['a wrong password', plain('test', 'wrong')],
    ['an unknown user', plain('nobody', 'nobody')],
    ['another user as authorization identity', plain('test', 'test', 'reader')],
    ['a colon in the name', plain('te:st', 'test')],
    ['an empty user name', plain('', 'test')],
    ['a response without NULs', saslInit('PLAIN', 'test')],
    ['a response with too many NULs', saslInit('PLAIN', '\0test\0test\0')],
    ['ANONYMOUS', saslInit('ANONYMOUS', 'test')],
    ['EXTERNAL', saslInit('EXTERNAL', '')],
    ['no mechanism', rawFrame(1, 0, described(0x41, list8(NULL, bin('\0test\0test'))))],
  ] as const) {
    it(`answers ${what} with outcome 1 and closes`, async () => {
      const client = await node.newConnection();
      client.write(SASL, init, AMQP, open());
      assert.equal(await outcome(client), 1);
      assert.equal(node.server.counts.sessions, 0);
      assert.deepEqual(node.endReasons, ['amqp:unauthorized-access']);
    });
  }

  for (const [what, frames, condition] of [
    ['an AMQP frame', [open()], FRAMING],
    ['a SASL frame with the type of AMQP', [rawFrame(0, 0, saslInit('PLAIN', 'x').subarray(8))], FRAMING],
    ['a heart-beat', [HEART_BEAT], FRAMING],
    ['an unexpected SASL frame', [response('\0test\0test')], DECODE],
    ['an outcome', [rawFrame(1, 0, described(0x44, list8(sym('PLAIN'), bin('\0test\0test'))))], DECODE],
    ['a response that is a string', [rawFrame(1, 0, described(0x41, list8(sym('PLAIN'), str('x'))))], DECODE],
    ['a frame of 7 bytes', [Buffer.from([0, 0, 0, 7, 2, 1, 0])], FRAMING],
    ['a frame of 0 bytes', [Buffer.alloc(8)], FRAMING],
    ['a frame of 2^32-1 bytes', [Buffer.alloc(8, 0xff)], FRAMING],
    ['a data offset past the end', [rawFrame(1, 0, Buffer.alloc(0), 3)], FRAMING],
    ['a data offset in the header', [rawFrame(1, 0, saslInit('PLAIN', 'x').subarray(8), 1)], FRAMING],
    ['nested lists', [rawFrame(1, 0, described(0x41, bytes(Buffer.alloc(64, 0xc0))))], DECODE],
  ] as const) {
    it(`answers ${what} with outcome 2 and closes`, async () => {
      const client = await node.newConnection();
      client.write(SASL, ...frames);
      assert.equal(await outcome(client), 2);
      assert.deepEqual(node.endReasons, [condition]);
    });
  }

  it('logs one line per minute for the connections of a network that end before their login, with their number', async () => {
    for (let i = 0; i < 5; i++) {
      const client = await node.newConnection();
      client.write(SASL, Buffer.alloc(8));
      assert.equal(await outcome(client), 2);
    }
    assert.equal(node.endReasons.length, 1);
    node.clock.advance(60_000);
    assert.deepEqual(node.logged.at(-1), {
      fields: { protocol: 'AMQP', network: '127.0.0.0/24', leftOut: 4 },
      message: 'further connections ended before their login; their lines were left out',
    });
  });

  it('answers an expired token with outcome 1, because retrying cannot succeed', async () => {
    const expired = new QuaysideError('token-expired', 'Token "t" has expired.');
    const authenticator = {
      recall: () => null,
      login: () => Promise.reject(expired),
      loginWithoutPassword: () => null,
      renew: (user: User) => user,
    };
    const own = await AmqpNode.start({ authenticator });
    const client = await own.newConnection();
    client.write(SASL, plain('test', 'qs_t'));
    assert.equal(await outcome(client), 1);
    await own.stop();
  });

  it('sends only one challenge', async () => {
    const client = await node.newConnection();
    client.write(SASL, saslInit('PLAIN', null), rawFrame(1, 0, described(0x43, list8(NULL))));
    assert.deepEqual(kinds(await client.readToEnd()), [
      'SASL',
      KIND.mechanisms,
      KIND.challenge,
      KIND.outcome,
    ]);
  });

  for (const [what, header] of [
    ['AMQP without SASL', AMQP],
    ['AMQP 0-9-1', Buffer.from('AMQP\0\0\x09\x01', 'latin1')],
    ['the TLS header of AMQP', Buffer.from('AMQP\x02\x01\0\0', 'latin1')],
    ['HTTP', Buffer.from('GET / HTTP/1.1\r\n\r\n')],
  ] as const) {
    it(`answers ${what} with the expected header and closes`, async () => {
      const client = await node.newConnection();
      client.write(header);
      assert.deepEqual(kinds(await client.readToEnd()), ['SASL']);
    });
  }

  it('answers any header but AMQP after the login with the AMQP header and closes', async () => {
    const client = await node.newConnection();
    client.write(SASL, plain('test', 'test'), SASL);
    assert.deepEqual(kinds(await client.readToEnd()), ['SASL', KIND.mechanisms, KIND.outcome, 'AMQP']);
  });

  it('reads at most 4 KiB', async () => {
    const client = await node.newConnection();
    const frame = rawFrame(1, 0, Buffer.alloc(AMQP_LIMITS.loginBytes - 8 - SASL.length));
    client.write(SASL, frame.subarray(0, -1));
    await client.until(KIND.mechanisms);
    client.write(Buffer.alloc(100));
    assert.equal(await outcome(client), 4);
  });

  it('rejects a frame larger than this limit without waiting for it', async () => {
    const client = await node.newConnection();
    client.write(SASL, Buffer.from([0, 0, 0x10, 0x01]));
    assert.equal(await outcome(client), 2);
  });

  it('times out after 10 seconds', async () => {
    const client = await node.newConnection();
    client.write(SASL);
    await client.until(KIND.mechanisms);
    node.clock.advance(9_999);
    assert.equal(node.server.counts.errors, 0);
    node.clock.advance(1);
    assert.equal(await outcome(client), 4);
  });

  it('must be followed by open within 10 seconds', async () => {
    const client = await node.newConnection();
    client.write(SASL, plain('test', 'test'));
    await client.until(KIND.outcome);
    client.write(AMQP);
    await client.until('AMQP');
    node.clock.advance(10_000);
    assert.deepEqual(kinds(await client.readToEnd()), [KIND.open, KIND.close]);
  });

  it('leaves no timer behind, whenever the client disconnects', async () => {
    const before = node.clock.pending;
    const frames = [SASL, plain('test', 'test'), AMQP, open()];
    for (let sent = 0; sent <= frames.length; sent++) {
      const client = await node.newConnection();
      const { receivedBytes } = node.server.counts;
      const bytes = Buffer.concat(frames.slice(0, sent));
      client.write(bytes);
      await until(() => node.server.counts.receivedBytes === receivedBytes + bytes.length);
      client.socket.destroy();
      await until(() => node.clock.pending === before);
    }
  });
});

describe('Login by SASL ANONYMOUS', () => {
  it('is offered if a user is configured for it, and grants that user’s rights', async () => {
    const node = await AmqpNode.start({ options: { anonymousUser: 'reader' } });
    const client = await node.newConnection();
    client.write(SASL, saslInit('ANONYMOUS', null));
    const mechanisms = (await client.until(KIND.mechanisms)).toString('latin1');
    assert.ok(mechanisms.includes('PLAIN') && mechanisms.includes('ANONYMOUS'));
    assert.equal(codeOf(await client.until(KIND.outcome)), 0);
    client.write(AMQP, open(), begin(), attachReceiver(), attachSender({ name: 'm', handle: 1 }));
    assert.equal(conditionOf(await client.until(KIND.detach)), 'amqp:unauthorized-access');
    assert.equal(node.server.counts.subscriptions, 1);
    const plainly = await node.newConnection();
    plainly.write(SASL, plain('test', 'test'));
    assert.equal(codeOf(await plainly.until(KIND.outcome)), 0);
    await node.stop();
  });

  it('fails if its user does not exist', async () => {
    const node = await AmqpNode.start({ options: { anonymousUser: 'gone' } });
    const client = await node.newConnection();
    client.write(SASL, saslInit('ANONYMOUS', ''));
    assert.equal(await outcome(client), 1);
    await node.stop();
  });

  it('is counted and logged like a password login, whether it succeeds or fails', async () => {
    const events: object[] = [];
    const log = {
      debug: (fields: object) => void events.push(fields),
      warn: (fields: object) => void events.push(fields),
    };
    const accounts = readAccounts([{ name: 'guest', password: 'guest', rights: null }], ['N']);
    const authenticator = new PasswordAuthenticator({ accounts, clock: new FakeClock(), log });
    const node = await AmqpNode.start({ authenticator, options: { anonymousUser: 'guest' } });
    for (const code of [0, 1]) {
      const client = await node.newConnection();
      client.write(SASL, saslInit('ANONYMOUS', null));
      assert.equal(codeOf(await client.until(KIND.outcome)), code);
      client.socket.destroy();
      authenticator.replaceAccounts(new Map());
    }
    assert.deepEqual(authenticator.counts, { accepted: 1, failed: 1, limited: 0 });
    const address = '127.0.0.1';
    assert.deepEqual(events, [
      { event: 'login', user: 'guest', address },
      { event: 'login-failed', user: null, address },
    ]);
    await node.stop();
  });
});

describe('Login by SASL when logins cannot be checked', () => {
  it('fails with outcome 4, so that the client may retry', async () => {
    const fault = new Error('no logins today');
    const authenticator = {
      recall: () => null,
      login: () => Promise.reject(fault),
      loginWithoutPassword: () => null,
      renew: (user: User) => user,
    };
    const node = await AmqpNode.start({ authenticator });
    try {
      const client = await node.newConnection();
      client.write(SASL, plain('test', 'test'));
      assert.equal(await outcome(client), 4);
      assert.ok(node.logged.some(({ fields }) => (fields as { err?: unknown }).err === fault));
    } finally {
      await node.stop();
    }
  });
});

describe('Login by SASL with configured accounts', () => {
  it('shares the limit on failed logins with the other front ends', async () => {
    const clock = new FakeClock();
    const authenticator = new PasswordAuthenticator({
      accounts: readAccounts([{ name: 'u', password: 'right', rights: null }], []),
      clock,
      log: { debug: () => {}, warn: () => {} },
    });
    const node = await AmqpNode.start({ authenticator });
    try {
      const attempt = async (password: string): Promise<number | undefined> => {
        const client = await node.newConnection();
        client.write(SASL, plain('u', password));
        return codeOf(await client.until(KIND.outcome));
      };
      for (let i = 0; i < 10; i++) assert.equal(await attempt(`wrong ${i}`), 1);
      assert.equal(await attempt('right'), 4);
      const right = `Basic ${Buffer.from('u:right').toString('base64')}`;
      await assert.rejects(authenticator.login(right, '127.0.0.1'), /Too many/);
      clock.advance(5_000);
      assert.equal(await attempt('right'), 0);
    } finally {
      await node.stop();
    }
  });
});
