import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import type { StompVersion } from './client.ts';
import { StompNode } from './node.ts';

// PHP's extension skips one octet behind the NUL of each frame, which must be an LF: otherwise it loses the first octet
// of the next frame.

/**
 * Receives CONNECTED, two RECEIPTs, MESSAGEs with a short and a long body, and ERROR; returns all that was received.
 */
async function talk(node: StompNode, version: StompVersion): Promise<string> {
  const client = await node.client(version);
  await client.ask('SEND', { destination: '/q/N/a' }, 'short');
  await node.insert('a', { body: Buffer.alloc(20_000, 'x') });
  await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's' });
  await client.expect('MESSAGE');
  await client.expect('MESSAGE');
  client.send('SEND', {});
  await client.expectError('malformed-request');
  return client.received.toString();
}

describe('each frame of the server', () => {
  let node: StompNode;

  afterEach(() => node.stop());

  for (const version of ['1.0', '1.1', '1.2'] as const) {
    it(`is followed by one LF in STOMP ${version}`, async () => {
      node = await StompNode.start();
      const received = await talk(node, version);
      assert.equal(received.match(/\0\n(?!\n)/g)?.length, 6);
      assert.equal(received.match(/\0/g)?.length, 6);
    });
  }

  it('is followed by nothing if trailingNewline is false', async () => {
    node = await StompNode.start({ options: { trailingNewline: false } });
    const received = await talk(node, '1.2');
    assert.equal(received.match(/\0(?:[A-Z]|$)/g)?.length, 6);
  });
});
