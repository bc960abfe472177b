import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { AmqpClient } from './client.ts';
import { AmqpNode } from './node.ts';

describe('a name in an AMQP message that is probably misspelled', () => {
  let node: AmqpNode;
  let client: AmqpClient;

  before(async () => {
    node = await AmqpNode.start();
    client = await node.client();
  });
  after(() => node.stop());

  for (const [section, kind, slip, meant] of [
    ['application_properties', 'application property', 'x-deltat', 'x-delta-t'],
    ['application_properties', 'application property', 'X-Delta-T', 'x-delta-t'],
    ['application_properties', 'application property', 'x-ks-next-t', 'x-next-t'],
    ['application_properties', 'application property', 'x-ks-group', 'x-ks-groups'],
    ['message_annotations', 'message annotation', 'x-opt-delivery-tim', 'x-opt-delivery-time'],
    ['message_annotations', 'message annotation', 'x-opt-Delivery-Delay', 'x-opt-delivery-delay'],
  ] as const) {
    it(`is rejected, and nothing is stored: ${slip}`, async () => {
      const sender = await client.sender('N/misspelt');
      const { kind: outcome, error } = await sender.send({ body: 'x', [section]: { [slip]: 60_000 } });
      assert.equal(outcome, 'rejected');
      assert.equal(error?.description, `Unknown ${kind} "${slip}". Did you mean "${meant}"?`);
      assert.deepEqual(error?.info, { code: 'invalid-parameter', parameter: slip });
      assert.deepEqual(await node.sizes('misspelt'), { ready: 0, scheduled: 0, reserved: 0 });
    });
  }

  it('is none if it is not close to one with a meaning', async () => {
    const sender = await client.sender('N/own');
    const { kind } = await sender.send({
      body: 'x',
      application_properties: { 'x-delta': 1, 'x-next': 1, delta: 1, 'x-hop-count': '1', 'x-dl-at': 'now' },
      message_annotations: { 'x-opt-delivery-repeat': 1, 'x-opt-ks-id': 'a', 'x-opt-jms-msg-type': 5 },
    });
    assert.equal(kind, 'accepted');
  });
});
