import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Keys } from '../../src/engines/redis/keys.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import { redisCli } from '../support/redis-servers.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { passTo, stopped } from './fake-time.ts';
import { freshPrefix, REDIS, REDIS_CLUSTER, REDIS_LIST, redisEngine, standalone } from './redis.ts';

const FULL = { code: 'namespace-full' };
const BODY = 'x'.repeat(900_000);

for (const { name, open } of [REDIS, REDIS_CLUSTER, REDIS_LIST]) {
  describe(`A namespace with maxBytes, ${name}`, () => {
    it('rejects inserts beyond the bound, unlike other namespaces, and accepts them after elements were consumed', async (t) => {
      const policies = [plain('N'), plain('free')];
      const opened = await open({ namespaces: policies });
      const { engine, clock } = opened;
      const [bounded, free] = policies.map((policy) => ({ policy, engine }));
      assert.ok(bounded && free);
      const broker = brokerOn([{ ...bounded, maxBytes: 2_000_000 }, free], clock);
      await broker.start();
      const insert = (queue: string, ns = 'N', body = BODY): Promise<string[]> =>
        broker
          .namespace(ns)
          .queue(queue)
          .insert([newElement({ body })]);
      // An insert more than a second after the last read starts a read of the usage, which counts for later inserts.
      const { mock: asked } = t.mock.method(engine.storage, 'usage');
      const reread = async (): Promise<void> => {
        const before = asked.callCount();
        await opened.passTime(1_001);
        await insert('small', 'N', 'x').catch(() => {});
        const answers = asked.calls.slice(before).map(({ result }) => result);
        assert.ok(answers.length > 0);
        await Promise.all(answers);
        await new Promise(setImmediate);
      };
      try {
        for (const queue of ['one', 'two', 'three']) await insert(queue, 'free');
        await insert('one');
        await insert('two');
        await assert.rejects(insert('one'), FULL);
        await reread();
        await assert.rejects(insert('two'), FULL);
        const { deliveries } = await engine.storage.take(
          { ns: 'N', name: 'one' },
          { group: '', count: 1, leaseMs: null },
        );
        assert.equal(deliveries.length, 1);
        // The server keeps popped elements until the node's next call, in case the reply was lost.
        await engine.storage.take({ ns: 'N', name: 'one' }, { group: '', count: 1, leaseMs: null });
        await reread();
        await insert('one');
        await assert.rejects(insert('three'), FULL);
      } finally {
        await broker.stop();
        await opened.close();
      }
    });
  });
}

it('The bytes of a queue, estimated from a sample, are within 10 % of what Redis measures', async () => {
  const { url, port } = await standalone();
  const prefix = freshPrefix();
  const engine = redisEngine({ url, namespaces: [plain('N')], clock: null, prefix });
  await engine.start();
  try {
    const queue = { ns: 'N', name: 'large' };
    for (let i = 0; i < 25; i += 1) {
      const elements = Array.from({ length: 1000 }, (_, at) => newElement({ body: 'x'.repeat(at) }));
      await engine.storage.insert(queue, elements);
    }
    const { hash, order } = new Keys(prefix).queue(queue);
    const measured = (key: string): number => Number(redisCli(port, 'MEMORY', 'USAGE', key, 'SAMPLES', '0'));
    const whole = measured(hash) + measured(order);
    const { elements, bytes } = await engine.storage.usage('N');
    assert.equal(elements, 25_000);
    assert.ok(bytes !== null && Math.abs(bytes - whole) < whole / 10, `${bytes} of ${whole}`);
    assert.equal((await engine.storage.usage('N', false)).bytes, null);
  } finally {
    await engine.stop();
  }
});

for (const variant of ['simple', 'stream', 'list']) {
  it(`The elements of many queues are counted by a few calls, variant ${variant}`, async () => {
    const { url, port } = await standalone();
    const groups = variant === 'stream' ? ['a', 'b'] : null;
    const settings = { variant };
    const engine = redisEngine({ url, namespaces: [plain('N', { groups })], clock: null, settings });
    const received = (): number =>
      Number(/total_net_input_bytes:(\d+)/.exec(redisCli(port, 'INFO', 'stats'))?.[1]);
    await engine.start();
    try {
      for (let i = 0; i < 300; i += 1) {
        const element = newElement({ ...(groups !== null && { groups }) });
        await engine.storage.insert({ ns: 'N', name: `${i}` }, [element]);
      }
      if (variant !== 'list')
        await engine.storage.take(
          { ns: 'N', name: '7' },
          { group: groups?.[0] ?? '', count: 1, leaseMs: 9_000 },
        );
      const before = received();
      assert.equal((await engine.storage.usage('N', false)).elements, variant === 'stream' ? 600 : 300);
      const bytes = received() - before;
      assert.ok(bytes < 300 * 45, `${bytes} bytes`);
    } finally {
      await engine.stop();
    }
  });
}

for (const variant of ['simple', 'list']) {
  it(`A read of the usage of a namespace is rejected with storage-unavailable if Redis is lost during it, variant ${variant}`, async () => {
    const proxy = await TcpProxy.start((await standalone()).port);
    const clock = new FakeClock();
    const url = `redis://127.0.0.1:${proxy.port}`;
    const setUp = { url, namespaces: [plain('N')], clock: null, ownClock: clock, settings: { variant } };
    const engine = redisEngine(setUp);
    await engine.start();
    try {
      await engine.storage.insert({ ns: 'N', name: 'q' }, newElements('a'));
      const asked = proxy.catch(/MEMORY/, 'deaf');
      const usage = codeOf(engine.storage.usage('N'));
      await asked;
      proxy.state = 'dark';
      assert.equal(await passTo(clock, usage), 'storage-unavailable');
    } finally {
      await stopped(engine, clock);
      await proxy.stop();
    }
  });
}
