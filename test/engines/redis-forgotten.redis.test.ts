import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { forgottenContract } from '../contract/storage/forgotten.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { redisCli } from '../support/redis-servers.ts';
import { rollback } from '../support/settle.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { freshPrefix, QUEUE_CALL, REDIS_LIST, redisEngine, sharedCluster, standalone } from './redis.ts';

const HOUR_MS = 3_600_000;
const POP = { group: '', count: 10, leaseMs: null };
const NAMESPACES = [plain('plain', { deadLetter: { maxTries: 1, queue: 'dead' } })];
const named = (name: string): QueueKey => ({ ns: 'plain', name });

describe(REDIS_LIST.name, () => forgottenContract(REDIS_LIST.open));

/** Runs a test with several nodes on the same data. */
async function withNodes(
  count: number,
  test: (nodes: readonly Engine[], clock: FakeClock, prefix: string) => Promise<void>,
  server: () => Promise<string> = async () => (await standalone()).url,
  settings: Readonly<Record<string, unknown>> = {},
): Promise<void> {
  const [clock, prefix, url] = [new FakeClock(), freshPrefix(), await server()];
  const nodes = Array.from({ length: count }, () =>
    redisEngine({ url, namespaces: NAMESPACES, clock, prefix, settings }),
  );
  await Promise.all(nodes.map((node) => node.start()));
  try {
    await test(nodes, clock, prefix);
  } finally {
    await Promise.all(nodes.map((node) => node.stop()));
  }
}

async function passHours(nodes: readonly Engine[], clock: FakeClock, hours: number): Promise<void> {
  for (let i = 0; i < hours; i += 1) {
    clock.advance(HOUR_MS);
    for (const { storage } of nodes) await storage.sweep();
  }
}

for (const [where, server] of [
  ['one Redis server', async () => (await standalone()).url],
  ['a Redis cluster', sharedCluster],
] as const) {
  it(`On ${where}, a queue with an element is listed although other nodes forget unused queues concurrently`, async () => {
    await withNodes(
      3,
      async (nodes, clock) => {
        const [one, two, three] = nodes;
        assert.ok(one && two && three);
        const names = Array.from({ length: 150 }, (_, i) => `q${i}`).sort();
        const queues = names.map(named);
        // All nodes have registered the queues, so no insert registers a queue only because the node has not used it
        // before.
        for (const { storage } of nodes) await storage.declare(queues);
        for (let round = 0; round < 5; round += 1) {
          clock.advance(30 * HOUR_MS);
          const sweeping = [one.storage.sweep(), two.storage.sweep()];
          const inserting: Promise<unknown>[] = [];
          for (const [i, queue] of queues.entries()) {
            // Lets the sweeps progress before some of the inserts.
            if (i % 10 === round) await three.storage.counts(queue);
            inserting.push((i % 2 === 0 ? one : three).storage.insert(queue, newElements(queue.name)));
          }
          await Promise.all([...sweeping, ...inserting]);
          assert.deepEqual(await two.storage.queues('plain'), names);
          for (const queue of queues) {
            assert.deepEqual(bodyTexts((await two.storage.take(queue, POP)).deliveries), [queue.name]);
          }
        }
      },
      server,
    );
  });
}

for (const [where, server] of [
  ['one Redis server', async () => (await standalone()).url],
  ['a Redis cluster', sharedCluster],
] as const) {
  it(`On ${where}, a list that another node deleted is listed again after its next insert`, async () => {
    await withNodes(
      2,
      async (nodes) => {
        const [one, two] = nodes;
        assert.ok(one && two);
        await one.storage.insert(named('q'), newElements('a'));
        await one.storage.take(named('q'), POP);
        assert.equal(await two.storage.drop(named('q')), true);
        assert.deepEqual(await one.storage.queues('plain'), []);
        await one.storage.insert(named('q'), newElements('b'));
        await until(async () => (await two.storage.queues('plain')).length > 0);
      },
      server,
      { variant: 'list' },
    );
  });
}

