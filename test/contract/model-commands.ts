import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { QueueOptions, ScanPage, SettleAction, SettleItem } from '../../src/engine/storage.ts';
import {
  DELIVERY_STATES,
  type Delivery,
  type DeliveryState,
  type ElementHead,
} from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { commit, extend, purge, remove, rollback, transfer } from '../support/settle.ts';
import type { Model, ModelDelivery } from './model.ts';
import {
  type Command,
  type Content,
  command,
  contents,
  durations,
  elementFor,
  owners,
  queues,
  refSpecs,
  resolve,
  tids,
} from './model-arbitraries.ts';
import { checkDeliveries, passTime } from './model-check.ts';
import { crashes } from './model-crash.ts';
import { STREAM_GROUPS, type World } from './model-world.ts';

const LONG_DELAY = { firstMs: 500, factor: 2, maxMs: 60_000, jitter: 0 };

const insertsOf = (given: fc.Arbitrary<Content[]>): fc.Arbitrary<Command> =>
  fc.tuple(queues, given).map(([queue, contents]) =>
    command(
      () => `insert(${queue.ns}/${queue.name}, ${fc.stringify(contents)})`,
      async (model, world) => {
        await insert(queue, contents, model, world);
      },
    ),
  );

const inserts = insertsOf(fc.array(contents, { minLength: 1, maxLength: 3 }));
/**
 * Some elements have dedup keys, which repeat; mostly with the same content, or else nearly every call would store
 * nothing.
 */
const largeInserts = insertsOf(
  fc
    .tuple(fc.array(contents, { minLength: 20, maxLength: 40, size: 'max' }), fc.nat({ max: 3 }))
    .map(([given, kind]) =>
      kind === 0 ? given : given.map((one) => ({ ...one, fingerprint: one.fingerprint && 'x'.repeat(22) })),
    ),
);

async function insert(queue: QueueKey, given: readonly Content[], model: Model, world: World): Promise<void> {
  const elements = given.map((content) => elementFor(queue, content, model));
  const repeats = new Map<number, boolean>();
  const { storage } = world.opened.engine;
  const ids = await storage.insert(queue, elements, {
    onRepeat: (index, isSame) => repeats.set(index, isSame),
  });
  const mismatch = model.mismatchIn(queue, elements);
  if (mismatch !== null) {
    assert.deepEqual(ids, [], 'nothing is stored if a key was used with other content');
    assert.equal(repeats.get(mismatch), false);
    return;
  }
  for (const [index, element] of elements.entries()) {
    assert.equal(
      repeats.get(index),
      model.repeatOf(queue, element)?.isSame,
      'whether the element is a repeat',
    );
    const stored = model.insert(queue, element);
    const id = ids[index] ?? '';
    if (stored.id !== null) assert.equal(id, stored.id, 'a repeat returns the first id');
    stored.id = id;
    for (const group of element.groups) world.refs.push({ queue, id, group, token: null });
  }
}

/** Null, a pop, as often as a reserve. */
const leases = fc.option(durations, { freq: 2 });

/** Chosen around the sizes of the model's bodies: 0 to 40 bytes, or 20,000. */
const byteBounds = fc.constantFrom(undefined, undefined, undefined, 30, 10_000, 30_000);

