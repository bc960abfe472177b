import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { Queue } from '../../src/broker/queue.ts';
import type { Delivery } from '../../src/model/element.ts';
import { withFolder } from '../engines/sqlite-folder.ts';
import { MAIN_ENGINES_AND_CLUSTER } from '../engines.ts';
import { betweenProcesses, brokerOn, plain } from '../support/broker.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';

const POLICY = plain('N', { deadLetter: { maxTries: 5, queue: 'dead' } });
const FAIL = { kind: 'release', delayMs: 0, countTry: true } as const;

/** The engine's clock does not advance, so no poll helps: a get is woken, or the test times out. */
describe('a blocked get on a dead-letter queue', { timeout: 300_000 }, () => {
  for (const kind of MAIN_ENGINES_AND_CLUSTER) {
    for (const where of ['this node', 'another node'] as const) {
      for (const named of ['the namespace', 'the options of its queue'] as const) {
        it(`is woken on ${where}, without a sweep, when an element is moved to the dead-letter queue of ${named}, on ${kind.name}`, async () => {
          const opened = await kind.open({ namespaces: [POLICY] });
          let sweeps = 0;
          const engine = engineWith(
            opened.engine.signaller.type === 'local' ? betweenProcesses(opened.engine) : opened.engine,
            (real) => ({
              sweep: () => {
                sweeps += 1;
                return real.sweep();
              },
            }),
          );
          const brokers = [1, 2].map((seed) => brokerOn([{ policy: POLICY, engine }], opened.clock, seed));
          try {
            for (const broker of brokers) await broker.start();
            const sweepsOfStart = sweeps;
            const [here, elsewhere] = brokers as [Broker, Broker];
            const queue = here.namespace('N').queue('q');
            const isOwn = named === 'the options of its queue';
            const dead = isOwn ? 'own-dead' : 'dead';
            const deadLetter = { maxTries: isOwn ? 1 : 5, queue: dead };
            await engine.storage.declare([queue.key], isOwn ? { deadLetter } : undefined);
            const node = where === 'this node' ? here : elsewhere;
            const waiting = get(node.namespace('N').queue(dead), null);
            await empty(engine.storage.take({ ns: 'N', name: dead }, TAKE));
            await queue.insert([newElement({ body: 'hopeless' })]);
            for (let tries = 1; tries <= deadLetter.maxTries; tries += 1) {
              const { id, lease } = await get(queue, 60_000);
              const ref = { id, group: null, token: lease?.token ?? null };
              const { outcome } = await queue.settle(ref, FAIL);
              assert.equal(outcome, tries === deadLetter.maxTries ? 'dead-lettered' : 'done');
            }
            assert.equal(bodyText(await waiting), 'hopeless');
            assert.equal(sweeps, sweepsOfStart);
          } finally {
            for (const broker of brokers) await broker.stop();
            await opened.close();
          }
        });
      }
    }
  }
});

/** SQLite moves about 4 MiB per step, so the element that stays is released in a later step. */
describe('a blocked get on a queue whose large elements are dead-lettered', { timeout: 60_000 }, () => {
  it('gets the element that the same call releases', async () => {
    await withFolder(async (folder) => {
      const policy = plain('N', { deadLetter: { maxTries: 2, queue: 'dead' } });
      const engine = await folder.started({}, [policy]);
      const broker = brokerOn([{ policy, engine }], folder.clock);
      try {
        await broker.start();
        const queue = broker.namespace('N').queue('q');
        const body = Buffer.alloc(1024 * 1024, 'x');
        const hopeless = Array.from({ length: 14 }, () => newElement({ body, tries: 1 }));
        await queue.insert([...hopeless, newElement({ body: 'hopeful' })]);
        const { deliveries } = await engine.storage.take(queue.key, {
          group: '',
          count: 15,
          leaseMs: 60_000,
        });
        const waiting = get(queue, null);
        await empty(engine.storage.take(queue.key, TAKE));
        await queue.requeue(deliveries, 0, 'too slow');
        assert.equal(bodyText(await waiting), 'hopeful');
      } finally {
        await broker.stop();
      }
    });
  });
});

const TAKE = { group: '', count: 1, leaseMs: null } as const;

/** The wait queue's own take was called before this one, so it has found nothing either. */
async function empty(taking: Promise<{ readonly deliveries: readonly Delivery[] }>): Promise<void> {
  assert.deepEqual((await taking).deliveries, []);
}

function get(queue: Queue, leaseMs: number | null): Promise<Delivery> {
  const request = { group: null, leaseMs, timeoutMs: null, tid: null, owner: null };
  return new Promise((deliver, end) => queue.get(request, { deliver, end }));
}
