import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { Engine } from '../../src/engine/engine.ts';
import type { QueueCounts, SettleItem, Storage } from '../../src/engine/storage.ts';
import { type ErrorCode, QuaysideError } from '../../src/model/errors.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { STOMP_DEFAULTS } from '../../src/stomp/options.ts';
import { StompServer } from '../../src/stomp/session.ts';
import type { TestEngine } from '../engines.ts';
import { brokerOn, plain, SILENT_LOG } from '../support/broker.ts';
import { type HeldCounts, holdCounts } from '../support/held-counts.ts';
import { openFor } from '../support/session-node.ts';
import { commit } from '../support/settle.ts';
import { StompClient } from './client.ts';
import { StompNode, TestAuthenticator } from './node.ts';

/** A step of a COMMIT: an insert, or a settle with actions of this kind. */
type Step = 'insert' | 'extend' | 'finish' | 'release';

/** Calls `instead` in place of the next call of that step, or of the next that is about that queue. */
function replaceNext(
  storage: Storage,
  step: Step,
  instead: (real: () => Promise<unknown>) => Promise<unknown>,
  queue?: string,
): void {
  const verb = step === 'insert' ? 'insert' : 'settle';
  const real = storage[verb].bind(storage) as (...args: unknown[]) => Promise<unknown>;
  const replaced = (...args: unknown[]): Promise<unknown> => {
    const [first] = args as [QueueKey | readonly SettleItem[]];
    const item = Array.isArray(first) ? (first as readonly SettleItem[])[0] : undefined;
    const name = item === undefined ? (first as QueueKey).name : item.queue.name;
    const isMeant = (item === undefined || item.action.kind === step) && (queue ?? name) === name;
    if (!isMeant) return real(...args);
    Object.assign(storage, { [verb]: real });
    return instead(() => real(...args));
  };
  Object.assign(storage, { [verb]: replaced });
}

/** The next call of that step fails and changes nothing. */
function failNext(storage: Storage, step: Step, code: ErrorCode, queue?: string): void {
  const fail = (): Promise<never> => Promise.reject(new QuaysideError(code, `${step} failed.`));
  replaceNext(storage, step, fail, queue);
}

