import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { afterEach, describe, it } from 'node:test';
import type { User } from '../../src/access/user.ts';
import { DELIVERY_STATES } from '../../src/model/element.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import type { SessionServer } from '../../src/session/server.ts';
import { holdCounts } from '../support/held-counts.ts';
import { holdInserts } from '../support/held-inserts.ts';
import { memoryInUse } from '../support/memory.ts';
import { type SessionNode, stalled, TestAuthenticator } from '../support/session-node.ts';
import { until } from '../support/until.ts';
import {
  DRIVERS,
  type NodeOptions,
  type SessionClient,
  type SessionConsumer,
  type SessionDriver,
  type Taken,
} from './drivers.ts';

// The promises of every session, whatever its protocol and transport.

for (const driver of DRIVERS) sessionSuite(driver);

function sessionSuite(driver: SessionDriver): void {
  describe(`a session of ${driver.name}`, () => {
    let node: SessionNode<SessionServer>;
    const clients: SessionClient[] = [];

    const start = async (options: NodeOptions = {}): Promise<void> => {
      node = await driver.start(options);
    };
    const login = async (user = 'test', beats = false): Promise<SessionClient> => {
      const client = await driver.connect(node, user, beats);
      clients.push(client);
      return client;
    };
    afterEach(async () => {
      for (const { socket } of clients.splice(0)) socket.destroy();
      await node.stop();
    });

    const gone = (): Promise<void> => until(() => node.server.counts.sessions === 0);
    const userOf = (name: string): User | null =>
      new TestAuthenticator().recall(`Basic ${Buffer.from(`${name}:${name}`).toString('base64')}`);
    const bodies = (count: number, bytes: number): { body: Buffer }[] =>
      Array.from({ length: count }, (_, i) => ({ body: Buffer.alloc(bytes, `${i} `) }));
    /** Pops all elements of a queue and returns the body and tries of each, in order. */
    const drain = async (queue: string): Promise<[string, number][]> => {
      const all: [string, number][] = [];
      for (let next = await node.pop(queue); next !== null; next = await node.pop(queue)) {
        all.push([Buffer.from(next.body).toString(), next.tries]);
      }
      return all;
    };

    it('is listed from login to end with its consumers, their windows and their unacknowledged elements', async () => {
      await start();
      assert.deepEqual(node.server.describeSessions(), []);
      const client = await login();
      await node.insert('a', ...bodies(3, 10));
      await client.consume('a', { window: 2 });
      await until(() => node.server.counts.unacknowledged === 2);
      const [session, ...others] = node.server.describeSessions();
      assert.equal(others.length, 0);
      const { user, address, since, consumers } = session ?? {};
      assert.deepEqual([user, address], ['test', '127.0.0.1']);
      assert.equal(since, new Date(node.clock.now()).toISOString());
      assert.deepEqual(consumers, [
        { ns: 'N', queue: 'a', group: null, kind: 'take', window: 2, unacknowledged: 2 },
      ]);
      client.leave();
      await gone();
      assert.deepEqual(node.server.describeSessions(), []);
    });

    it('executes frames for a few milliseconds at a time, as do all others together, however many clients send at once', async () => {
      await start();
      const flood = await Promise.all(Array.from({ length: 20 }, () => login()));
      await Promise.all(flood.map((client) => client.send('a', 'first')));
      const { counts } = node.server;
      // Each frame takes half a millisecond.
      node.clock.monotonic = () => counts.frames / 2;
      const count = 300;
      const all = counts.frames + flood.length * count;
      let before = counts.frames;
      const turns: number[] = [];
      const countTurn = (): void => {
        turns.push(counts.frames - before);
        before = counts.frames;
        if (before < all) setImmediate(countTurn);
      };
      setImmediate(countTurn);
      for (const { socket } of flood) socket.cork();
      const sent = flood.flatMap((client) => Array.from({ length: count }, () => client.send('a', 'x')));
      setImmediate(() => {
        for (const { socket } of flood) socket.uncork();
      });
      await Promise.all(sent);
      // 20 ms and the frames of the client that exceeds them, after 5 ms of a client that has waited. The counter may
      // count the ends of two turns together.
      assert.ok(Math.max(...turns) <= 120, `${Math.max(...turns)} frames were executed in one turn`);
      assert.equal((await node.sizes('a')).ready, flood.length * (count + 1));
    });

    it('executes its frames soon although another user has many clients that wait for their turn', async () => {
      await start();
      const { counts } = node.server;
      const flood = await Promise.all(Array.from({ length: 60 }, () => login('writer')));
      const honest = await login();
      await Promise.all([...flood, honest].map((client) => client.send('a', 'first')));
      node.clock.monotonic = () => counts.frames / 2;
      const { storage } = node.engine.engine;
      const insert = storage.insert.bind(storage);
      let framesAtInsert = Number.POSITIVE_INFINITY;
      storage.insert = (queue, elements, options) => {
        if (queue.name === 'honest') framesAtInsert = counts.frames;
        return insert(queue, elements, options);
      };
      const clients = [...flood, honest];
      for (const { socket } of clients) socket.cork();
      const before = counts.frames;
      const sent = flood.flatMap((client) => Array.from({ length: 100 }, () => client.send('a', 'x')));
      sent.push(honest.send('honest', 'x'));
      setImmediate(() => {
        for (const { socket } of clients) socket.uncork();
      });
      await Promise.all(sent);
      // Each client of the other user executes ten frames at a time, so all together execute 600.
      const between = framesAtInsert - before;
      assert.ok(between <= 300, `${between} frames came before`);
    });

    it('takes turns with other users when it inserts, so that large elements of one user delay no other', async () => {
      await start();
      const held = holdInserts(node.engine.engine.storage);
      try {
        const flood = await Promise.all(Array.from({ length: 20 }, () => login('writer')));
        const honest = await login();
        const sent = flood.map((client) => client.send('flooded', Buffer.alloc(1_000_000)));
        await until(() => node.server.counts.receivedBytes >= 20_000_000);
        assert.ok(held.total < 6_000_000, `${held.total} bytes of one user are at the engine`);
        const small = honest.send('honest', 'small');
        await until(() => held.bytes.has('honest'));
        held.release();
        await Promise.all([small, ...sent]);
        assert.equal((await drain('flooded')).length, 20);
      } finally {
        held.release();
      }
    });

    it('settles only after its earlier inserts have been passed to the engine, even if those wait for their turn', async () => {
      await start();
      const { storage } = node.engine.engine;
      await node.insert('jobs', { body: Buffer.from('job') });
      const worker = await login();
      const job = await (await worker.consume('jobs')).next();
      // An AMQP client opens its link before its first insert.
      await worker.send('results', 'first');
      const [insert, settle] = [storage.insert.bind(storage), storage.settle.bind(storage)];
      const calls: string[] = [];
      storage.insert = (queue, elements, options) => {
        if (queue.name === 'results') calls.push('insert');
        return insert(queue, elements, options);
      };
      storage.settle = (items) => {
        calls.push('settle');
        return settle(items);
      };
      const held = holdInserts(storage);
      try {
        const others = await Promise.all(Array.from({ length: 6 }, () => login()));
        const flood = others.map((client) => client.send('flooded', Buffer.alloc(1_000_000)));
        await until(() => node.server.counts.receivedBytes >= 6_000_000);
        const result = worker.send('results', 'result');
        job.accept();
        // The response means that all earlier frames have been read.
        await worker.consume('others');
        held.release();
        await Promise.all([result, ...flood]);
        await until(() => node.server.counts.unacknowledged === 0);
        assert.deepEqual(calls, ['insert', 'settle']);
      } finally {
        held.release();
        Object.assign(storage, { insert, settle });
      }
    });

    it('settles only after its earlier inserts have been passed to the engine, even if a bounded queue must be counted first', async () => {
      await start();
      const { storage } = node.engine.engine;
      await node.queue('results').storeOptions({ maxElements: 10 });
      await node.insert('jobs', { body: Buffer.from('job') });
      const worker = await login();
      const job = await (await worker.consume('jobs')).next();
      await worker.send('results', 'first');
      const held = holdCounts(storage);
      try {
        // The cached count of the queue expires, so the next insert must count again.
        node.clock.advance(1_000);
        const result = worker.send('results', 'result');
        job.accept();
        await held.asked;
        // The response means that all earlier frames have been read.
        await worker.consume('others');
        held.release();
        await result;
        await until(() => held.calls.length === 2);
        assert.deepEqual(held.calls, ['insert', 'settle']);
      } finally {
        held.end();
      }
    });

    it('returns unsettled elements in engine calls of at most 1000', async () => {
      await start();
      const count = 2000;
      await node.insert('a', ...bodies(count, 10));
      const client = await login();
      const consumer = await client.consume('a', { window: count });
      const taken: Taken[] = [];
      const clock = setInterval(() => node.clock.advance(5), 1);
      while (taken.length < count) taken.push(await consumer.next());
      clearInterval(clock);
      const { storage } = node.engine.engine;
      const { settle } = storage;
      const calls: number[] = [];
      storage.settle = (items, time) => {
        calls.push(items.length);
        return settle.call(storage, items, time);
      };
      for (const one of taken.slice(0, 600)) one.accept();
      await until(() => node.server.counts.unacknowledged === count - 600);
      client.socket.destroy();
      await gone();
      await until(() => calls.reduce((sum, one) => sum + one, 0) === count);
      storage.settle = settle;
      assert.ok(Math.max(...calls) <= 1000, `${calls}`);
      assert.deepEqual(await node.sizes('a'), { ready: count - 600, scheduled: 0, reserved: 0 });
    });

    it('extends a lease as long as it holds it, and not once it has lost it', async () => {
      await start();
      await node.insert('a', 'x');
      const consumer = await (await login()).consume('a', { window: 1 });
      await consumer.next();
      const { storage } = node.engine.engine;
      const settle = storage.settle.bind(storage);
      const outcomes: string[] = [];
      storage.settle = async (items, time) => {
        const results = await settle(items, time);
        outcomes.push(...results.map(({ outcome }) => outcome));
        return results;
      };
      const { leaseMs } = node.queue('a').settings;
      /** Advances the clock from one lease check to the next, and waits until that check is done. */
      const check = async (): Promise<void> => {
        node.clock.advance(leaseMs / 4);
        for (let i = 0; i < 20; i++) await new Promise(setImmediate);
      };
      for (let i = 0; i < 4; i++) await check();
      assert.deepEqual(outcomes, ['done', 'done', 'done', 'done']);
      const [held] = (
        await node
          .queue('a')
          .scan({ group: null, states: DELIVERY_STATES, after: null, limit: 1, bodies: false })
      ).deliveries;
      const receipt = { id: held?.id ?? '', group: null, token: null };
      await node.queue('a').settle(receipt, { kind: 'release', delayMs: 0, countTry: false });
      outcomes.length = 0;
      for (let i = 0; i < 4; i++) await check();
      storage.settle = settle;
      assert.deepEqual(outcomes, ['lease-lost']);
    });

    it('writes one line a minute for all sessions together if leases cannot be renewed', async () => {
      await start();
      await node.insert('a', 'x', 'y', 'z');
      for (let i = 0; i < 3; i++) await (await (await login()).consume('a', { window: 1 })).next();
      const { storage } = node.engine.engine;
      const settle = storage.settle.bind(storage);
      let refused = 0;
      storage.settle = (items, time) => {
        if (items.every(({ action }) => action.kind !== 'extend')) return settle(items, time);
        refused += 1;
        return Promise.reject(new QuaysideError('storage-unavailable', 'The engine is away.'));
      };
      const cause = 'leases could not be extended; the next check tries again';
      node.clock.advance(node.queue('a').settings.leaseMs / 4);
      await until(() => refused === 3);
      await new Promise(setImmediate);
      node.clock.advance(60_000);
      storage.settle = settle;
      const [first, ...others] = node.logged;
      assert.equal(first?.message, cause);
      assert.deepEqual(
        others.map(({ fields }) => fields),
        [{ protocol: driver.name.replace(' over WebSocket', ''), cause, leftOut: 2 }],
      );
    });

    it('retains no memory of received elements while its client is idle', async () => {
      await start();
      const count = 20;
      const idle = await Promise.all(Array.from({ length: count }, () => login()));
      const send = async (body: Buffer): Promise<void> => {
        await Promise.all(idle.map((client) => client.send('a', body)));
      };
      const { storage } = node.engine.engine;
      const { insert } = storage;
      storage.insert = async (_, elements) => elements.map((_, i) => `${i}`);
      // The first insert allocates the queue and the links.
      await send(Buffer.from('small'));
      const before = await memoryInUse();
      await send(Buffer.alloc(900_000));
      const retained = (await memoryInUse()) - before;
      storage.insert = insert;
      assert.ok(retained < count * 20_000, `${count} idle clients retain ${retained} bytes`);
    });

    for (const { code, returns } of [
      { code: 'storage-unavailable', returns: true },
      { code: 'outcome-unknown', returns: false },
    ] as const) {
      it(`${returns ? 'returns an element at once, as a failed try,' : 'leaves an element to its lease'} if settling it fails with ${code}`, async () => {
        await start();
        await node.insert('a', 'x');
        const consumer = await (await login()).consume('a', { window: 1 });
        const taken = await consumer.next();
        const { storage } = node.engine.engine;
        const settle = storage.settle.bind(storage);
        storage.settle = (items, time) =>
          items.some(({ action }) => action.kind === 'finish')
            ? Promise.reject(new QuaysideError(code, 'Settling failed.'))
            : settle(items, time);
        taken.accept();
        assert.equal(await consumer.ended, code);
        await until(() => node.server.counts.subscriptions === 0);
        storage.settle = settle;
        if (returns) await until(async () => (await node.sizes('a')).reserved === 0);
        assert.deepEqual(await drain('a'), returns ? [['x', 1]] : []);
      });
    }

    for (const { what, count, body, parts } of [
      { what: 'bodies', count: 30, body: Buffer.alloc(500_000, 'x'), parts: {} },
      { what: 'headers', count: 2000, body: '', parts: { headers: { long: 'x'.repeat(8000) } } },
    ]) {
      it(`stops reading while 4 MiB of ${what} from its client are pending, and loses nothing`, async () => {
        await start();
        const client = await login();
        await client.send('a', 'first');
        const held = holdInserts(node.engine.engine.storage);
        try {
          const { receivedBytes } = node.server.counts;
          const sent = Array.from({ length: count }, () => client.send('a', body, parts));
          await until(() => node.server.counts.receivedBytes - receivedBytes > 4_000_000);
          // Once other clients have been served, everything the server was willing to read has been read.
          const other = await login();
          for (let i = 0; i < 20; i++) await other.consume('b', { window: 1 });
          const pending = node.server.counts.receivedBytes - receivedBytes;
          assert.ok(pending < 6 * 1024 * 1024, `${pending} bytes are pending`);
          held.release();
          await Promise.all(sent);
        } finally {
          held.release();
        }
        assert.equal((await node.sizes('a')).ready, count + 1);
      });
    }

    describe('whose client disconnects', () => {
      const ways: readonly (readonly [string, (client: SessionClient) => void])[] = [
        ['resets its connection', ({ socket }) => socket.resetAndDestroy()],
        ['closes its connection', ({ socket }) => socket.destroy()],
        ['closes its half of the connection', ({ socket }) => socket.end()],
        ['logs out', (client) => client.leave()],
        ['sends an invalid frame', ({ socket }) => socket.write('nonsense')],
      ];

      for (const [what, leave] of ways) {
        it(`takes no more elements if the client ${what} while it waits`, async () => {
          await start();
          const client = await login();
          await client.consume('a', { window: 1 });
          await client.consume('a', { window: 1, isPop: true });
          await until(() => node.queue('a').consumers().length === 2);
          leave(client);
          await gone();
          assert.deepEqual(node.queue('a').consumers(), []);
          await node.insert('a', 'x');
          assert.equal((await node.sizes('a')).ready, 1);
        });

        it(`returns unsettled elements at once, with one more try, if the client ${what}`, async () => {
          await start();
          await node.insert('a', '0', '1', '2');
          const client = await login();
          const consumer = await client.consume('a', { window: 3 });
          const [, second] = [await consumer.next(), await consumer.next(), await consumer.next()];
          second?.accept();
          await until(() => node.server.counts.unacknowledged === 2);
          leave(client);
          await gone();
          assert.deepEqual(await drain('a'), [
            ['0', 1],
            ['2', 1],
          ]);
        });
      }

      it('completes the inserts that it passed to the engine', async () => {
        await start();
        const client = await login();
        await client.send('a', 'first');
        const { frames } = node.server.counts;
        for (let i = 0; i < 30; i++) void client.send('a', 'x');
        await until(() => node.server.counts.frames >= frames + 30);
        client.socket.destroy();
        await gone();
        while ((await node.sizes('a')).ready < 31);
        assert.equal((await node.sizes('a')).ready, 31);
      });

      it('leaves the next element to the next consumer in the wait queue', async () => {
        await start();
        const first = await login();
        await first.consume('a', { window: 1 });
        await until(() => node.queue('a').consumers().length === 1);
        const consumer = await (await login()).consume('a', { window: 1 });
        await until(() => node.queue('a').consumers().length === 2);
        first.socket.destroy();
        await until(() => node.server.counts.sessions === 1);
        await node.insert('a', 'x');
        assert.equal((await consumer.next()).body, 'x');
      });

      it('counts no try for elements that were not written to the connection', async () => {
        await start();
        const count = 400;
        await node.insert('a', ...bodies(count, 60_000));
        const client = await login();
        client.socket.pause();
        void client.consume('a', { window: count });
        client.socket.resume();
        await until(() => node.server.counts.unacknowledged > 0);
        client.socket.pause();
        await stalled(node, 1);
        const { reserved } = await node.sizes('a');
        assert.ok(reserved < count, 'what waits to be written bounds what is reserved');
        client.socket.destroy();
        await gone();
        const tries = (await drain('a')).map(([, number]) => number);
        assert.equal(tries.length, count);
        const seen = tries.filter((number) => number === 1).length;
        assert.ok(seen > 0 && seen < reserved, `${seen} of ${reserved} were counted`);
        assert.ok(tries.every((number) => number <= 1));
      });

      it('returns popped elements that were not sent to their place in the queue, none of them twice', async () => {
        await start();
        const count = 600;
        await node.insert('a', ...bodies(count, 30_000));
        const client = await login();
        const numberOf = (body: string): number => Number.parseInt(body, 10);
        const seen = new Set<number>();
        const consumer = await client.consume('a', { window: count, isPop: true });
        for (let i = 0; i < 20; i++) seen.add(numberOf((await consumer.next()).body));
        client.socket.pause();
        await stalled(node, 1);
        const { ready } = await node.sizes('a');
        client.socket.destroy();
        await gone();
        while (consumer.inbox.length > 0) seen.add(numberOf((await consumer.next()).body));
        const rest = await drain('a');
        assert.ok(rest.length > ready, 'what waited for the client returned');
        // The end of the queue is left, in order: the lost elements had been written to the kernel and precede it.
        assert.deepEqual(
          rest.map(([body, tries]) => [numberOf(body), tries]),
          Array.from({ length: rest.length }, (_, i) => [count - rest.length + i, 0]),
        );
        assert.ok(rest.every(([body]) => !seen.has(numberOf(body))));
      });

      it('returns the popped elements of a consumer that were not sent in one call of the engine', async () => {
        await start();
        for (let i = 0; i < 10; i++) await node.insert('a', ...bodies(600, 3_000));
        const client = await login();
        const consumer = await client.consume('a', { window: 2_000, isPop: true });
        await consumer.next();
        client.socket.pause();
        await stalled(node, 1);
        const { storage } = node.engine.engine;
        const { undoTake } = storage;
        const calls: number[] = [];
        storage.undoTake = (queue, deliveries) => {
          calls.push(deliveries.length);
          return undoTake.call(storage, queue, deliveries);
        };
        client.socket.destroy();
        await gone();
        await until(() => calls.length > 0);
        await new Promise(setImmediate);
        storage.undoTake = undoTake;
        assert.equal(calls.length, 1, `${calls}`);
        assert.ok((calls[0] ?? 0) > 5, `${calls} waited for the client`);
      });

      for (const end of ['logs out', 'is disconnected by the server'] as const) {
        it(`returns popped elements of which no byte was written, even if the client ${end} and keeps reading`, async () => {
          await start();
          const count = 600;
          await node.insert('a', ...bodies(count, 30_000));
          const client = await login();
          const consumer = await client.consume('a', { window: count, isPop: true });
          for (let i = 0; i < 20; i++) await consumer.next();
          client.socket.pause();
          await stalled(node, 1);
          const { ready } = await node.sizes('a');
          const waiting = Math.floor(node.server.counts.outgoingBytes / 30_000);
          assert.ok(waiting > 1, `${waiting} wait to be written`);
          if (end === 'logs out') client.leave();
          else void node.server.stop();
          await until(() => node.server.counts.subscriptions === 0);
          client.socket.resume();
          await gone();
          const rest = await drain('a');
          // The first waiting element belongs to the write in progress.
          assert.ok(rest.length >= ready + waiting - 1, `${rest.length - ready} of ${waiting} returned`);
          assert.deepEqual(
            rest.map(([body]) => Number.parseInt(body, 10)),
            Array.from({ length: rest.length }, (_, i) => count - rest.length + i),
          );
        });
      }

      it('ends and returns its elements if the client reads nothing for three minutes', async () => {
        await start();
        await node.insert('a', ...bodies(400, 60_000));
        const client = await login();
        await client.consume('a', { window: 400 });
        await until(() => node.server.counts.unacknowledged > 0);
        client.socket.pause();
        await stalled(node, 1);
        node.clock.advance(180_000);
        await gone();
        assert.deepEqual(await node.sizes('a'), { ready: 400, scheduled: 0, reserved: 0 });
      });

      it('loses no element when 40 clients disconnect at once', async () => {
        await start();
        await node.insert('a', ...Array.from({ length: 500 }, (_, i) => `${i}`));
        const many = await Promise.all(Array.from({ length: 40 }, () => login()));
        await Promise.all(many.map((client) => client.consume('a', { window: 10 })));
        await until(() => node.server.counts.unacknowledged === 400);
        for (const { socket } of many) socket.destroy();
        await gone();
        await until(() => node.server.counts.unacknowledged === 0);
        assert.deepEqual(await node.sizes('a'), { ready: 500, scheduled: 0, reserved: 0 });
      });
    });

    describe('whose server stops', () => {
      it('confirms everything that was sent before the stop, then ends', async () => {
        await start();
        const idle = await login();
        const busy = await login();
        await busy.consume('b', { window: 1 });
        await busy.send('c', 'first');
        const { frames } = node.server.counts;
        const sent = Array.from({ length: 20 }, () => busy.send('c', 'x'));
        await until(() => node.server.counts.frames >= frames + 20);
        const stopped = node.server.stop();
        await Promise.all(sent);
        for (const { ended } of [busy, idle]) assert.equal(await ended, driver.stopCode);
        await stopped;
        assert.equal((await node.sizes('c')).ready, 21);
        assert.equal(node.server.counts.errors, 0);
      });

      it('returns the elements that its client holds without counting a try', async () => {
        await start();
        await node.insert('a', 'x', 'y');
        const client = await login();
        const consumer = await client.consume('a', { window: 2 });
        await consumer.next();
        await consumer.next();
        const stopped = node.server.stop();
        assert.equal(await client.ended, driver.stopCode);
        await stopped;
        assert.deepEqual(await drain('a'), [
          ['x', 0],
          ['y', 0],
        ]);
      });

      it('ends once the broker drains, whether it is waiting or starts to wait later', async () => {
        await start();
        const client = await login();
        await client.consume('a', { window: 1 });
        await until(() => node.queue('a').consumers().length === 1);
        node.broker.drain();
        assert.equal(await client.ended, driver.stopCode);
        const late = await login();
        void late.consume('a', { window: 1 }).catch(() => {});
        assert.equal(await late.ended, driver.stopCode);
      });

      it('is cut soon after the last frame if its client does not close the connection', async () => {
        await start();
        const { socket } = await login();
        socket.pause();
        const stopped = node.server.stop();
        await until(() => node.server.counts.outgoingBytes === 0);
        let isStopped = false;
        void stopped.then(() => {
          isStopped = true;
        });
        await until(() => {
          node.clock.advance(100);
          return isStopped;
        });
      });

      if (!driver.isOverWebSocket) {
        it('ends even if it has not logged in', async () => {
          await start();
          const socket = connect({ port: node.port, host: '127.0.0.1' });
          await until(() => node.server.counts.connections === 1);
          const closed = once(socket.resume(), 'close');
          await node.server.stop();
          await closed;
        });
      }

      it('cannot be opened: the port refuses connections', async () => {
        await start();
        const { port } = node.server.address;
        assert.equal(node.server.stop(), node.server.stop());
        await node.server.stop();
        const socket = connect({ port, host: '127.0.0.1' });
        const [error] = await once(socket, 'error');
        assert.equal((error as NodeJS.ErrnoException).code, 'ECONNREFUSED');
      });
    });

    describe('whose client reads slowly', () => {
      it('buffers at most 128 KiB for the client, however large its window', async () => {
        await start();
        for (let i = 0; i < 24; i++) await node.insert('a', ...bodies(25, 50_000));
        const slow = await Promise.all(Array.from({ length: 3 }, () => login()));
        for (const client of slow) {
          await client.consume('a', { window: 2000 });
          client.socket.pause();
        }
        await stalled(node, slow.length);
        assert.ok(node.server.counts.outgoingBytes > 0);
        assert.ok(node.server.counts.outgoingBytes <= slow.length * 128 * 1024);
      });

      for (const isPop of [true, false]) {
        it(`buffers at most 1 MiB and one ${isPop ? 'popped' : 'reserved'} element, however many consumers it has`, async () => {
          await start();
          const count = 28;
          const bytes = 500_000;
          const names = Array.from({ length: count }, (_, i) => `q${i}`);
          const client = await login();
          const consumers = await Promise.all(
            names.map((name) => client.consume(name, { window: 1, isPop })),
          );
          await until(() => node.broker.waiting === count);
          client.socket.pause();
          await Promise.all(names.map((name) => node.insert(name, ...bodies(1, bytes))));
          const { counts } = node.server;
          for (let returned = 0; counts.stalled < 1 || counts.messages + returned < count; ) {
            const sizes = await Promise.all(names.map((name) => node.sizes(name)));
            returned = sizes.filter(({ ready }) => ready === 1).length;
          }
          const { outgoingBytes } = counts;
          assert.ok(outgoingBytes > 0 && outgoingBytes < 1_048_576 + 1.1 * bytes, String(outgoingBytes));
          client.socket.resume();
          for (const consumer of consumers) {
            const taken = await consumer.next();
            assert.equal(taken.tries, 0);
            if (!isPop) taken.accept();
          }
          await until(() => node.server.counts.unacknowledged === 0);
        });
      }

      for (const isPop of [true, false]) {
        it(`delivers all ${isPop ? 'popped' : 'reserved'} elements in order once the client reads again`, async () => {
          await start();
          const count = 300;
          await node.insert('a', ...bodies(count, 40_000));
          const client = await login();
          const consumer = await client.consume('a', { window: 1000, isPop });
          client.socket.pause();
          await stalled(node, 1);
          client.socket.resume();
          for (let i = 0; i < count; i++) {
            const taken = await consumer.next();
            assert.equal(Number.parseInt(taken.body, 10), i);
            assert.equal(taken.tries, 0);
            if (!isPop) taken.accept();
          }
          await until(() => node.server.counts.unacknowledged === 0);
          client.leave();
          await gone();
          while ((await node.sizes('a')).reserved > 0);
          assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
        });
      }
    });

    it('returns few of the elements that it takes, however many consumers of full queues its client has, if the engine is slow and the client settles as late as it can', async () => {
      await start();
      const names = Array.from({ length: 64 }, (_, i) => `q${i}`);
      const each = 150;
      for (const name of names) await node.insert(name, ...bodies(each, 1500));
      const { storage } = node.engine.engine;
      const [take, settle] = [storage.take.bind(storage), storage.settle.bind(storage)];
      storage.take = async (queue, options) => {
        const taken = await take(queue, options);
        // Until then the session does everything else, which may let it take more.
        for (let turn = 0; turn < 20; turn++) await new Promise(setImmediate);
        return taken;
      };
      let returned = 0;
      storage.settle = (items, time) => {
        returned += items.filter(({ action }) => action.kind === 'release').length;
        return settle(items, time);
      };
      const client = await login();
      const clock = setInterval(() => node.clock.advance(5), 1);
      const consumers = await Promise.all(names.map((name) => client.consume(name, { window: each })));
      const held: Taken[] = [];
      let left = names.length * each;
      const takeAll = async (consumer: SessionConsumer): Promise<void> => {
        for (let i = 0; i < each; i++) {
          held.push(await consumer.next());
          if (held.length < Math.min(left, driver.maxUnsettled)) continue;
          left -= held.length;
          for (const taken of held.splice(0)) taken.accept();
        }
      };
      await Promise.all(consumers.map(takeAll));
      clearInterval(clock);
      Object.assign(storage, { take, settle });
      assert.equal(left, 0);
      assert.ok(returned < (names.length * each) / 20, `${returned} were returned`);
    });

    describe('whose client promised heart-beats', () => {
      it('ends if the client is silent for twice the heart-beat interval', async () => {
        await start({ beats: true });
        const client = await login('test', true);
        node.clock.advance(driver.silenceMs - 1);
        await client.send('a', 'a sign of life');
        node.clock.advance(driver.silenceMs - 1);
        await new Promise(setImmediate);
        assert.equal(node.server.counts.errors, 0);
        node.clock.advance(1);
        assert.equal(await client.ended, 'request-timeout');
      });

      it('expects no heart-beats while it has stopped reading, and expects them again afterwards', async () => {
        await start({ beats: true });
        const client = await login('test', true);
        await client.send('a', 'first');
        const { asked, release } = node.holdInserts();
        const sent = Array.from({ length: 10 }, () => client.send('a', Buffer.alloc(1_000_000, 'x')));
        const { receivedBytes } = node.server.counts;
        await asked;
        await until(() => node.server.counts.receivedBytes - receivedBytes > 4_000_000);
        for (let i = 0; i < 100; i++) await new Promise(setImmediate);
        for (let i = 0; i < 10; i++) node.clock.advance(driver.silenceMs);
        assert.equal(node.server.counts.errors, 0);
        release();
        await Promise.all(sent);
        assert.equal((await node.sizes('a')).ready, 11);
        node.clock.advance(driver.silenceMs);
        assert.equal(await client.ended, 'request-timeout');
      });
    });

    describe('that holds elements', () => {
      it('renews their leases until it ends', async () => {
        await start();
        await node.insert('a', 'x');
        const consumer = await (await login()).consume('a', { window: 1 });
        const taken = await consumer.next();
        const leaseMs = node.broker.namespace('N').setup.leaseMs;
        for (let i = 0; i < 12; i++) {
          node.clock.advance(leaseMs / 4);
          await new Promise(setImmediate);
          assert.equal((await node.sizes('a')).reserved, 1);
        }
        taken.accept();
        await until(() => node.server.counts.unacknowledged === 0);
        while ((await node.sizes('a')).reserved > 0);
        assert.deepEqual(await drain('a'), []);
      });

      it('loses them when the lease that its client requested expires, which counts as a failed try', async () => {
        await start();
        await node.insert('a', 'x');
        const consumer = await (await login()).consume('a', { window: 1, leaseMs: 1000 });
        const taken = await consumer.next();
        node.clock.advance(1001);
        await new Promise(setImmediate);
        assert.equal((await node.reserve('a'))?.tries, 1);
        taken.accept();
        assert.equal(await consumer.ended, 'lease-lost');
      });

      it('is counted in the metrics with its consumers, their windows and its messages', async () => {
        await start();
        await node.insert('a', 'x', 'y', 'z');
        const client = await login();
        const consumer = await client.consume('a', { window: 10 });
        const taken = [await consumer.next(), await consumer.next(), await consumer.next()];
        taken[0]?.accept();
        await until(() => node.server.counts.unacknowledged === 2);
        const { sessions, subscriptions, window, messages, connections } = node.server.counts;
        assert.deepEqual(
          { sessions, subscriptions, window, messages, connections },
          { sessions: 1, subscriptions: 1, window: 10, messages: 3, connections: 1 },
        );
      });
    });

    describe('whose user changes', () => {
      it('ends once its login is no longer valid', async () => {
        await start();
        const client = await login();
        await client.send('a', 'x');
        node.renewUsers((user) => user);
        await client.send('a', 'y');
        node.renewUsers(() => null);
        assert.equal(await client.ended, 'unauthorized');
      });

      it('ends the consumers that its user may no longer have, and nothing else', async () => {
        await start();
        const reads = await login('reader');
        const writes = await login('writer');
        const consumer = await reads.consume('a', { window: 1 });
        await writes.send('b', 'x');
        // Both may only write from now on.
        node.renewUsers(() => userOf('writer'));
        assert.equal(await consumer.ended, 'forbidden');
        await writes.send('b', 'x');
        assert.equal((await node.sizes('b')).ready, 2);
      });
    });

    it('is rejected if its user has nine tenths of all connections, so that other users can log in', async () => {
      await start({ maxSockets: 20 });
      for (let i = 0; i < 18; i += 1) await login('writer');
      void driver.connect(node, 'writer').catch(() => {});
      await until(() => node.server.counts.errors === 1);
      assert.equal(node.server.counts.sessions, 18);
      await (await login()).send('a', 'x');
      clients[0]?.socket.destroy();
      clients[1]?.socket.destroy();
      await until(() => node.server.counts.sessions === 17);
      await login('writer');
    });

    if (!driver.isOverWebSocket) {
      it('cannot be opened beyond maxSockets: the connection is closed and a warning is logged', async () => {
        await start({ maxSockets: 2 });
        await login();
        await login();
        const third = connect({ port: node.port, host: '127.0.0.1' });
        await once(third.resume(), 'close');
        const lines = node.logged.filter(({ message }) => message.includes('maxSockets'));
        assert.match(JSON.stringify(lines), /^\[\{"fields":\{"protocol":"\w+","maxSockets":2\},/);
      });

      it('cannot be served at a port in use: the start fails', async () => {
        await start();
        await assert.rejects(driver.start({ port: node.port }), { code: 'EADDRINUSE' });
      });
    }

    describe('that waits', () => {
      it('is listed as a consumer and can be cancelled by its tid', async () => {
        await start();
        const consumer = await (await login()).consume('a', { window: 1 });
        await until(() => node.queue('a').consumers().length === 1);
        const [listed] = node.queue('a').consumers();
        assert.equal(node.queue('a').cancel(listed?.tid ?? '', null), 1);
        assert.equal(await consumer.ended, 'pop-cancelled');
      });

      it('receives nothing while the queue is paused', async () => {
        await start();
        await node.queue('a').pause();
        const consumer = await (await login()).consume('a', { window: 1 });
        await node.insert('a', 'x');
        await until(() => node.queue('a').consumers().length === 1);
        assert.equal(consumer.inbox.length, 0);
        await node.queue('a').resume();
        assert.equal((await consumer.next()).body, 'x');
      });
    });
  });
}
