import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { User } from '../../src/access/user.ts';
import type { StompClient } from './client.ts';
import { StompNode, TestAuthenticator } from './node.ts';

describe('rights over STOMP', () => {
  let node: StompNode;
  before(async () => {
    node = await StompNode.start();
  });
  after(() => node.stop());

  const as = (name: string): Promise<StompClient> => node.client('1.2', { login: name, passcode: name });
  const send = { command: 'SEND', headers: { destination: '/q/N/a' } } as const;
  const subscribe = { command: 'SUBSCRIBE', headers: { destination: '/q/N/a', id: 's' } } as const;

  it('SEND needs write, SUBSCRIBE needs read; a namespace without any right is reported as not found', async () => {
    const table = [
      ['reader', send, 'forbidden'],
      ['reader', subscribe, null],
      ['writer', send, null],
      ['writer', subscribe, 'forbidden'],
      ['manager', send, 'forbidden'],
      ['manager', subscribe, 'forbidden'],
      ['stranger', send, 'namespace-not-found'],
      ['stranger', subscribe, 'namespace-not-found'],
    ] as const;
    for (const [name, { command, headers }, code] of table) {
      const client = await as(name);
      if (code === null) {
        await client.ask(command, headers);
        await client.disconnect();
      } else {
        client.send(command, headers);
        await client.expectError(code);
      }
    }
  });

  it('an unknown namespace and one without any right get the same ERROR', async () => {
    const answers: string[] = [];
    for (const ns of ['S', 'X']) {
      const client = await as('writer');
      client.send('SEND', { destination: `/q/${ns}/a` });
      const { body } = await client.expectError('namespace-not-found');
      answers.push(body.toString().replace(ns, '?'));
    }
    assert.equal(answers[0], answers[1]);
  });

  it('are checked for frames of a transaction as well', async () => {
    const client = await as('reader');
    await client.ask('BEGIN', { transaction: 't' });
    client.send('SEND', { destination: '/q/N/a', transaction: 't' });
    await client.expectError('forbidden');
  });

  it('are checked again at COMMIT for the SENDs of a transaction', async () => {
    const client = await as('writer');
    await client.ask('BEGIN', { transaction: 't' });
    await client.ask('SEND', { destination: '/q/N/committed', transaction: 't' });
    node.renewUsers(() => new TestAuthenticator().userNamed('reader'));
    client.send('COMMIT', { transaction: 't', receipt: 'r' });
    assert.equal((await client.expectError('forbidden')).headers.get('receipt-id'), 'r');
    assert.equal((await node.sizes('committed')).ready, 0);
  });

  it('are checked for a destination that was used before with another right', async () => {
    const client = await as('reader');
    await client.ask('SUBSCRIBE', { destination: '/q/N/both', id: 's' });
    client.send('SEND', { destination: '/q/N/both' });
    await client.expectError('forbidden');
  });

  it('follow a reload of the users: a session ends if it may no longer read from its subscription', async () => {
    const known = new TestAuthenticator();
    const userOf = (name: string): User | null =>
      known.recall(`Basic ${Buffer.from(`${name}:${name}`).toString('base64')}`);
    const reads = await as('reader');
    await reads.ask('SUBSCRIBE', { destination: '/q/N/renewed', id: 's' });
    const writes = await as('writer');
    node.renewUsers((user) => user);
    await reads.ask('UNSUBSCRIBE', { id: 's' });
    await reads.ask('SUBSCRIBE', { destination: '/q/N/renewed', id: 't' });
    // Both may only write from now on.
    node.renewUsers(() => userOf('writer'));
    assert.equal((await reads.expectError('forbidden')).headers.get('subscription'), 't');
    await writes.ask('SEND', { destination: '/q/N/renewed' });
    node.renewUsers(() => null);
    await writes.expectError('unauthorized');
  });

  it('are logged if they are missing', async () => {
    // A repeated warning is logged at most once a minute, and what was suppressed at the end of that minute.
    node.clock.advance(60_000);
    node.clock.advance(60_000);
    const client = await as('reader');
    client.send('SEND', { destination: '/q/N/secret' }, 'a body');
    await client.expectError('forbidden');
    const line = node.logged.at(-1);
    assert.deepEqual(line?.fields && 'user' in line.fields && line.fields.user, 'reader');
    assert.ok(!JSON.stringify(node.logged).includes('a body'));
  });
});
