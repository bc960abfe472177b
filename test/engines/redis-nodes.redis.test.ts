import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { JsonValue } from '../../src/engine/definitions.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { systemClock } from '../../src/util/clock.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyText, bodyTexts, newElement, newElements } from '../support/elements.ts';
import { followDefinitions } from '../support/followed-definitions.ts';
import { codeOf } from '../support/outcome.ts';
import { redisCli, startRedis } from '../support/redis-servers.ts';
import { commit } from '../support/settle.ts';
import { until } from '../support/until.ts';
import { freshPrefix, listening, redisEngine, standalone } from './redis.ts';

const NAMESPACES = [plain('plain'), plain('kept', { groups: ['g'], retentionMs: 60_000 })];
const QUEUE: QueueKey = { ns: 'plain', name: 'shared' };
const POP = { group: '', count: 10, leaseMs: null };
const RESERVE = { group: '', count: 10, leaseMs: 60_000 };

/** Starts nodes on the same data. */
async function nodes(count: number, clock: FakeClock | null, prefix = freshPrefix()): Promise<Engine[]> {
  const { url } = await standalone();
  const engines = Array.from({ length: count }, () =>
    redisEngine({ url, namespaces: NAMESPACES, clock, prefix }),
  );
  await Promise.all(engines.map((engine) => engine.start()));
  return engines;
}

async function stop(engines: readonly Engine[]): Promise<void> {
  await Promise.all(engines.map((engine) => engine.stop()));
}

