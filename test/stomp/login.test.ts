import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { readAccounts } from '../../src/access/account.ts';
import { PasswordAuthenticator } from '../../src/access/password-authenticator.ts';
import { FakeClock } from '../support/clock.ts';
import { StompClient } from './client.ts';
import { StompNode } from './node.ts';

describe('a login over STOMP', () => {
  let node: StompNode;
  const clock = new FakeClock();
  const authenticator = new PasswordAuthenticator({
    accounts: readAccounts(
      [
        { name: 'test', password: 'test', rights: null },
        { name: 'ünï', password: 'pässwörd ☃', rights: null },
        { name: 'voilà', password: 'à', rights: null },
      ],
      ['N', 'S', 'D'],
    ),
    clock,
    log: { debug: () => {}, warn: () => {} },
  });

  before(async () => {
    node = await StompNode.start({ authenticator });
  });
  after(() => node.stop());

  const attempt = async (login: string | null, passcode: string | null): Promise<StompClient> => {
    const client = await StompClient.open(node.port);
    client.send('CONNECT', { 'accept-version': '1.2', host: 'h', login, passcode });
    return client;
  };

  it('accepts the users and passwords of HTTP', async () => {
    for (const [login, passcode] of [
      ['test', 'test'],
      ['ünï', 'pässwörd ☃'],
    ] as const) {
      const client = await attempt(login, passcode);
      await client.expect('CONNECTED');
      await client.disconnect();
    }
  });

  it('trims spaces around name and password in STOMP 1.0, but no byte of a UTF-8 letter', async () => {
    const client = await StompClient.open(node.port);
    client.write('CONNECT\nlogin: voilà \npasscode: à\n\n\0');
    await client.expect('CONNECTED');
    await client.disconnect();
  });

  it('does not hash the password of a recently authenticated user again', async () => {
    const { accepted } = authenticator.counts;
    for (let i = 0; i < 5; i++) {
      const client = await attempt('test', 'test');
      await client.expect('CONNECTED');
      await client.disconnect();
    }
    assert.equal(authenticator.counts.accepted, accepted);
  });

  it('rejects wrong or missing credentials, and after too many of them all attempts of the address', async () => {
    const wrong = [
      ['test', 'wrong'],
      ['nobody', 'test'],
      ['test', ''],
      ['', 'test'],
      ['test', null],
      [null, 'test'],
      [null, null],
      ['test:te', 'st'],
    ] as const;
    for (const [login, passcode] of wrong) await (await attempt(login, passcode)).expectError('unauthorized');
    for (let i = 0; ; i++) {
      const client = await attempt('test', `guess ${i}`);
      const { headers } = await client.expect('ERROR');
      client.socket.destroy();
      if (headers.get('message') === 'unauthorized') continue;
      assert.equal(headers.get('message'), 'too-many-attempts');
      assert.equal(headers.get('x-ks-retry'), 'true');
      assert.ok(Number(headers.get('x-ks-retry-after')) > 0);
      break;
    }
    assert.ok(authenticator.counts.failed <= 20);
    clock.advance(60_000);
  });

  it('lets a client send further frames before it has received CONNECTED', async () => {
    const client = await StompClient.open(node.port);
    client.write(
      Buffer.concat([
        client.frame('CONNECT', { 'accept-version': '1.2', host: 'h', login: 'test', passcode: 'test' }),
        client.frame('SEND', { destination: '/q/N/eager', receipt: '1' }, 'x'),
        client.frame('DISCONNECT', { receipt: '2' }),
      ]),
    );
    for (const command of ['CONNECTED', 'RECEIPT', 'RECEIPT']) await client.expect(command);
    assert.equal(await client.nextOrEnd(), null);
  });
});

describe('the start of a STOMP session', () => {
  let node: StompNode;
  before(async () => {
    node = await StompNode.start();
  });
  after(() => node.stop());

  it('accepts no other frame before CONNECT', async () => {
    const commands = ['SEND', 'SUBSCRIBE', 'ACK', 'BEGIN', 'DISCONNECT', 'CONNECTED', 'GET', 'CONNECTS'];
    for (const command of commands) {
      const client = await node.stranger();
      client.send(command, { destination: '/q/N/a', id: '1', login: 'test', passcode: 'test' });
      await client.expectError('malformed-request');
    }
    assert.equal((await node.sizes('a')).ready, 0);
  });

  it('accepts no second CONNECT', async () => {
    const client = await node.client();
    client.send('CONNECT', { 'accept-version': '1.2', login: 'test', passcode: 'test' });
    await client.expectError('malformed-request');
  });

  it('reads at most 4 KiB before CONNECTED', async () => {
    const head = await node.stranger();
    head.write(`CONNECT\na:${'x'.repeat(4080)}`);
    head.write('x'.repeat(100));
    await head.expectError('headers-too-large');
    const beats = await node.stranger();
    beats.write('\n'.repeat(4097));
    await beats.expectError('headers-too-large');
    const eager = await node.stranger();
    eager.write(
      Buffer.concat([
        eager.frame('CONNECT', { 'accept-version': '1.2', host: 'h', login: 'test', passcode: 'test' }),
        eager.frame('SEND', { destination: '/q/N/a' }, 'x'.repeat(4096)),
      ]),
    );
    await eager.expectError('headers-too-large');
  });

  it('times out ten seconds after the connection was opened', async () => {
    const silent = await node.stranger();
    const slow = await node.stranger();
    slow.write('CONNECT\nlogin:test\n');
    const quick = await node.client();
    const { errors } = node.server.counts;
    node.clock.advance(9_999);
    assert.equal(node.server.counts.errors, errors);
    node.clock.advance(1);
    await silent.expectError('request-timeout');
    await slow.expectError('request-timeout');
    await quick.ask('BEGIN', { transaction: 't' });
  });

  it('rejects other protocols at once', async () => {
    for (const bytes of [
      'GET / HTTP/1.1\r\nHost: x\r\n\r\n',
      'AMQP\0\x01\0\0',
      '\x16\x03\x01\x00\xee',
      'EHLO x\r\n\r\n',
    ]) {
      const client = await node.stranger();
      client.write(Buffer.from(bytes, 'latin1'));
      await client.expectError('malformed-request');
    }
  });
});
