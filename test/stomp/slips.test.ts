import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import { StompNode } from './node.ts';

describe('a header that is probably misspelled', () => {
  let node: StompNode;

  beforeEach(async () => {
    node = await StompNode.start();
  });
  afterEach(() => node.stop());

  const assertRejected = async (
    command: string,
    headers: Record<string, string>,
    slip: string,
    meant: string,
  ): Promise<void> => {
    const client = await node.client();
    client.send(command, { ...headers, [slip]: '1', receipt: 'served' });
    const { headers: answer, body } = await client.expectError('invalid-parameter');
    assert.equal(body.toString(), `Unknown header "${slip}". Did you mean "${meant}"?`);
    assert.equal(answer.get('x-ks-parameter'), slip);
  };

  for (const [slip, meant] of [
    ['x-ks-delta-t', 'x-delta-t'],
    ['x-detla-t', 'x-delta-t'],
    ['X-Delta-T', 'x-delta-t'],
    ['x-nextt', 'x-next-t'],
    ['x-ks-tries', 'x-tries'],
    ['x-trie', 'x-tries'],
    ['x-groups', 'x-ks-groups'],
  ] as const) {
    it(`is rejected in SEND, and nothing is stored: ${slip}`, async () => {
      await assertRejected('SEND', { destination: '/q/N/a' }, slip, meant);
      assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
    });
  }

  for (const [slip, meant] of [
    ['Ack', 'ack'],
    ['acks', 'ack'],
    ['akc', 'ack'],
    ['x-ks-lease', 'x-lease'],
    ['x-w-size', 'x-wsize'],
    ['X-WSize', 'x-wsize'],
    ['x-ks-groups', 'x-ks-group'],
    ['x-paralel', 'x-parallel'],
    ['browse', 'browser'],
  ] as const) {
    it(`is rejected in SUBSCRIBE, and nothing is consumed: ${slip}`, async () => {
      await node.insert('a', 'x');
      await assertRejected('SUBSCRIBE', { destination: '/q/N/a', id: 's' }, slip, meant);
      assert.equal((await node.sizes('a')).ready, 1);
    });
  }

  it('is not assumed in SUBSCRIBE for user-defined headers that merely resemble one of the server', async () => {
    await node.insert('a', 'x');
    const client = await node.client();
    const own = ['group', 'wsize', 'lease', 'parallel', 'x-id', 'ID', 'Receipt', 'prefetch-counts'];
    const headers = Object.fromEntries(own.map((name) => [name, '1']));
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ...headers });
    assert.equal((await client.expect('MESSAGE')).body.toString(), 'x');
    await client.disconnect();
  });

  it('is rejected in ACK and NACK', async () => {
    for (const command of ['ACK', 'NACK']) {
      await assertRejected(command, { id: '1-1' }, 'x-ks-delta-t', 'x-delta-t');
      await assertRejected(command, { id: '1-1' }, 'x-ks-groups', 'x-ks-group');
    }
  });

  it('is not assumed in SEND for headers of MESSAGE and for user-defined headers', async () => {
    const client = await node.client();
    const headers = {
      'x-ks-group': 'G',
      'x-mature': 'now',
      'x-retries': '3',
      'x-request-id': 'r',
      tris: 't',
    };
    await client.ask('SEND', { destination: '/q/N/a', ...headers, 'x-ks-hdr-delta-t': 'd' });
    const stored = (await node.pop('a'))?.headers ?? [];
    assert.deepEqual(stored.filter((_, at) => at % 2 === 0).sort(), [
      'delta-t',
      'tris',
      'x-request-id',
      'x-retries',
    ]);
    await client.disconnect();
  });
});

describe('an ERROR about the value of a header', () => {
  let node: StompNode;

  before(async () => {
    node = await StompNode.start();
  });
  after(() => node.stop());

  for (const [command, wrong, value, code] of [
    ['SEND', 'destination', '/q/X/a', 'namespace-not-found'],
    ['SEND', 'destination', '/q/N/%00', 'invalid-name'],
    ['SUBSCRIBE', 'destination', '/q/%00/a', 'invalid-name'],
    ['SEND', 'x-ks-groups', 'G1', 'invalid-parameter'],
    ['SUBSCRIBE', 'x-ks-group', 'G1', 'invalid-parameter'],
  ] as const) {
    it(`names that header: ${wrong} ${value} of ${command}`, async () => {
      const client = await node.client();
      client.send(command, { destination: '/q/N/a', id: 's', [wrong]: value });
      const { headers, body } = await client.expectError(code);
      assert.equal(headers.get('x-ks-parameter'), wrong);
      if (code === 'invalid-parameter') assert.match(body.toString(), new RegExp(`^${wrong} "G1"`));
    });
  }
});