it('An insert that creates a list on a Redis cluster does not write a name that exists', async () => {
  await withNodes(
    1,
    async ([one], clock, prefix) => {
      assert.ok(one);
      const ports = Array.from((await sharedCluster()).matchAll(/:(\d+)/g), ([, port]) => Number(port));
      const names = new Keys(prefix).names('plain');
      const score = (): string[] => ports.map((port) => redisCli(port, 'ZSCORE', names, 'q'));
      await one.storage.insert(named('q'), newElements('a'));
      await one.storage.take(named('q'), POP);
      const before = score();
      assert.ok(before.some((line) => Number(line) > 0));
      clock.advance(10_000);
      await one.storage.insert(named('q'), newElements('b'));
      // Behind what the insert sent to the server of the names.
      assert.deepEqual(await one.storage.queues('plain'), ['q']);
      assert.deepEqual(score(), before);
    },
    sharedCluster,
    { variant: 'list' },
  );
});

it('A list on Redis is listed if it is created again while another node deletes it, before that removes the name', async () => {
  await withSlowNode(
    async ({ slow, other, proxy }) => {
      await other.storage.insert(named('q'), newElements('a'));
      await other.storage.take(named('q'), POP);
      const caught = proxy.catch(/_unname\r\n/, 'held');
      const dropping = slow.storage.drop(named('q'));
      await caught;
      await other.storage.insert(named('q'), newElements('b'));
      proxy.release();
      assert.equal(await dropping, true);
      assert.deepEqual(await other.storage.queues('plain'), ['q']);
    },
    { variant: 'list' },
  );
});

interface SlowNode {
  readonly slow: Engine;
  readonly other: Engine;
  /** The proxy between `slow` and its server. */
  readonly proxy: TcpProxy;
  readonly clock: FakeClock;
}

/** Runs a test with two nodes on one server, one of them behind a proxy. */
async function withSlowNode(
  run: (nodes: SlowNode) => Promise<void>,
  settings: Readonly<Record<string, unknown>> = {},
): Promise<void> {
  const { url } = await standalone();
  const proxy = await TcpProxy.start(Number(new URL(url).port));
  const [clock, prefix] = [new FakeClock(), freshPrefix()];
  const [slow, other] = [`redis://127.0.0.1:${proxy.port}`, url].map((at) =>
    redisEngine({ url: at, namespaces: NAMESPACES, clock, prefix, settings }),
  );
  assert.ok(slow && other);
  await Promise.all([slow.start(), other.start()]);
  try {
    await run({ slow, other, proxy, clock });
  } finally {
    await Promise.all([slow.stop(), other.stop()]);
    await proxy.stop();
  }
}

for (const step of ['drop', 'unname'] as const) {
  it(`A node that is cut off from Redis before it ${step === 'drop' ? 'deletes a queue' : 'removes its name'} does not lose an element inserted before it reconnects`, async () => {
    await withSlowNode(async ({ slow, other, proxy, clock }) => {
      await other.storage.declare([named('q')]);
      clock.advance(26 * HOUR_MS);
      const caught = proxy.catch(new RegExp(`_${step}\\r\\n`), 'deaf');
      const sweeping = slow.storage.sweep();
      await caught;
      await other.storage.insert(named('q'), newElements('a'));
      proxy.reset();
      await sweeping;
      assert.deepEqual(await other.storage.queues('plain'), ['q']);
      assert.deepEqual(bodyTexts((await other.storage.take(named('q'), POP)).deliveries), ['a']);
    });
  });
}

for (const [what, isReplyLost] of [
  ['is deleted by another node', false],
  ['is deleted by another node, and the reply is lost', true],
] as const) {
  it(`A new queue on Redis is listed if, between registering its name and storing its first element, it ${what}`, async () => {
    await withSlowNode(async ({ slow, other, proxy }) => {
      const caught = proxy.catch(QUEUE_CALL, 'deaf');
      const inserting = slow.storage.insert(named('fresh'), newElements('a'));
      await caught;
      assert.equal(await other.storage.drop(named('fresh')), true);
      const lost = isReplyLost ? proxy.catch(QUEUE_CALL, 'mute') : null;
      proxy.reset();
      if (lost !== null) {
        await lost;
        proxy.reset();
      }
      await inserting;
      assert.deepEqual(await other.storage.queues('plain'), ['fresh']);
      assert.equal((await other.storage.usage('plain')).elements, 1);
    });
  });
}