describe('a COMMIT that fails', () => {
  let node: StompNode;
  let client: StompClient;
  let storage: Storage;

  beforeEach(async () => {
    node = await StompNode.start();
    ({ storage } = node.broker.namespace('N'));
    client = await node.client();
    await client.ask('BEGIN', { transaction });
  });
  afterEach(() => node.stop());

  const transaction = 't';

  const send = (queue: string): Promise<void> =>
    client.ask('SEND', { destination: `/q/N/${queue}`, transaction }, 'x');

  /** Has the client hold one element of each of these bodies; answers how it acknowledges them. */
  const take = async (queue: string, ...bodies: string[]): Promise<string[]> => {
    await node.insert(queue, ...bodies);
    await client.ask('SUBSCRIBE', { destination: `/q/N/${queue}`, id: queue, ack: 'client-individual' });
    const acks: string[] = [];
    for (const _ of bodies) acks.push((await client.expect('MESSAGE')).headers.get('ack') ?? '');
    return acks;
  };

  const settle = async (command: 'ACK' | 'NACK', ...ids: string[]): Promise<void> => {
    for (const id of ids) await client.ask(command, { id, transaction });
  };

  const failsWith = async (code: ErrorCode, retry: boolean): Promise<void> => {
    client.send('COMMIT', { transaction, receipt: 'r' });
    const { headers } = await client.expectError(code);
    assert.equal(headers.get('receipt-id'), 'r');
    assert.equal(headers.get('x-ks-retry'), String(retry));
  };

  const sizes = async (...queues: string[]): Promise<number[][]> => {
    const all = await Promise.all(queues.map((queue) => node.sizes(queue)));
    return all.map(({ ready, scheduled, reserved }) => [ready, scheduled, reserved]);
  };

  it('behind its ACKs and SENDs is outcome-unknown: they are done', async () => {
    const [first = '', second = ''] = await take('from', '0', '1');
    await settle('ACK', first);
    await send('to');
    await settle('NACK', second);
    failNext(storage, 'release', 'storage-unavailable');
    await failsWith('outcome-unknown', false);
    assert.deepEqual(await sizes('to', 'from'), [
      [1, 0, 0],
      [1, 0, 0],
    ]);
    assert.equal(Buffer.from((await node.pop('from'))?.body ?? []).toString(), '1');
  });

  it('for one of several queues that it sends to is outcome-unknown: the others have it', async () => {
    await send('a');
    await send('b');
    failNext(storage, 'insert', 'storage-full', 'b');
    await failsWith('outcome-unknown', false);
    assert.deepEqual(await sizes('a', 'b'), [
      [1, 0, 0],
      [0, 0, 0],
    ]);
  });

  it('for all queues that it sends to says why: nothing is done', async () => {
    await send('a');
    await send('b');
    failNext(storage, 'insert', 'storage-unavailable', 'b');
    failNext(storage, 'insert', 'storage-unavailable', 'a');
    await failsWith('storage-unavailable', true);
    assert.deepEqual(await sizes('a', 'b'), [
      [0, 0, 0],
      [0, 0, 0],
    ]);
  });

  it('for certain in one queue and perhaps in another is outcome-unknown', async () => {
    await send('a');
    await send('b');
    failNext(storage, 'insert', 'outcome-unknown', 'b');
    failNext(storage, 'insert', 'storage-unavailable', 'a');
    await failsWith('outcome-unknown', false);
  });

  it('in the one step of its ACKs and SENDs says why: nothing is done, and all goes back at once', async () => {
    await settle('ACK', ...(await take('from', '0')), ...(await take('too', '1')));
    await send('a');
    await send('b');
    failNext(storage, 'finish', 'storage-unavailable');
    await failsWith('storage-unavailable', true);
    assert.deepEqual(await sizes('from', 'too', 'a', 'b'), [
      [1, 0, 0],
      [1, 0, 0],
      [0, 0, 0],
      [0, 0, 0],
    ]);
    assert.equal((await node.pop('from'))?.tries, 1);
  });

  it('in that step, perhaps, leaves what it acknowledged to its lease', async () => {
    await settle('ACK', ...(await take('from', '0')));
    failNext(storage, 'finish', 'outcome-unknown');
    await failsWith('outcome-unknown', false);
    assert.deepEqual(await sizes('from'), [[0, 0, 1]]);
  });

  it('before anything is done gives everything back', async () => {
    const [first = '', second = ''] = await take('from', '0', '1');
    await settle('ACK', first);
    await settle('NACK', second);
    failNext(storage, 'extend', 'storage-unavailable');
    await failsWith('storage-unavailable', true);
    assert.deepEqual(await sizes('from'), [[2, 0, 0]]);
  });

  /** Another client finishes that element once the server has seen that the client does. */
  const finishBefore = (step: 'finish' | 'release', queue: string, body: string): void => {
    replaceNext(storage, step, async (real) => {
      const key = { ns: 'N', name: queue };
      const page = { group: '', states: ['reserved'], bodies: true, after: null, limit: 10 } as const;
      const { deliveries } = await storage.scan(key, page);
      const refs = deliveries
        .filter((delivery) => Buffer.from(delivery.body).toString() === body)
        .map(({ id, group }) => ({ id, group, token: null }));
      assert.deepEqual(await commit(storage, key, refs), ['done']);
      return real();
    });
  };

  it('for one element that another client finished is outcome-unknown if others were settled', async () => {
    await settle('ACK', ...(await take('from', '0', '1')));
    await send('to');
    finishBefore('finish', 'from', '1');
    await failsWith('outcome-unknown', false);
    assert.deepEqual(await sizes('from', 'to'), [
      [0, 0, 0],
      [1, 0, 0],
    ]);
  });

  it('for one element that another client finished says so if nothing else was to be done', async () => {
    await settle('NACK', ...(await take('from', '0')));
    finishBefore('release', 'from', '0');
    await failsWith('element-not-found', false);
  });
});

describe('a COMMIT behind a SEND', () => {
  it('acknowledges nothing before the engine has the element, although the count of its bounded queue is read first', async () => {
    await whileCounting(async ({ client, id, held }) => {
      client.send('SEND', { destination: '/q/N/results', receipt: 'sent' }, 'result');
      await client.ask('BEGIN', { transaction: 't' });
      await client.ask('ACK', { id, transaction: 't' });
      client.send('COMMIT', { transaction: 't', receipt: 'committed' });
      await client.ask('BEGIN', { transaction: 'behind' });
      held.release();
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'sent');
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'committed');
      // The first one shows that the element is still held.
      assert.deepEqual(held.calls, ['insert', 'settle', 'settle']);
    });
  });
});