const takes = fc
  .tuple(
    queues,
    fc.constantFrom(...STREAM_GROUPS),
    fc.integer({ min: 1, max: 4 }),
    leases,
    owners,
    fc.tuple(tids, byteBounds, fc.boolean()),
  )
  .map(([queue, named, count, leaseMs, owner, [takeTids, maxBytes, isTransient]]) => {
    const group = queue.ns === 'stream' ? named : '';
    const name = `take(${queue.ns}/${queue.name}, "${group}", ${count}, ${leaseMs}, ${owner}, ${takeTids}, ${maxBytes}, ${isTransient})`;
    return command(
      () => name,
      async (model, world) => {
        const options = {
          group,
          count,
          leaseMs,
          owner,
          tids: takeTids,
          isTransient,
          ...(maxBytes !== undefined && { maxBytes }),
        };
        const taken = await world.opened.engine.storage.take(queue, options);
        // An engine may also count headers, so the model cannot predict where `maxBytes` cuts a take.
        const { length } = taken.deliveries;
        const isCut = taken.isCut === true && maxBytes !== undefined;
        if (isCut)
          assert.ok(
            length > 0 && length < count,
            'a cut take has at least one element, and fewer than asked for',
          );
        const bytes = taken.deliveries.reduce((sum, { body }) => sum + body.byteLength, 0);
        if (maxBytes !== undefined && length > 1)
          assert.ok(bytes <= maxBytes, 'the bodies are within maxBytes');
        const expected = model.take(queue, group, isCut ? length : count, leaseMs, owner, takeTids);
        if (isCut)
          assert.ok(
            (model.nextDueAt(queue, group) ?? Infinity) <= model.now,
            'a cut take leaves a due element',
          );
        learnTaken(queue, taken.deliveries, expected, world);
        const due = expected.length < count ? model.nextDueAt(queue, group) : null;
        if (isCut)
          assert.ok(
            taken.nextDueAt !== null && taken.nextDueAt <= model.now,
            'a cut take returns when the next element was due',
          );
        else assert.equal(taken.nextDueAt, due, 'the next maturity, if there were too few');
        for (const { lease } of taken.deliveries) {
          assert.equal(lease?.until ?? null, leaseMs === null ? null : model.now + leaseMs);
        }
      },
    );
  });

/** Compares the deliveries, and remembers the ids and tokens that a client now knows. */
function learnTaken(
  queue: QueueKey,
  deliveries: readonly Delivery[],
  expected: readonly ModelDelivery[],
  world: World,
): void {
  checkDeliveries(deliveries, expected);
  for (const [index, delivery] of deliveries.entries()) {
    const expectedDelivery = expected[index];
    if (expectedDelivery === undefined) continue;
    const { id, group, lease } = delivery;
    assertFreshToken(delivery, world);
    if (lease === null) world.popped.push({ queue, delivery, model: expectedDelivery });
    else expectedDelivery.token = lease.token;
    world.refs.push({ queue, id, group, token: lease?.token ?? null });
  }
}

/** If a token repeated, the late worker of an earlier reservation could settle a later one. */
function assertFreshToken({ id, group, lease }: Delivery, { tokens }: World): void {
  if (lease === null) return;
  const token = `${id} ${group} ${lease.token}`;
  assert.ok(!tokens.has(token), 'each reservation of a delivery has a new token');
  tokens.add(token);
}

const commits = refSpecs.map((spec) =>
  command(
    () => `commit(${fc.stringify(spec)})`,
    async (model, world) => {
      const { queue, ref } = resolve(world, spec);
      const [outcome] = await commit(world.opened.engine.storage, queue, [ref]);
      assert.equal(outcome, model.commit(queue, ref));
    },
  ),
);

const rollbacks = fc
  .tuple(refSpecs, fc.constantFrom(0, 0, 1000), fc.boolean(), fc.boolean())
  .map(([spec, delayMs, countTry, isDefaultDelay]) =>
    command(
      () => `rollback(${fc.stringify(spec)}, ${delayMs}, ${countTry}, ${isDefaultDelay})`,
      async (model, world) => {
        const { queue, ref } = resolve(world, spec);
        const delay = { delayMs, countTry, isDefaultDelay };
        const [outcome] = await rollback(world.opened.engine.storage, queue, [{ ...ref, ...delay }]);
        assert.equal(outcome, model.rollback(queue, ref, delayMs, countTry, isDefaultDelay));
      },
    ),
  );

/** Options that a queue may get while elements wait in it. */
const optionSets: fc.Arbitrary<QueueOptions | null> = fc.option(
  fc.record(
    {
      deadLetter: fc.constantFrom(null, { maxTries: 1, queue: 'dead' }, { maxTries: 4, queue: 'dead' }),
      retryDelay: fc.constantFrom(null, { firstMs: 1, factor: 1, maxMs: 1, jitter: 0 }, LONG_DELAY),
    },
    { requiredKeys: [] },
  ),
);

const declarations = fc.tuple(queues, optionSets).map(([queue, options]) =>
  command(
    () => `declare(${queue.ns}/${queue.name}, ${fc.stringify(options)})`,
    async (model, world) => {
      await world.opened.engine.storage.declare([queue], options);
      model.declare(queue, options);
    },
  ),
);