it('A queue on Redis that one node uses is not forgotten by another that never used it', async () => {
  await withNodes(2, async (nodes, clock) => {
    const [user, other] = nodes;
    assert.ok(user && other);
    for (let i = 0; i < 60; i += 1) {
      await user.storage.insert(named('busy'), newElements('a'));
      await user.storage.take(named('busy'), POP);
      await passHours([other], clock, 1);
      assert.deepEqual(await other.storage.queues('plain'), ['busy']);
    }
  });
});

it('No keys are left on Redis of forgotten queues, or of queues that were only taken from', async () => {
  await withNodes(2, async (nodes, clock, prefix) => {
    const [one] = nodes;
    assert.ok(one);
    const { port } = await standalone();
    const keys = (): string[] =>
      redisCli(port, 'KEYS', `${prefix}:{plain/*`).split('\n').filter(Boolean).sort();
    await one.storage.insert(named('used'), newElements('a'));
    await one.storage.take(named('used'), POP);
    one.stats.add(named('used'), '', { put: 1 });
    await one.stats.flush();
    await one.storage.take(named('unknown'), POP);
    assert.equal(keys().length, 3, 'data, order and counters of the used queue');
    assert.deepEqual(await one.storage.queues('plain'), ['used']);
    await passHours(nodes, clock, 28);
    assert.deepEqual(keys(), []);
    assert.equal(redisCli(port, 'EXISTS', new Keys(prefix).names('plain')).trim(), '0');
  });
});

it('A queue on Redis is not forgotten as long as it has a dedup key', async (t) => {
  const clock = new FakeClock();
  const { url } = await standalone();
  const engine = redisEngine({ url, namespaces: NAMESPACES, clock, dedupWindowMs: 48 * HOUR_MS });
  await engine.start();
  t.after(() => engine.stop());
  const insert = (): Promise<string[]> =>
    engine.storage.insert(named('q'), [newElement({ body: 'a', dedupKey: 'key' })]);
  const first = await insert();
  await engine.storage.take(named('q'), POP);
  await passHours([engine], clock, 40);
  assert.deepEqual(await insert(), first);
  await passHours([engine], clock, 40);
  assert.deepEqual(await engine.storage.queues('plain'), []);
});

it('Whether an old queue on Redis is still needed is checked once an hour, also after all nodes were off for weeks', async () => {
  await withNodes(1, async ([node], clock, prefix) => {
    assert.ok(node);
    const { port } = await standalone();
    const usedAt = async (): Promise<number> =>
      Number(redisCli(port, 'ZSCORE', new Keys(prefix).names('plain'), 'kept').trim());
    await node.storage.insert(named('kept'), newElements('a'));
    clock.advance(21 * 24 * HOUR_MS);
    await node.storage.sweep();
    const checked = await usedAt();
    for (let minutes = 11; minutes < 60; minutes += 11) {
      clock.advance(11 * 60_000);
      await node.storage.sweep();
      assert.equal(await usedAt(), checked, `checked again after ${minutes} minutes`);
    }
    await passHours([node], clock, 1);
    assert.ok((await usedAt()) > checked);
  });
});

it('The configured dead-letter queue on Redis is not forgotten', async () => {
  await withNodes(1, async (nodes, clock) => {
    const [one] = nodes;
    assert.ok(one);
    await one.storage.insert(named('q'), newElements('a'));
    const [delivery] = (await one.storage.take(named('q'), { ...POP, leaseMs: 1000 })).deliveries;
    const ref = { id: delivery?.id ?? '', group: '', token: delivery?.lease?.token ?? null };
    const rolledBack = await rollback(one.storage, named('q'), [{ ...ref, delayMs: 0, countTry: true }]);
    assert.deepEqual(rolledBack, ['dead-lettered']);
    assert.equal((await one.storage.take(named('dead'), POP)).deliveries.length, 1);
    await passHours(nodes, clock, 60);
    assert.deepEqual(await one.storage.queues('plain'), ['dead']);
  });
});

