import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import type { Storage } from '../../src/engine/storage.ts';
import type { Delivery, DeliveryState, NewElement } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { newElement } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import type { PostgresServer } from '../support/postgres-server.ts';
import { freshSeed, type Random, seededRandom } from '../support/random.ts';
import { commit, type DeliveryRef, purge, remove, rollback, transfer } from '../support/settle.ts';
import { until } from '../support/until.ts';
import { freshSchema, runSql, sharedServer } from './postgres.ts';
import { endSessions, openNode } from './postgres-node.ts';

const NODES = 3;
const CALLERS_PER_NODE = 8;
/** Calls of each caller; `MIXTURE_CALLS=5000` for a run overnight. */
const CALLS = Number(process.env.MIXTURE_CALLS ?? 150);
const SEED = Number(process.env.SEED ?? freshSeed());

const QUEUES: readonly QueueKey[] = ['plain', 'jobs', 'stream'].flatMap((ns) => [
  { ns, name: 'a' },
  { ns, name: 'b' },
]);
const GROUPS = ['g1', 'g2', 'g3'];
/** Some are longer than the steps of due time by which deliveries are counted (17 minutes). */
const DELAYS_MS = [0, 0, 0, 20, 500, 2_000_000];
const STATES: readonly DeliveryState[] = ['ready', 'scheduled', 'reserved'];
/** Outcomes that a call may have while its session is ended. */
const ANSWERS = ['done', 'storage-unavailable', 'outcome-unknown'];

/**
 * The counts agree with the rows, whatever nodes do to the same deliveries concurrently, and wherever that is
 * interrupted. A count that is wrong once would stay wrong forever.
 */
describe('PostgreSQL with several nodes that make random calls concurrently', () => {
  let server: PostgresServer;
  let schema: string;
  let nodes: Engine[];

  before(async () => {
    server = await sharedServer();
    schema = freshSchema();
    nodes = await Promise.all(Array.from({ length: NODES }, () => openNode(server, { schema })));
  });
  after(async () => {
    await Promise.all(nodes.map((node) => node.stop()));
    await runSql(server, `DROP SCHEMA ${schema} CASCADE`);
  });

  it(`has counts that agree with the stored rows afterwards, from seed ${SEED}`, async () => {
    const world: World = { held: [], codes: [] };
    const callers = nodes.flatMap(({ storage }, node) =>
      Array.from({ length: CALLERS_PER_NODE }, (_, caller) =>
        doAnything(storage, world, seededRandom(SEED + node * 100 + caller)),
      ),
    );
    for (const part of [0.25, 0.5, 0.75]) {
      await until(() => world.codes.length >= part * callers.length * CALLS);
      await endSessions(server, 'main');
    }
    await Promise.all(callers);
    const { codes } = world;
    assert.deepEqual(
      [...new Set(codes)].filter((code) => !ANSWERS.includes(code)),
      [],
    );
    assert.ok(codes.filter((code) => code === 'done').length > codes.length / 2, 'most calls are done');
    assert.deepEqual(await miscounted(), []);
    await assertSizesAgree();
    for (const queue of QUEUES) if (nodes[0] !== undefined) await purge(nodes[0].storage, queue);
    assert.deepEqual(await miscounted(), [], 'after a purge, too');
    assert.deepEqual((await runSql(server, `SELECT seq FROM ${schema}.element`)).rows, []);
  });

  /** The rows whose counts, or whose number of remaining deliveries, differ from the deliveries stored. */
  async function miscounted(): Promise<unknown[]> {
    const { rows } = await runSql(
      server,
      `SET search_path = ${schema};
      SELECT 'deliveries' AS what, coalesce(t.subscription, d.subscription) AS of FROM
        (SELECT subscription, step, sum(waiting) AS waiting FROM counter WHERE subscription > 0 GROUP BY 1, 2) t FULL JOIN
        (SELECT subscription, due_at >> 20 AS step, count(*) AS waiting FROM delivery WHERE lease_until IS NULL GROUP BY 1, 2) d
        ON d.subscription = t.subscription AND d.step = t.step WHERE coalesce(t.waiting, 0) <> coalesce(d.waiting, 0)
      UNION ALL SELECT 'reserved', coalesce(t.subscription, d.subscription) FROM
        (SELECT subscription, sum(reserved) AS reserved FROM counter WHERE subscription > 0 GROUP BY 1) t FULL JOIN
        (SELECT subscription, count(*) AS reserved FROM delivery WHERE lease_until IS NOT NULL GROUP BY 1) d
        ON d.subscription = t.subscription WHERE coalesce(t.reserved, 0) <> coalesce(d.reserved, 0)
      UNION ALL SELECT 'elements', coalesce(-t.subscription, e.queue) FROM
        (SELECT subscription, sum(waiting) AS n FROM counter WHERE subscription < 0 GROUP BY 1) t FULL JOIN
        (SELECT queue, count(*) AS n FROM element GROUP BY 1) e
        ON e.queue = -t.subscription WHERE coalesce(t.n, 0) <> coalesce(e.n, 0)
      UNION ALL SELECT 'remaining', coalesce(e.seq, d.seq) FROM element e FULL JOIN
        (SELECT seq, count(*) AS n FROM delivery WHERE head IS NULL GROUP BY 1) d
        ON d.seq = e.seq WHERE coalesce(e.remaining, 0) <> coalesce(d.n, 0)`,
    ).then((results) => (Array.isArray(results) ? results[1] : results));
    return rows;
  }

  /** Compares the counts that the engine returns with the rows. */
  async function assertSizesAgree(): Promise<void> {
    for (const queue of QUEUES) {
      const sizes = await nodes[0]?.storage.counts(queue);
      const { rows } = await runSql(
        server,
        `SELECT count(DISTINCT d.seq) FROM ${schema}.delivery d JOIN ${schema}.subscription q
          ON q.id = d.subscription WHERE q.ns = '${queue.ns}' AND q.name = '${queue.name}'`,
      );
      const total = (sizes?.ready ?? 0) + (sizes?.scheduled ?? 0) + (sizes?.reserved ?? 0);
      assert.equal(total, Number(rows[0].count), `${queue.ns} ${queue.name}`);
    }
  }
});