describe('frames behind a COMMIT', () => {
  it('store their elements after those of the transaction', async () => {
    const node = await StompNode.start();
    try {
      const client = await node.client();
      await node.insert('from', 'x');
      await client.ask('SUBSCRIBE', { destination: '/q/N/from', id: 's', ack: 'client-individual' });
      const ack = (await client.expect('MESSAGE')).headers.get('ack') ?? '';
      const send = (body: number, more: Record<string, string> = {}): Buffer =>
        client.frame('SEND', { destination: '/q/N/to', ...more }, String(body));
      const bracket = (transaction: string, ...frames: Buffer[]): Buffer[] => [
        client.frame('BEGIN', { transaction }),
        ...frames,
        client.frame('COMMIT', { transaction }),
      ];
      client.write(
        Buffer.concat([
          ...bracket('sends', send(0, { transaction: 'sends' })),
          send(1),
          ...bracket(
            'both',
            client.frame('ACK', { id: ack, transaction: 'both' }),
            send(2, { transaction: 'both' }),
          ),
          send(3),
          ...bracket('more', send(4, { transaction: 'more' })),
        ]),
      );
      await client.disconnect();
      const bodies: string[] = [];
      for (let next = await node.pop('to'); next !== null; next = await node.pop('to')) {
        bodies.push(Buffer.from(next.body).toString());
      }
      assert.deepEqual(bodies, ['0', '1', '2', '3', '4']);
    } finally {
      await node.stop();
    }
  });
});

describe('frames behind two COMMITs', () => {
  it('store their elements after those of the second, also if the first ends before', async () => {
    const node = await StompNode.start();
    const { storage } = node.engine.engine;
    const held = Promise.withResolvers<void>();
    try {
      const client = await node.client();
      await node.insert('from', 'x', 'y');
      await client.ask('SUBSCRIBE', { destination: '/q/N/from', id: 's', ack: 'client-individual' });
      const acks: string[] = [];
      for (const _ of ['x', 'y']) acks.push((await client.expect('MESSAGE')).headers.get('ack') ?? '');
      const [first = '', second = ''] = acks;
      // That of the second: both check first that the client holds what it acknowledges.
      replaceNext(storage, 'extend', async (real) => {
        replaceNext(storage, 'extend', async (realSecond) => {
          await held.promise;
          return realSecond();
        });
        return real();
      });
      client.write(
        Buffer.concat([
          client.frame('BEGIN', { transaction: 'a' }),
          client.frame('ACK', { id: first, transaction: 'a' }),
          client.frame('COMMIT', { transaction: 'a', receipt: 'first' }),
          client.frame('BEGIN', { transaction: 'b' }),
          client.frame('ACK', { id: second, transaction: 'b' }),
          client.frame('SEND', { destination: '/q/N/to', transaction: 'b' }, 'of the second'),
          client.frame('COMMIT', { transaction: 'b' }),
          client.frame('SEND', { destination: '/q/N/to' }, 'behind it'),
        ]),
      );
      await client.receipt('first');
      // Answered in a later turn than the one in which the first ended.
      assert.deepEqual(await node.sizes('to'), { ready: 0, scheduled: 0, reserved: 0 });
      held.resolve();
      await client.disconnect();
      const bodies = [await node.pop('to'), await node.pop('to')].map((one) =>
        Buffer.from(one?.body ?? []).toString(),
      );
      assert.deepEqual(bodies, ['of the second', 'behind it']);
    } finally {
      held.resolve();
      await node.stop();
    }
  });
});

describe('what is settled behind a COMMIT that only stores', () => {
  for (const settles of ['an ACK', 'a COMMIT'] as const) {
    it(`is settled after the engine has the elements, although the count of their bounded queue is read first: ${settles}`, async () => {
      await whileCounting(async ({ client, id, held }) => {
        await client.ask('BEGIN', { transaction: 't' });
        await client.ask('SEND', { destination: '/q/N/results', transaction: 't' }, 'result');
        client.send('COMMIT', { transaction: 't' });
        if (settles === 'an ACK') client.send('ACK', { id });
        else {
          client.send('BEGIN', { transaction: 'u' });
          client.send('ACK', { id, transaction: 'u' });
          client.send('COMMIT', { transaction: 'u' });
        }
        await client.ask('BEGIN', { transaction: 'behind' });
        await held.asked;
        assert.deepEqual(held.calls, []);
        held.release();
        await client.disconnect();
        assert.deepEqual(held.calls.slice(0, 2), ['insert', 'settle']);
      });
    });
  }
});