const extensions = fc.tuple(refSpecs, durations).map(([spec, leaseMs]) =>
  command(
    () => `extend(${fc.stringify(spec)}, ${leaseMs})`,
    async (model, world) => {
      const { queue, ref } = resolve(world, spec);
      const [result] = await extend(world.opened.engine.storage, queue, [{ ...ref, leaseMs }]);
      const outcome = model.extend(queue, ref, leaseMs);
      const until = outcome === 'done' ? model.now + leaseMs : null;
      assert.deepEqual(result, { outcome, until });
    },
  ),
);

const removals = refSpecs.map((spec) =>
  command(
    () => `remove(${fc.stringify(spec)})`,
    async (model, world) => {
      const { queue, ref } = resolve(world, spec);
      if (queue.ns === 'stream') return;
      const [outcome] = await remove(world.opened.engine.storage, queue, [ref.id]);
      assert.equal(outcome, model.remove(queue, ref.id));
    },
  ),
);

const undoTakes = fc.nat({ max: 3 }).map((back) =>
  command(
    () => `undoTake(${back})`,
    async (model, world) => {
      const [popped] = world.popped.splice(Math.max(0, world.popped.length - 1 - back), 1);
      if (popped === undefined) return;
      await world.opened.engine.storage.undoTake(popped.queue, [popped.delivery]);
      model.undoTake(popped.model);
    },
  ),
);

const transfers = fc
  .tuple(refSpecs, fc.array(fc.tuple(queues, contents), { maxLength: 3 }))
  .map(([spec, copies]) =>
    command(
      () => `transfer(${fc.stringify(spec)}, ${fc.stringify(copies)})`,
      async (model, world) => {
        const { queue: from, ref: finish } = resolve(world, spec);
        const inserts = copies.map(([queue, content]) => ({
          queue,
          element: elementFor(queue, content, model),
        }));
        const [outcome] = await transfer(world.opened.engine.storage, [{ from, finish, inserts }]);
        assert.equal(outcome, model.commit(from, finish));
        if (outcome === 'done') for (const { queue, element } of inserts) model.insert(queue, element);
      },
    ),
  );

const purges = fc
  .tuple(queues, fc.subarray<DeliveryState>(['ready', 'scheduled', 'reserved']))
  .map(([queue, states]) =>
    command(
      () => `purge(${queue.ns}/${queue.name}, ${states})`,
      async (model, world) => {
        const removed = await purge(world.opened.engine.storage, queue, states);
        assert.equal(removed, model.purge(queue, states));
      },
    ),
  );

/** Drops a queue as it is, or after a purge. */
const drops = fc.tuple(queues, fc.boolean()).map(([queue, isEmptied]) =>
  command(
    () => `drop(${queue.ns}/${queue.name}, ${isEmptied})`,
    async (model, world) => {
      const { storage } = world.opened.engine;
      if (isEmptied) assert.equal(await purge(storage, queue), model.purge(queue, DELIVERY_STATES));
      const isGone = model.drop(queue);
      assert.equal(await storage.drop(queue), isGone);
      // Pops of a dropped queue cannot be undone.
      if (isGone) world.popped = world.popped.filter((one) => !isSameKey(one.queue, queue));
    },
  ),
);

function isSameKey(a: QueueKey, b: QueueKey): boolean {
  return a.ns === b.ns && a.name === b.name;
}

const browses = fc
  .tuple(
    queues,
    fc.constantFrom(...STREAM_GROUPS),
    fc.constantFrom('ready' as const, 'scheduled' as const),
    fc.integer({ min: 1, max: 3 }),
  )
  .map(([queue, named, state, limit]) => {
    const group = queue.ns === 'stream' ? named : '';
    const name = `browse(${queue.ns}/${queue.name}, "${group}", ${state}, ${limit})`;
    return command(
      () => name,
      async (model, world) => {
        const expected = model.browse(queue, group, state);
        let after: string | null = null;
        do {
          const { storage } = world.opened.engine;
          const page: ScanPage = await storage.scan(queue, {
            group,
            states: [state],
            bodies: true,
            after,
            limit,
          });
          checkDeliveries(page.deliveries, expected.splice(0, limit));
          after = page.next;
        } while (after !== null);
        assert.deepEqual(expected, [], 'the pages together have all deliveries');
      },
    );
  });

