import assert from 'node:assert/strict';
import { EXPIRED, type GroupCounts, LEASE_EXPIRED } from '../../src/engine/storage.ts';
import type { Delivery, ElementHeaders } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { until } from '../support/until.ts';
import type { Model, ModelDelivery } from './model.ts';
import { DEAD_LETTER_QUEUES, EVERY_QUEUE, groupsOf, type World } from './model-world.ts';

/**
 * The counts of each group are compared only every so many steps of a history, because that triples the calls of a
 * comparison. With `MODEL_RUNS`, as in `npm run test:long`, after each step.
 */
const STEPS_PER_GROUP_CHECK = process.env.MODEL_RUNS === undefined ? 5 : 1;

/** I1, I6: the counts and next maturities of every queue and of its groups equal the model's. */
export async function checkAll(model: Model, world: World): Promise<void> {
  const { storage } = world.opened.engine;
  world.checks += 1;
  const readsGroups = world.checks % STEPS_PER_GROUP_CHECK === 0;
  await Promise.all(
    EVERY_QUEUE.map(async (queue) => {
      const groups = groupsOf(queue);
      const [whole, perGroup] = await Promise.all([
        storage.counts(queue),
        Promise.all(readsGroups ? groups.map((group) => storage.counts(queue, group)) : []),
      ]);
      assert.deepEqual(counts(whole), model.sizes(queue), `sizes of ${queue.ns}/${queue.name}`);
      for (const [index, group] of groups.entries()) {
        const expected = model.sizes(queue, group);
        const at = `${queue.ns}/${queue.name} group "${group}"`;
        const real = perGroup[index];
        if (real !== undefined) assert.deepEqual(counts(real), expected, `sizes and next maturity of ${at}`);
        if (group === '') continue;
        const inGroups = whole.groups.get(group);
        const isEmpty = elementsOf(expected) === 0;
        assert.deepEqual(inGroups === undefined ? null : counts(inGroups), isEmpty ? null : expected);
      }
    }),
  );
}

function counts({ ready, scheduled, reserved, nextMatureAt }: GroupCounts): GroupCounts {
  return { ready, scheduled, reserved, nextMatureAt };
}

/**
 * I3, I4, I5, I8: the deliveries are those of the model, in the same order, with the same maturity, tries, body, type
 * and headers. The model learns ids and tokens, which only the real system creates.
 */
export function checkDeliveries(real: readonly Delivery[], expected: readonly ModelDelivery[]): void {
  assert.equal(real.length, expected.length, 'number of deliveries');
  for (const [index, delivery] of real.entries()) {
    const model = expected[index];
    if (model === undefined) return;
    const { element, group, dueAt, tries } = model;
    const { body, contentType, contentEncoding, headers } = element.content;
    assert.ok(Buffer.from(body).equals(delivery.body), 'the body is the one inserted');
    assert.deepEqual(
      {
        headers: [...delivery.headers],
        contentType: delivery.contentType,
        contentEncoding: delivery.contentEncoding,
        group: delivery.group,
        matureAt: delivery.matureAt,
        tries: delivery.tries,
      },
      {
        headers: withOrigin(headers, delivery.headers),
        contentType,
        contentEncoding,
        group,
        matureAt: dueAt,
        tries,
      },
    );
    if (element.id !== null) assert.equal(delivery.id, element.id, 'the id is the one given at insertion');
    element.id = delivery.id;
  }
}

/** The model's headers, with the real origin id if the model does not know the id of the dead letter's original. */
function withOrigin(expected: ElementHeaders, real: ElementHeaders): string[] {
  const isUnknown = expected.at(-2) === 'x-ks-origin-id' && expected.at(-1) === '';
  return isUnknown ? [...expected.slice(0, -1), real.at(-1) ?? ''] : [...expected];
}

/** Makes every element eligible and takes all of them: no element is missing or left over. */
export async function drain(model: Model, world: World): Promise<void> {
  await passTime(model, world, 24 * 3600 * 1000);
  for (const queue of EVERY_QUEUE) {
    for (const group of groupsOf(queue)) await drainGroup(model, world, queue, group);
  }
}