/** State shared by all callers. */
interface World {
  /** Reservations, the newest last; many have long been settled. */
  readonly held: Held[];
  /** How each call ended. */
  readonly codes: string[];
}

/** A reservation that any node may settle, even several nodes at the same moment. */
interface Held {
  readonly queue: QueueKey;
  readonly ref: DeliveryRef;
}

async function doAnything(storage: Storage, { held, codes }: World, random: Random): Promise<void> {
  for (let call = 0; call < CALLS; call++) codes.push(await codeOf(anyCall(storage, held, random)));
}

async function anyCall(storage: Storage, held: Held[], random: Random): Promise<unknown> {
  const queue = random.pick(QUEUES);
  const group = queue.ns === 'stream' ? random.pick(GROUPS) : '';
  const recent = held.slice(-random.between(1, 12));
  const from = recent[0]?.queue ?? queue;
  const mine = recent.filter((other) => other.queue === from);
  const refs = mine.map(({ ref }) => ref);
  switch (random.between(0, 12)) {
    case 0:
    case 1:
    case 2:
      return storage.insert(queue, anyElements(queue, random));
    case 3:
    case 4:
    case 5: {
      const count = random.between(1, 6);
      const { deliveries } = await storage.take(queue, {
        group,
        count,
        leaseMs: random.pick([5, 50, 60_000]),
      });
      for (const delivery of deliveries) held.push({ queue, ref: refOf(delivery, random.chance(0.7)) });
      return;
    }
    case 6: {
      const { deliveries } = await storage.take(queue, { group, count: 3, leaseMs: null });
      return random.chance(0.5) ? storage.undoTake(queue, deliveries) : undefined;
    }
    case 7:
      return commit(storage, from, refs);
    case 8:
      return rollback(
        storage,
        from,
        refs.map((ref) => ({ ...ref, delayMs: random.pick(DELAYS_MS), countTry: random.chance(0.7) })),
      );
    case 9:
      return transfer(
        storage,
        refs.map((finish) => ({
          from,
          finish,
          inserts: anyElements(queue, random).map((element) => ({ queue, element })),
        })),
      );
    case 10:
      return remove(
        storage,
        from,
        refs.map(({ id }) => id),
      );
    case 11:
      return storage.sweep();
    default:
      return random.chance(0.2) ? purge(storage, queue, [random.pick(STATES)]) : storage.counts(queue);
  }
}

function anyElements({ ns }: QueueKey, random: Random): NewElement[] {
  return Array.from({ length: random.between(1, 4) }, () =>
    newElement({
      groups: ns === 'stream' ? GROUPS.filter((_, at) => at === 0 || random.chance(0.5)) : [''],
      delayMs: random.pick(DELAYS_MS),
      dedupKey: random.chance(0.2) ? `key ${random.between(0, 50)}` : null,
    }),
  );
}

function refOf({ id, group, lease }: Delivery, named: boolean): DeliveryRef {
  return { id, group, token: named ? (lease?.token ?? null) : null };
}
