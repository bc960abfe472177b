import fc from 'fast-check';
import type { NewElement } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { newElement } from '../support/elements.ts';
import type { DeliveryRef } from '../support/settle.ts';
import type { Model } from './model.ts';
import { checkAll, sweepAll } from './model-check.ts';
import { QUEUES, STREAM_GROUPS, type World } from './model-world.ts';

export interface Command extends fc.AsyncCommand<Model, World> {
  /** Like `run`, without the comparison of the whole state. */
  runUnobserved(model: Model, world: World): Promise<void>;
}

/**
 * A step: executes one operation on the real system and on the model, and compares the results. Then compares the whole
 * state.
 * @param name called only to report a failure: printing the bodies of every step took half of the processor time
 */
export function command(name: () => string, run: (model: Model, world: World) => Promise<void>): Command {
  const runUnobserved = async (model: Model, world: World): Promise<void> => {
    await run(model, world);
    if (model.sweep()) await sweepAll(model, world);
  };
  return {
    check: () => true,
    runUnobserved,
    run: async (model, world) => {
      await runUnobserved(model, world);
      await checkAll(model, world);
    },
    toString: name,
  };
}

export const queues = fc.constantFrom(...QUEUES);
const groupSets = fc.uniqueArray(fc.constantFrom(...STREAM_GROUPS), { minLength: 1 });
/** Few values, so that times coincide. */
export const durations = fc.constantFrom(1, 1000, 1000, 5000, 60_000);

export const contents = fc.record({
  body: fc.oneof(fc.uint8Array({ maxLength: 40 }), fc.constant(new Uint8Array(20_000).fill(7))),
  contentType: fc.constantFrom('application/json', null, '', 'text/plain; charset="é"'),
  contentEncoding: fc.constantFrom(null, null, 'gzip'),
  headers: fc.constantFrom<string[]>([], [], ['__proto__', 'x'], ['a', '1', 'a', '2'], ['x-dl', '"']),
  tries: fc.constantFrom(0, 0, 0, 1, 2, 9),
  delayMs: fc.constantFrom(0, 0, 0, 1000, 5000),
  /** Relative to now, as the command knows no clock. */
  matureIn: fc.constantFrom(null, null, null, -5000, -1000, 1000, 5000),
  dedupKey: fc.constantFrom(null, null, null, 'k1', 'k2'),
  fingerprint: fc.constantFrom(null, 'x'.repeat(22), 'y'.repeat(22)),
  /** Relative to now. */
  expiresIn: fc.constantFrom(null, null, null, null, 1000, 5000, 60_000),
  groups: groupSets,
});
export type Content = typeof contents extends fc.Arbitrary<infer T> ? T : never;

export function elementFor(
  queue: QueueKey,
  { matureIn, expiresIn, groups, ...rest }: Content,
  { now }: Pick<Model, 'now'>,
): NewElement {
  const matureAt = matureIn === null ? null : now + matureIn;
  const expiresAt = expiresIn === null ? null : now + expiresIn;
  return newElement({ ...rest, matureAt, expiresAt, groups: queue.ns === 'stream' ? groups : [''] });
}

/** Users who reserve and settle; null: the service itself. */
export const owners = fc.constantFrom(null, 'ann', 'ben');

/** The tids of the consumers that share a take; null: none of them gave one. */
export const tids = fc.option(fc.array(fc.constantFrom(null, 'w1', 'w2'), { minLength: 4, maxLength: 4 }));

/** How a call references a delivery: mostly correctly, sometimes with one wrong part. */
export const refSpecs = fc.record({
  back: fc.nat({ max: 7 }),
  token: fc.boolean(),
  owner: owners,
  wrong: fc.constantFrom('no', 'no', 'no', 'no', 'no', 'no', 'no', 'group', 'queue', 'id', 'token'),
});
export type RefSpec = typeof refSpecs extends fc.Arbitrary<infer T> ? T : never;

export interface NamedRef {
  readonly queue: QueueKey;
  readonly ref: DeliveryRef;
}

export function resolve({ refs }: World, { back, token, owner, wrong }: RefSpec): NamedRef {
  const known = refs.at(-1 - back) ?? {
    queue: { ns: 'jobs', name: 'a' },
    id: 'none',
    group: '',
    token: null,
  };
  const at = QUEUES.findIndex(({ ns, name }) => ns === known.queue.ns && name === known.queue.name);
  return {
    queue: wrong === 'queue' ? (QUEUES[(at + 1) % QUEUES.length] ?? known.queue) : known.queue,
    ref: {
      id: wrong === 'id' ? `${known.id}0` : known.id,
      group: wrong === 'group' ? (known.group === 'g1' ? 'g2' : 'g1') : known.group,
      token: wrong === 'token' ? 'zzz' : token ? known.token : null,
      owner,
    },
  };
}