async function drainGroup(model: Model, world: World, queue: QueueKey, group: string): Promise<void> {
  const count = 1000;
  const { deliveries } = await world.opened.engine.storage.take(queue, { group, count, leaseMs: null });
  const expected = model.take(queue, group, count, null);
  // If one sweep expires leases of two queues, no engine promises the order in which their dead letters arrive.
  const real = deliveries.toSorted((a, b) => bySource(a.headers, b.headers));
  const deadLetters = expected.toSorted((a, b) =>
    bySource(a.element.content.headers, b.element.content.headers),
  );
  checkDeliveries(real, likeReal(real, deadLetters));
}

/**
 * Sorts dead letters by their source queue, expired ones last, and those of one element whose leases expired at once by
 * their groups. Others keep their order.
 */
function bySource(a: ElementHeaders, b: ElementHeaders): number {
  const source = (headers: ElementHeaders): string =>
    `${headerOf(headers, 'x-dl-from-queue')} ${isExpired(headers) ? 'expired' : ''}`;
  const origin = headerOf(a, 'x-ks-origin-id');
  const isSame =
    origin !== '' &&
    ['x-ks-origin-id', 'x-dl-at', 'x-dl-reason'].every((name) => headerOf(a, name) === headerOf(b, name));
  const byGroup =
    isSame && headerOf(a, 'x-dl-reason') === LEASE_EXPIRED
      ? headerOf(a, 'x-dl-group').localeCompare(headerOf(b, 'x-dl-group'))
      : 0;
  return source(a).localeCompare(source(b)) || byGroup;
}

/**
 * No engine promises an order of expired dead letters either: puts each expected one at the index of the real one that
 * is the same element.
 */
function likeReal(real: readonly Delivery[], expected: readonly ModelDelivery[]): ModelDelivery[] {
  const unmatched = expected.filter(({ element }) => isExpired(element.content.headers));
  const sameAs = (
    { headers, body }: Delivery,
    candidate: ModelDelivery | undefined,
    isKnown: boolean,
  ): boolean => {
    if (candidate === undefined) return false;
    const { content } = candidate.element;
    const isSame = ['x-dl-from-queue', 'x-dl-group', 'x-dl-tries'].every(
      (name) => headerOf(headers, name) === headerOf(content.headers, name),
    );
    const origin = headerOf(content.headers, 'x-ks-origin-id');
    return (
      isSame &&
      Buffer.from(content.body).equals(body) &&
      origin === (isKnown ? headerOf(headers, 'x-ks-origin-id') : '')
    );
  };
  const takeMatch = (delivery: Delivery, isKnown: boolean): ModelDelivery[] => {
    const at = unmatched.findIndex((one) => sameAs(delivery, one, isKnown));
    return at < 0 ? [] : unmatched.splice(at, 1);
  };
  // Match those whose ids the model knows first; the others match the remaining ones.
  const known = real.map((delivery) => (isExpired(delivery.headers) ? takeMatch(delivery, true) : []));
  return expected.map((one, i) => {
    const delivery = real[i];
    if (delivery === undefined || !isExpired(delivery.headers)) return one;
    return known[i]?.[0] ?? takeMatch(delivery, false)[0] ?? one;
  });
}

function isExpired(headers: ElementHeaders): boolean {
  return headers.includes('x-dl-reason') && headerOf(headers, 'x-dl-reason') === EXPIRED;
}

function headerOf(headers: ElementHeaders, name: string): string {
  const at = headers.indexOf(name);
  return at < 0 ? '' : (headers[at + 1] ?? '');
}

/** Lets time pass for both, and expires leases in both. */
export async function passTime(model: Model, { opened }: World, ms: number): Promise<void> {
  await opened.passTime(ms);
  model.advanceTo(opened.now());
  await sweepAll(model, { opened });
}

/**
 * Sweeps until nothing is due and all dead letters have arrived: a Redis cluster sends them to other servers, and no
 * sweep waits for their arrival.
 */
export async function sweepAll(model: Model, { opened }: Pick<World, 'opened'>): Promise<void> {
  const { storage } = opened.engine;
  let nextAt: number | null;
  do nextAt = await storage.sweep();
  while (nextAt !== null && nextAt <= opened.now());
  for (const queue of DEAD_LETTER_QUEUES) {
    const expected = elementsOf(model.sizes(queue));
    await until(async () => elementsOf(await storage.counts(queue)) >= expected);
  }
}

function elementsOf({ ready, scheduled, reserved }: GroupCounts): number {
  return ready + scheduled + reserved;
}