describe('Several nodes on one Redis server', () => {
  it('deliver each element once', async () => {
    const engines = await nodes(3, null);
    const bodies = Array.from({ length: 1500 }, (_, index) => `${index}`);
    const inserting = bodies.map((body, i) => engines[i % 3]?.storage.insert(QUEUE, newElements(body)));
    const popped: string[] = [];
    const popping = engines.flatMap((engine) =>
      [1, 2].map(async () => {
        while (popped.length < bodies.length) {
          const { deliveries } = await engine.storage.take(QUEUE, POP);
          popped.push(...deliveries.map(bodyText));
        }
      }),
    );
    await Promise.all([...inserting, ...popping]);
    assert.deepEqual(
      popped.map(Number).sort((a, b) => a - b),
      bodies.map(Number),
    );
    await stop(engines);
  });

  it('return the reservations of a failed node when their leases expire, whichever node sweeps', async () => {
    const clock = new FakeClock();
    const [dying, other] = await nodes(2, clock);
    assert.ok(dying && other);
    await dying.storage.insert(QUEUE, newElements('a'));
    await dying.storage.take(QUEUE, RESERVE);
    assert.deepEqual((await other.storage.take(QUEUE, POP)).deliveries, []);
    assert.equal(await other.storage.sweep(), clock.now() + 60_000);
    clock.advance(60_000);
    assert.equal(await other.storage.sweep(), null);
    assert.deepEqual(other.storage.takeAffected(), [QUEUE]);
    assert.deepEqual(bodyTexts((await other.storage.take(QUEUE, POP)).deliveries), ['a']);
    await stop([dying, other]);
  });

  it('never give a token twice, even if a failover lost the last reservations', async () => {
    const clock = new FakeClock();
    const prefix = freshPrefix();
    const [one, other] = await nodes(2, clock, prefix);
    assert.ok(one && other);
    const { hash, order } = new Keys(prefix).queue(QUEUE);
    const { port } = await standalone();
    const copy = (from: string, to: string): string => redisCli(port, 'COPY', from, to, 'REPLACE');
    await one.storage.insert(QUEUE, newElements('a'));
    for (const key of [hash, order]) copy(key, `${key}:replica`);
    const [lost] = (await one.storage.take(QUEUE, RESERVE)).deliveries;
    for (const key of [hash, order]) copy(`${key}:replica`, key);
    clock.advance(1_000);
    const [reserved] = (await other.storage.take(QUEUE, RESERVE)).deliveries;
    assert.equal(reserved?.id, lost?.id);
    const ref = (token?: string) => ({ id: lost?.id ?? '', group: '', token: token ?? null });
    assert.deepEqual(await commit(one.storage, QUEUE, [ref(lost?.lease?.token)]), ['lease-lost']);
    assert.deepEqual(await commit(other.storage, QUEUE, [ref(reserved?.lease?.token)]), ['done']);
    await stop([one, other]);
  });

  it('remove the last popped element and the last reply of a failed node', async () => {
    const clock = new FakeClock();
    const prefix = freshPrefix();
    const [dying, other] = await nodes(2, clock, prefix);
    assert.ok(dying && other);
    await dying.storage.insert(QUEUE, newElements('a', 'b'));
    await dying.storage.take(QUEUE, { ...POP, count: 1 });
    const { hash, order } = new Keys(prefix).queue(QUEUE);
    const { port } = await standalone();
    const count = (command: string, key: string): number => Number(redisCli(port, command, key));
    assert.equal(count('HLEN', hash), 5, 'tag, number, two elements, one reply');
    clock.advance(61_000);
    await other.storage.sweep();
    assert.equal(count('HLEN', hash), 3, 'tag, number, one element');
    assert.equal(count('ZCARD', order), 2, 'the element, and the entry that keeps the key');
    assert.deepEqual(bodyTexts((await other.storage.take(QUEUE, POP)).deliveries), ['b']);
    await stop([dying, other]);
  });

  it('undo a pop of unknown outcome before they stop', async (t) => {
    const server = await startRedis('--repl-diskless-sync-delay', '0');
    const replica = await startRedis('--replicaof', '127.0.0.1', String(server.port));
    const clock = new FakeClock();
    const common = { url: server.url, namespaces: NAMESPACES, clock, prefix: freshPrefix() };
    const stopping = redisEngine({ ...common, settings: { wait: 1 } });
    const other = redisEngine({ ...common, settings: { wait: 0 } });
    t.after(async () => {
      await stop([stopping, other]);
      await Promise.all([replica.stop(), server.stop()]);
    });
    await Promise.all([stopping.start(), other.start()]);
    const element = newElement({ body: 'a', dedupKey: 'a' });
    await until(async () => (await codeOf(stopping.storage.insert(QUEUE, [element]))) === 'done');
    replica.freeze();
    await assert.rejects(stopping.storage.take(QUEUE, POP), { code: 'outcome-unknown' });
    assert.equal((await other.storage.counts(QUEUE)).ready, 0, 'the pop was applied');
    await stopping.stop();
    clock.advance(61_000);
    await other.storage.sweep();
    assert.deepEqual(bodyTexts((await other.storage.take(QUEUE, POP)).deliveries), ['a']);
  });

  it('apply retention by a sweep in a queue that they never used', async () => {
    const clock = new FakeClock();
    const [one, other] = await nodes(2, clock);
    assert.ok(one && other);
    const queue = { ns: 'kept', name: 'q' };
    await one.storage.insert(queue, [newElement({ groups: ['g'] })]);
    assert.equal(await other.storage.sweep(), clock.now() + 60_000);
    clock.advance(60_000);
    await other.storage.sweep();
    assert.equal((await other.storage.counts(queue)).ready, 0);
    await stop([one, other]);
  });

  it("use the server's clock, however wrong their own is", async () => {
    const { url } = await standalone();
    const ahead = { ...systemClock, now: () => systemClock.now() + 3_600_000 };
    const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, ownClock: ahead });
    await engine.start();
    const before = Date.now();
    await engine.storage.insert(QUEUE, newElements('a'));
    const [reserved] = (await engine.storage.take(QUEUE, RESERVE)).deliveries;
    const until = reserved?.lease?.until ?? 0;
    assert.ok((reserved?.matureAt ?? 0) >= before && (reserved?.matureAt ?? 0) <= Date.now());
    assert.ok(until >= before + 60_000 && until <= Date.now() + 60_000);
    assert.equal(await engine.storage.sweep(), until);
    await engine.stop();
  });

  it('read the statistics that the others stored', async () => {
    const [one, other] = await nodes(2, null);
    assert.ok(one && other);
    one.stats.add(QUEUE, '', { put: 2 });
    other.stats.add(QUEUE, '', { put: 3, get: 1 });
    await Promise.all([one.stats.flush(), other.stats.flush()]);
    assert.equal((await one.stats.read(QUEUE)).get('')?.put, 5);
    await stop([one, other]);
  });

  it("receive the signal of another's insert once the elements are stored", async () => {
    const [inserting, subscriber] = await nodes(2, null);
    assert.ok(inserting && subscriber);
    const received = Promise.withResolvers<JsonValue>();
    await listening(subscriber, inserting, 'stored', received.resolve);
    const signal = { topic: 'stored', messageFor: (count: number) => `${count} more` };
    const inserted = inserting.storage.insert(QUEUE, newElements('x', 'y'), { signal });
    assert.equal(await received.promise, '2 more');
    assert.deepEqual(bodyTexts((await subscriber.storage.take(QUEUE, POP)).deliveries), ['x', 'y']);
    await inserted;
    await stop([inserting, subscriber]);
  });

  it('are notified of a definition whose change has an unknown outcome, including the one that made it', async () => {
    const { url } = await standalone();
    const prefix = freshPrefix();
    const [other] = await nodes(1, null, prefix);
    assert.ok(other);
    // There is no replica, so WAIT 1 always fails.
    const settings = { wait: 1 };
    const own = redisEngine({ url, namespaces: NAMESPACES, clock: null, prefix, settings });
    await own.start();
    const changes: string[] = [];
    const notifications = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const unknown = { code: 'outcome-unknown' };
    own.definitions.watch(({ key }) => changes.push(`${key}, own`));
    other.definitions.watch(({ key }) => {
      changes.push(`${key}, other`);
      notifications.shift()?.resolve();
    });
    for (const change of ['put', 'delete'] as const) {
      const [notified] = notifications;
      const { definitions } = own;
      const changed =
        change === 'put' ? definitions.put('queue', 'q', 1, null) : definitions.delete('queue', 'q', 'any');
      await assert.rejects(changed, unknown);
      await notified?.promise;
      assert.deepEqual(changes.splice(0).sort(), ['q, other', 'q, own'], change);
    }
    await stop([own, other]);
  });

  it('read all definitions again after their subscription was interrupted', async () => {
    const prefix = freshPrefix();
    const [own, other] = await nodes(2, null, prefix);
    assert.ok(own && other);
    const { port } = await standalone();
    // Both were read once: no message about these changes can arrive later.
    for (const key of ['kept', 'lost']) await own.definitions.put('queue', key, 1, null);
    const { cache, read } = followDefinitions(own.definitions);
    await cache.reload();
    assert.deepEqual(read.splice(0).sort(), ['kept', 'lost']);
    // Deleted without a message to the nodes.
    redisCli(port, 'HDEL', new Keys(prefix).definitions('queue'), 'lost');
    redisCli(port, 'CLIENT', 'KILL', 'TYPE', 'pubsub');
    await until(() => read.length >= 2);
    assert.deepEqual(read.sort(), ['-lost', 'kept']);
    cache.stop();
    await stop([own, other]);
  });

  it('receive no signals or changes from nodes on another database of the server', async () => {
    const prefix = freshPrefix();
    const { url } = await standalone();
    const engines = [0, 0, 1, 1].map((db) =>
      redisEngine({ url: `${url}/${db}`, namespaces: NAMESPACES, clock: null, prefix }),
    );
    await Promise.all(engines.map((engine) => engine.start()));
    const [subscriber, publisher, listeningElsewhere, publishingElsewhere] = engines;
    assert.ok(subscriber && publisher && listeningElsewhere && publishingElsewhere);
    const received: JsonValue[] = [];
    const [here, elsewhere] = [Promise.withResolvers<JsonValue>(), Promise.withResolvers<JsonValue>()];
    await listening(subscriber, publisher, 'topic', (message) => {
      received.push(message);
      here.resolve(message);
    });
    await listening(listeningElsewhere, publishingElsewhere, 'topic', elsewhere.resolve);
    publishingElsewhere.signaller.publish('topic', 'elsewhere');
    await elsewhere.promise;
    publisher.signaller.publish('topic', 'here');
    await here.promise;
    assert.deepEqual(received, ['here']);

    const changed: (string | null)[] = [];
    const change = Promise.withResolvers<void>();
    subscriber.definitions.watch(({ key }) => {
      changed.push(key);
      change.resolve();
    });
    await publishingElsewhere.definitions.put('queue', 'elsewhere', 1, null);
    await publisher.definitions.put('queue', 'here', 1, null);
    await change.promise;
    assert.deepEqual(changed, ['here']);
    await stop(engines);
  });

  it('receive a signal that another publishes right before it stops', async () => {
    const [leaving, staying] = await nodes(2, null);
    assert.ok(leaving && staying);
    const received = Promise.withResolvers<JsonValue>();
    await listening(staying, leaving, 'last words', received.resolve);
    leaving.signaller.publish('last words', 'gone');
    await leaving.stop();
    assert.equal(await received.promise, 'gone');
    await staying.stop();
  });
});