describe('a COMMIT across two engines', () => {
  const transaction = 't';
  let here: TestEngine;
  let there: TestEngine;
  let broker: Broker;
  let server: StompServer;
  let client: StompClient;

  beforeEach(async () => {
    here = await openFor({ policies: [plain('N'), plain('O')] });
    there = await openFor({ policies: [plain('M'), plain('N')] });
    const { clock } = here;
    // As if its store were a file, so that a namespace may leave it.
    const disk = { value: () => Promise.reject(new Error('is not read')) };
    const engine: Engine = Object.create(here.engine, { disk });
    const namespaces = [
      { policy: plain('N'), engine },
      { policy: plain('O'), engine },
      { policy: plain('M'), engine: there.engine },
    ];
    broker = brokerOn(namespaces, clock);
    await broker.start();
    server = new StompServer({
      broker,
      authenticator: new TestAuthenticator(),
      options: { ...STOMP_DEFAULTS, port: 0 },
      log: { ...SILENT_LOG, error: () => {} },
      clock,
      version: '0.0.0',
    });
    await server.start();
    client = await StompClient.login(server.address.port);
    await client.ask('SEND', { destination: '/q/N/from' }, 'x');
    await client.ask('SUBSCRIBE', { destination: '/q/N/from', id: 's', ack: 'client' });
    const { headers } = await client.expect('MESSAGE');
    await client.ask('BEGIN', { transaction });
    await client.ask('ACK', { id: headers.get('ack') ?? '', transaction });
    await client.ask('SEND', { destination: '/q/M/far', transaction }, 'y');
  });
  afterEach(async () => {
    client.socket.destroy();
    await server.stop();
    await broker.stop();
    await here.close();
    await there.close();
  });

  const sizeOf = async (ns: string, queue: string): Promise<number> =>
    (await broker.namespace(ns).visit(queue).status(null)).size;

  it('that fails in the second is outcome-unknown: what was stored in the first stays, the rest goes back', async () => {
    await client.ask('SEND', { destination: '/q/N/near', transaction }, 'z');
    failNext(here.engine.storage, 'finish', 'storage-full');
    client.send('COMMIT', { transaction });
    await client.expectError('outcome-unknown');
    assert.deepEqual(
      [await sizeOf('M', 'far'), await sizeOf('N', 'near'), await sizeOf('N', 'from')],
      [1, 0, 1],
    );
  });

  it('to which a namespace moves acknowledges nothing if that could not store what it sends', async () => {
    await client.ask('ABORT', { transaction });
    await client.ask('SEND', { destination: '/q/N/from' }, 'second');
    const { headers } = await client.expect('MESSAGE');
    await broker.migrate('N', 'M');
    await client.ask('BEGIN', { transaction });
    // That of both: the subscription is cumulative.
    await client.ask('ACK', { id: headers.get('ack') ?? '', transaction });
    await client.ask('SEND', { destination: '/q/N/near', transaction }, 'z');
    failNext(there.engine.storage, 'insert', 'storage-unavailable');
    client.send('COMMIT', { transaction });
    await client.expectError('storage-unavailable');
    assert.deepEqual([await sizeOf('N', 'near'), await sizeOf('N', 'from')], [0, 2]);
  });

  describe('of which one gets a namespace of the other in the middle of it', () => {
    const storesAll = async (): Promise<void> => {
      await client.ask('COMMIT', { transaction });
      assert.ok(broker.namespace('N').migration !== null);
      assert.deepEqual(
        [await sizeOf('M', 'far'), await sizeOf('O', 'near'), await sizeOf('N', 'from')],
        [1, 1, 0],
      );
    };

    it('stores each SEND, also those to what shared the engine before', async () => {
      await client.ask('SEND', { destination: '/q/O/near', transaction }, 'z');
      replaceNext(there.engine.storage, 'insert', async (real) => {
        await broker.migrate('N', 'M');
        return real();
      });
      await storesAll();
    });

    it('stores each SEND where its queue is, if it waited for the capacity of that', async () => {
      await broker.namespace('O').queue('near').storeOptions({ maxElements: 9 });
      await client.ask('SEND', { destination: '/q/O/near', transaction }, 'z');
      const { storage } = here.engine;
      const counts = storage.counts.bind(storage);
      const counting = async (key: QueueKey, group?: string): Promise<QueueCounts> => {
        Object.assign(storage, { counts });
        await broker.migrate('N', 'M');
        return counts(key, group);
      };
      Object.assign(storage, { counts: counting });
      await storesAll();
    });
  });
});

interface Counting {
  readonly client: StompClient;
  /** Of an element of `jobs` that the client holds. */
  readonly id: string;
  readonly held: HeldCounts;
}

/**
 * `results` is bounded, and its count, which is read before something is stored in it, comes only after `held.release`.
 */
async function whileCounting(test: (counting: Counting) => Promise<void>): Promise<void> {
  const node = await StompNode.start();
  let held: HeldCounts | null = null;
  try {
    await node.queue('results').storeOptions({ maxElements: 10 });
    await node.insert('jobs', 'job');
    const client = await node.client();
    await client.ask('SUBSCRIBE', { destination: '/q/N/jobs', id: 's', ack: 'client-individual' });
    const id = (await client.expect('MESSAGE')).headers.get('ack') ?? '';
    held = holdCounts(node.engine.engine.storage);
    await test({ client, id, held });
  } finally {
    held?.end();
    await node.stop();
  }
}
