import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it, mock } from 'node:test';
import { SenderEndpoint } from '../../src/amqp/core/link.ts';
import { OutgoingLink } from '../../src/amqp/links.ts';
import { until } from '../support/until.ts';
import { AmqpNode } from './node.ts';
import { conditionOf, KIND, type RawClient } from './raw-client.ts';
import {
  attachReceiver,
  attachSender,
  begin,
  credit,
  detach,
  FALSE,
  frame,
  NULL,
  TRUE,
  uint,
} from './wire.ts';

describe('an internal error in an AMQP session', () => {
  let node: AmqpNode;
  let client: RawClient;

  const fail = (): never => {
    throw new RangeError('broken');
  };
  const faults = (): string[] =>
    node.logged
      .filter(({ message }) => message === 'a session failed')
      .map(({ fields }) => String((fields as { err?: unknown }).err));

  const endsWithInternalError = async (): Promise<void> => {
    assert.equal(conditionOf(await client.until(KIND.close)), 'amqp:internal-error');
    assert.equal(faults()[0], 'RangeError: broken');
    // Other clients are still served.
    await (await node.client()).receiver('N/q');
  };

  beforeEach(async () => {
    node = await AmqpNode.start();
    client = await node.rawClient(begin(), attachReceiver(), credit(0, 10));
    await until(() => node.queue('q').consumers().length === 1);
  });
  afterEach(async () => {
    mock.restoreAll();
    await node.stop();
  });

  it('at the end of an event-loop turn closes the connection with amqp:internal-error', async () => {
    mock.method(OutgoingLink.prototype, 'fill', fail, { times: 1 });
    client.write(credit(0, 11));
    await endsWithInternalError();
  });

  it('when the client opens its window again closes the connection with amqp:internal-error', async () => {
    mock.method(OutgoingLink.prototype, 'fill', fail, { times: 1 });
    client.write(attachSender({ name: 'm', handle: 1 }));
    await endsWithInternalError();
  });

  it('during a detach by the client closes the connection with amqp:internal-error', async () => {
    mock.method(SenderEndpoint.prototype, 'release', fail, { times: 1 });
    client.write(detach(0));
    await endsWithInternalError();
  });

  it('during a detach by the server closes the connection with amqp:internal-error', async () => {
    mock.method(SenderEndpoint.prototype, 'release', fail, { times: 1 });
    const [consumer] = node.queue('q').consumers();
    node.queue('q').cancel(consumer?.tid ?? '', null);
    await endsWithInternalError();
  });

  for (const [what, owner, method] of [
    ['links are released', SenderEndpoint.prototype, 'release'],
    ['links are stopped', OutgoingLink.prototype, 'stop'],
  ] as const) {
    it(`when ${what} after a lost connection is logged`, async () => {
      const original = owner[method as keyof typeof owner] as (...given: unknown[]) => unknown;
      mock.method(
        owner,
        method as never,
        function (this: unknown, ...given: unknown[]) {
          original.apply(this, given);
          fail();
        } as never,
      );
      client.socket.destroy();
      await until(() => faults().length > 0);
      mock.restoreAll();
      await (await node.client()).receiver('N/q');
    });
  }
});

describe('a receiving client', () => {
  it('cannot overflow the credit of a link', async () => {
    const node = await AmqpNode.start();
    try {
      const client = await node.rawClient(
        begin(),
        attachReceiver({ name: 'x', handle: 0, address: 'N/other' }),
        attachReceiver({ name: 'y', handle: 1 }),
      );
      const flow = (window: number, seen: number, count: number, drain = false, echo = false): void => {
        const ofSession = [uint(0), uint(window), uint(0), uint(2048)];
        const ofLink = [uint(1), uint(seen), uint(count), NULL, drain ? TRUE : FALSE, echo ? TRUE : FALSE];
        client.write(frame('flow', [...ofSession, ...ofLink]));
      };
      flow(10, 0, 100);
      await until(() => node.queue('q').consumers().length === 1);
      // Close the window after the take, so that the element's transfer is queued, with a flow behind it.
      client.write(
        frame('flow', [uint(0), uint(0), uint(0), uint(2048)]),
        frame('flow', [uint(0), uint(0), uint(0), uint(2048), NULL, NULL, NULL, NULL, FALSE, TRUE]),
      );
      await client.until(KIND.flow);
      await node.insert('q', 'hello');
      await until(() => node.server.counts.unacknowledged === 1);
      flow(0, 0, 100, false, true);
      flow(0, 0, 100, true);
      flow(0, 100, 2 ** 32 - 1);
      flow(10, 100, 2 ** 32 - 1, false, true);
      await client.until(KIND.transfer);
      await client.until(KIND.flow);
      client.write(frame('close'));
      assert.equal(conditionOf(await client.until(KIND.close)), null);
      assert.deepEqual(node.logged, []);
    } finally {
      await node.stop();
    }
  });
});