it('The records on Redis that prevent calls from being applied twice after a drop are removed a minute later', async () => {
  await withNodes(2, async (nodes, clock, prefix) => {
    const [one, two] = nodes;
    assert.ok(one && two);
    const { port } = await standalone();
    const { hash, order } = new Keys(prefix).queue(named('gone'));
    const existing = (): string => redisCli(port, 'EXISTS', hash, order).trim();
    await one.storage.insert(named('gone'), newElements('a', 'b'));
    await two.storage.take(named('gone'), POP);
    assert.equal(await one.storage.drop(named('gone')), true);
    assert.deepEqual(await two.storage.queues('plain'), []);
    assert.equal(existing(), '2');
    clock.advance(61_000);
    await two.storage.sweep();
    assert.equal(existing(), '0');
  });
});

it('Counters on Redis that another node adds to a queue after it was dropped expire; those of an existing queue do not', async () => {
  await withNodes(2, async (nodes, _clock, prefix) => {
    const [one, two] = nodes;
    assert.ok(one && two);
    const { port } = await standalone();
    const left = (queue: QueueKey): number =>
      Number(redisCli(port, 'TTL', new Keys(prefix).queue(queue).stats));
    const [gone, kept] = [named('gone'), named('kept')];
    for (const queue of [gone, kept]) {
      await one.storage.insert(queue, newElements('a'));
      await one.storage.take(queue, POP);
    }
    assert.equal(await one.storage.drop(gone), true);
    for (const queue of [gone, kept]) two.stats.add(queue, '', { put: 1, get: 1 });
    await two.stats.flush();
    assert.ok(left(gone) > 0);
    assert.equal(left(kept), -1);
    await one.storage.insert(gone, newElements('b'));
    two.stats.add(gone, '', { put: 1 });
    await two.stats.flush();
    assert.equal(left(gone), -1, 'the queue exists again');
  });
});

it('On Redis, a queue that a rejected insert of another node created has a name once it has elements', async () => {
  const [prefix, url] = [freshPrefix(), (await standalone()).url];
  const nodes = [1, 2].map(() =>
    redisEngine({ url, namespaces: [plain('stream', { groups: ['g'] })], clock: new FakeClock(), prefix }),
  );
  const [one, two] = nodes as [Engine, Engine];
  await Promise.all(nodes.map((node) => node.start()));
  const queue = { ns: 'stream', name: 'dropped' };
  const groups = ['g'];
  try {
    await two.storage.insert(queue, [newElement({ groups })]);
    await two.storage.take(queue, { ...POP, group: 'g' });
    assert.equal(await one.storage.drop(queue), true);
    const contradictory = ['a', 'b'].map((body) =>
      newElement({ body, groups, dedupKey: 'key', fingerprint: body.repeat(22) }),
    );
    assert.deepEqual(await one.storage.insert(queue, contradictory), []);
    assert.deepEqual(await one.storage.queues('stream'), []);
    await two.storage.insert(queue, [newElement({ groups })]);
    assert.deepEqual(await one.storage.queues('stream'), ['dropped']);
  } finally {
    await Promise.all(nodes.map((node) => node.stop()));
  }
});

it('A queue on Redis that a node finds with another tag than before gets its name again, which may be lost as well', async () => {
  const { port } = await standalone();
  await withNodes(2, async ([one, two], _, prefix) => {
    assert.ok(one && two);
    const lost = named('lost');
    await two.storage.insert(lost, [newElement()]);
    await two.storage.take(lost, POP);
    assert.equal(await one.storage.drop(lost), true);
    await one.storage.insert(lost, [newElement()]);
    // As after a failover to a replica that had not received the name.
    assert.equal(redisCli(port, 'ZREM', `${prefix}:queues:plain`, 'lost').trim(), '1');
    await two.storage.insert(lost, [newElement()]);
    assert.deepEqual(await one.storage.queues('plain'), ['lost']);
  });
});
