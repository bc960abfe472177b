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

/** Replaces the next call of this step, for `queue` if it is given, by a call of `instead`. */
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

  /** Inserts elements with these bodies and lets the client reserve them; returns their `ack` headers. */
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

  it('after its ACKs and SENDs took effect is answered with outcome-unknown', async () => {
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

  it('for one of several destinations is answered with outcome-unknown, since the others have their elements', async () => {
    await send('a');
    await send('b');
    failNext(storage, 'insert', 'storage-full', 'b');
    await failsWith('outcome-unknown', false);
    assert.deepEqual(await sizes('a', 'b'), [
      [1, 0, 0],
      [0, 0, 0],
    ]);
  });

  it('for all destinations is answered with the cause, and stores nothing', async () => {
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

  it('certainly for one destination and possibly for another is answered with outcome-unknown', async () => {
    await send('a');
    await send('b');
    failNext(storage, 'insert', 'outcome-unknown', 'b');
    failNext(storage, 'insert', 'storage-unavailable', 'a');
    await failsWith('outcome-unknown', false);
  });

  it('in the single step of its ACKs and SENDs is answered with the cause, stores nothing, and returns its messages at once', async () => {
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

  it('with an unknown outcome in that step keeps its messages reserved until their leases expire', async () => {
    await settle('ACK', ...(await take('from', '0')));
    failNext(storage, 'finish', 'outcome-unknown');
    await failsWith('outcome-unknown', false);
    assert.deepEqual(await sizes('from'), [[0, 0, 1]]);
  });

  it('before any step took effect returns all its messages', async () => {
    const [first = '', second = ''] = await take('from', '0', '1');
    await settle('ACK', first);
    await settle('NACK', second);
    failNext(storage, 'extend', 'storage-unavailable');
    await failsWith('storage-unavailable', true);
    assert.deepEqual(await sizes('from'), [[2, 0, 0]]);
  });

  /** Another client finishes the element after the server has checked that this client holds it. */
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

  it('for an element that another client finished is answered with outcome-unknown if others were settled', async () => {
    await settle('ACK', ...(await take('from', '0', '1')));
    await send('to');
    finishBefore('finish', 'from', '1');
    await failsWith('outcome-unknown', false);
    assert.deepEqual(await sizes('from', 'to'), [
      [0, 0, 0],
      [1, 0, 0],
    ]);
  });

  it('for an element that another client finished is answered with element-not-found if it has no other steps', async () => {
    await settle('NACK', ...(await take('from', '0')));
    finishBefore('release', 'from', '0');
    await failsWith('element-not-found', false);
  });
});

describe('a COMMIT after a SEND', () => {
  it('acknowledges nothing before the element is inserted, even if the insert first reads the count of its bounded queue', async () => {
    await whileCounting(async ({ client, id, held }) => {
      client.send('SEND', { destination: '/q/N/results', receipt: 'sent' }, 'result');
      await client.ask('BEGIN', { transaction: 't' });
      await client.ask('ACK', { id, transaction: 't' });
      client.send('COMMIT', { transaction: 't', receipt: 'committed' });
      await client.ask('BEGIN', { transaction: 'behind' });
      held.release();
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'sent');
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'committed');
      // The first settle checks that the client still holds the element.
      assert.deepEqual(held.calls, ['insert', 'settle', 'settle']);
    });
  });
});

describe('frames after a COMMIT', () => {
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

describe('frames after two COMMITs', () => {
  it('store their elements after those of the second, even if the first completes earlier', async () => {
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
      // Hold the check of the second COMMIT: each COMMIT first checks that the client holds the messages it
      // acknowledges.
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
      // This call is answered in a later turn than the one in which the first COMMIT ended.
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

describe('a settlement after a COMMIT with only SENDs', () => {
  for (const settles of ['an ACK', 'a COMMIT'] as const) {
    it(`takes effect after the elements are inserted, even if the insert first reads the count of their bounded queue: ${settles}`, async () => {
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
  let near: TestEngine;
  let far: TestEngine;
  let broker: Broker;
  let server: StompServer;
  let client: StompClient;

  beforeEach(async () => {
    near = await openFor({ policies: [plain('N'), plain('O')] });
    far = await openFor({ policies: [plain('M'), plain('N')] });
    const { clock } = near;
    // As if its store were a file: otherwise a namespace may not be migrated away from it.
    const disk = { value: () => Promise.reject(new Error('is not read')) };
    const engine: Engine = Object.create(near.engine, { disk });
    const namespaces = [
      { policy: plain('N'), engine },
      { policy: plain('O'), engine },
      { policy: plain('M'), engine: far.engine },
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
    await near.close();
    await far.close();
  });

  const sizeOf = async (ns: string, queue: string): Promise<number> =>
    (await broker.namespace(ns).visit(queue).status(null)).size;

  it('is answered with outcome-unknown if one of them fails; elements stored in the other stay, and messages are returned', async () => {
    await client.ask('SEND', { destination: '/q/N/near', transaction }, 'z');
    failNext(near.engine.storage, 'finish', 'storage-full');
    client.send('COMMIT', { transaction });
    await client.expectError('outcome-unknown');
    assert.deepEqual(
      [await sizeOf('M', 'far'), await sizeOf('N', 'near'), await sizeOf('N', 'from')],
      [1, 0, 1],
    );
  });

  it('acknowledges nothing if the engine to which its namespace is migrated cannot store its SENDs', async () => {
    await client.ask('ABORT', { transaction });
    await client.ask('SEND', { destination: '/q/N/from' }, 'second');
    const { headers } = await client.expect('MESSAGE');
    await broker.migrate('N', 'M');
    await client.ask('BEGIN', { transaction });
    // Acknowledges both messages, since the subscription is cumulative.
    await client.ask('ACK', { id: headers.get('ack') ?? '', transaction });
    await client.ask('SEND', { destination: '/q/N/near', transaction }, 'z');
    failNext(far.engine.storage, 'insert', 'storage-unavailable');
    client.send('COMMIT', { transaction });
    await client.expectError('storage-unavailable');
    assert.deepEqual([await sizeOf('N', 'near'), await sizeOf('N', 'from')], [0, 2]);
  });

  describe('while a namespace is migrated from one to the other', () => {
    const storesAll = async (): Promise<void> => {
      await client.ask('COMMIT', { transaction });
      assert.ok(broker.namespace('N').migration !== null);
      assert.deepEqual(
        [await sizeOf('M', 'far'), await sizeOf('O', 'near'), await sizeOf('N', 'from')],
        [1, 1, 0],
      );
    };

    it('stores every SEND, including one to another namespace of the old engine', async () => {
      await client.ask('SEND', { destination: '/q/O/near', transaction }, 'z');
      replaceNext(far.engine.storage, 'insert', async (real) => {
        await broker.migrate('N', 'M');
        return real();
      });
      await storesAll();
    });

    it('stores every SEND if the migration starts while the count of a bounded queue is read', async () => {
      await broker.namespace('O').queue('near').storeOptions({ maxElements: 9 });
      await client.ask('SEND', { destination: '/q/O/near', transaction }, 'z');
      const { storage } = near.engine;
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
  /** The `ack` header of an element of `jobs` that the client holds. */
  readonly id: string;
  readonly held: HeldCounts;
}

/**
 * Runs a test with a bounded queue `results`. Its count, which an insert reads first, is returned only after
 * `held.release`.
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