const timeSteps = fc.constantFrom(1, 1, 999, 1000, 4000, 5000, 60_000).map((ms) =>
  command(
    () => `passTime(${ms})`,
    async (model, world) => {
      await passTime(model, world, ms);
    },
  ),
);

const reasons = fc.constantFrom(null, null, 'broken', 'a longer reason');

/** Actions on one delivery. Moves to a stream name groups; others do not. */
const actions: fc.Arbitrary<SettleAction> = fc.oneof(
  fc.record({
    kind: fc.constant('release' as const),
    delayMs: fc.constantFrom(0, 0, 1000),
    dueAt: fc.constantFrom(null, null, 0, 1),
    isDefaultDelay: fc.boolean(),
    countTry: fc.boolean(),
    reason: reasons,
  }),
  fc.record({ kind: fc.constant('dead-letter' as const), countTry: fc.boolean(), reason: reasons }),
  queues.chain((to) =>
    fc.record({
      kind: fc.constant('move' as const),
      to: fc.constant(to),
      groups: to.ns === 'stream' ? fc.constantFrom(['g1'], ['g2', 'g3']) : fc.constant(['']),
      tries: fc.constantFrom(null, null, 0, 1),
      head: fc.constantFrom<ElementHead | null>(
        null,
        { contentType: null, contentEncoding: null, headers: [] },
        { contentType: 'text/ü', contentEncoding: 'br', headers: ['a', 'new', 'b', '"'] },
      ),
    }),
  ),
);

/**
 * Several items in one call, of any queues. Each item sees the changes of those before it in its queue. If
 * elements come to a queue from two others, their order is not promised, so all moves to it have one source.
 */
const settles = fc
  .array(fc.tuple(refSpecs, fc.constantFrom('reserved' as const, 'waiting' as const), actions), {
    minLength: 1,
    maxLength: 3,
  })
  .map((specs) =>
    command(
      () => `settle(${fc.stringify(specs)})`,
      async (model, world) => {
        const sources = new Map<QueueKey, QueueKey>();
        const items = specs.flatMap(([spec, from, action]): SettleItem[] => {
          const { queue, ref } = resolve(world, spec);
          if (action.kind === 'move') {
            if (!isSameKey(sources.get(action.to) ?? queue, queue)) return [];
            sources.set(action.to, queue);
          }
          return [
            from === 'waiting'
              ? {
                  queue,
                  id: ref.id,
                  group: ref.group,
                  token: null,
                  from,
                  action: atMoment(action, model.now),
                }
              : { queue, ...ref, from, action: atMoment(action, model.now) },
          ];
        });
        const results = await world.opened.engine.storage.settle(items);
        const expected = items.map(({ queue, id, group, token, owner = null, from, action }) =>
          from === 'waiting'
            ? model.settleWaiting(queue, { id, group: group ?? '' }, action)
            : model.settle(queue, { id, group: group ?? '', token, owner }, action),
        );
        assert.deepEqual(
          results.map(({ outcome }) => outcome),
          expected,
        );
      },
    ),
  );

const batchActions: fc.Arbitrary<SettleAction> = fc.oneof(
  { weight: 3, arbitrary: fc.constant({ kind: 'finish' as const }) },
  fc.record({
    kind: fc.constant('release' as const),
    delayMs: fc.constantFrom(0, 0, 1000),
    countTry: fc.constant(true),
    reason: reasons,
  }),
  fc.record({ kind: fc.constant('extend' as const), leaseMs: durations }),
  fc.record({ kind: fc.constant('dead-letter' as const), countTry: fc.constant(true), reason: reasons }),
);

/** Many reserved elements, each settled in its own way. */
const mixedSettles = fc
  .array(fc.tuple(refSpecs, batchActions), { minLength: 4, maxLength: 12, size: 'max' })
  .map((specs) =>
    command(
      () => `settleMany(${fc.stringify(specs)})`,
      async (model, world) => {
        const items = specs.map(([spec, action]): SettleItem => {
          const { queue, ref } = resolve(world, spec);
          return { queue, ...ref, from: 'reserved', action };
        });
        const results = await world.opened.engine.storage.settle(items);
        const expected = items.map(({ queue, id, group, token, owner = null, action }) => {
          const ref = { id, group: group ?? '', token, owner };
          const outcome =
            action.kind === 'finish' ? model.commit(queue, ref) : model.settle(queue, ref, action);
          const until = action.kind === 'extend' && outcome === 'done' ? model.now + action.leaseMs : null;
          return { outcome, until };
        });
        assert.deepEqual(results, expected);
      },
    ),
  );

/** Makes `dueAt` absolute, since commands do not know the time: 0 is now, 1 is one second later. */
function atMoment(action: SettleAction, now: number): SettleAction {
  if (action.kind !== 'release' || action.dueAt === undefined || action.dueAt === null) return action;
  return { ...action, dueAt: now + action.dueAt * 1000 };
}

/** Compares the fields that a scan returns in addition to those of a take. */
const reasonScans = fc.tuple(queues, fc.constantFrom(...STREAM_GROUPS)).map(([queue, named]) => {
  const group = queue.ns === 'stream' ? named : '';
  return command(
    () => `scan(${queue.ns}/${queue.name}, "${group}")`,
    async (model, world) => {
      const states = ['ready', 'scheduled'] as const;
      const options = { group, states, after: null, limit: 1000, bodies: false };
      const { deliveries, next } = await world.opened.engine.storage.scan(queue, options);
      const expected = states.flatMap((state) =>
        model.browse(queue, group, state).map((one) => ({ state, one })),
      );
      assert.equal(next, null);
      assert.deepEqual(
        deliveries.map(({ state, reason, expiresAt, bytes }) => ({ state, reason, expiresAt, bytes })),
        expected.map(({ state, one: { reason, expiresAt, element } }, i) => {
          const expectedReason = reason === undefined ? deliveries[i]?.reason : reason;
          return { state, reason: expectedReason, expiresAt, bytes: element.content.body.byteLength };
        }),
      );
    },
  );
});

/** Compares the holders of reserved deliveries, but not of ended leases: they may or may not have been expired yet. */
const holderScans = fc.tuple(queues, fc.constantFrom(...STREAM_GROUPS)).map(([queue, named]) => {
  const group = queue.ns === 'stream' ? named : '';
  return command(
    () => `holders(${queue.ns}/${queue.name}, "${group}")`,
    async (model, world) => {
      const options = { group, states: ['reserved'], after: null, limit: 1000, bodies: false } as const;
      const { deliveries } = await world.opened.engine.storage.scan(queue, options);
      assert.deepEqual(
        deliveries
          .filter(({ lease }) => lease !== null && lease.until > model.now)
          .map(({ holder, lease }) => [lease?.until, holder]),
        model
          .reserved(queue, group)
          .map(({ owner, tid, reservedAt, leaseUntil }) => [
            leaseUntil,
            { user: owner, tid, since: reservedAt },
          ]),
      );
    },
  );
});

/**
 * Several commands that are compared with the model only by their own results: a comparison reads all counts, before
 * which SQLite writes the reservations that it has only in memory.
 */
const unobserved = fc
  .array(
    fc.oneof(
      { weight: 4, arbitrary: takes },
      { weight: 2, arbitrary: commits },
      ...[inserts, rollbacks, extensions, removals, transfers, settles, mixedSettles, undoTakes, timeSteps],
    ),
    { minLength: 2, maxLength: 8 },
  )
  .map((commands) =>
    command(
      () => `unobserved(${commands.join(', ')})`,
      async (model, world) => {
        for (const { runUnobserved } of commands) await runUnobserved(model, world);
      },
    ),
  );

/** Weighted by repetition: most commands need elements to work on. */
export function commandArbitraries(durable: boolean): fc.Arbitrary<Command>[] {
  const common = [
    ...[
      inserts,
      inserts,
      inserts,
      takes,
      takes,
      takes,
      takes,
      undoTakes,
      commits,
      commits,
      rollbacks,
      rollbacks,
    ],
    ...[extensions, removals, undoTakes, transfers, purges, drops, browses, timeSteps, timeSteps],
    ...[settles, settles, reasonScans, holderScans, declarations],
    ...[largeInserts, mixedSettles, mixedSettles],
    ...[unobserved, unobserved, unobserved],
  ];
  if (!durable) return common;
  // Reopening the data takes as long as dozens of other steps, so only half of the histories have a crash.
  return [...common, fc.oneof({ weight: 1, arbitrary: crashes }, { weight: 5, arbitrary: takes })];
}
