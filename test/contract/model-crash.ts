import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { Storage } from '../../src/engine/storage.ts';
import type { CrashMoment } from '../engines.ts';
import { commit, rollback } from '../support/settle.ts';
import type { Model } from './model.ts';
import {
  type Command,
  command,
  contents,
  elementFor,
  queues,
  refSpecs,
  resolve,
} from './model-arbitraries.ts';
import { sweepAll } from './model-check.ts';
import { STREAM_GROUPS, type World } from './model-world.ts';

/** One call on the real system, and the same call on the model. */
interface Call {
  /** Whether it inserts elements that expire. */
  readonly addsExpiry?: boolean;
  real(storage: Storage): Promise<unknown>;
  model(model: Model): void;
}

type MakeCall = (model: Model, world: World) => Call;

const inserting = fc.tuple(queues, fc.array(contents, { minLength: 1, maxLength: 30 })).map(
  ([queue, given]): MakeCall =>
    (current) => {
      // With conflicting elements the call may be rejected without a round trip, and then no process would be killed.
      const alike = given.map((one) => ({ ...one, fingerprint: one.fingerprint && 'x'.repeat(22) }));
      const elements = alike.map((content) => elementFor(queue, content, current));
      return {
        addsExpiry: elements.some(({ expiresAt }) => expiresAt !== null),
        real: (storage) => storage.insert(queue, elements),
        model: (model) => model.insertAll(queue, elements),
      };
    },
);

const taking = fc
  .tuple(queues, fc.constantFrom(...STREAM_GROUPS), fc.constantFrom(null, 1000, 60_000))
  .map(([queue, named, leaseMs]): MakeCall => {
    const group = queue.ns === 'stream' ? named : '';
    return () => ({
      real: (storage) => storage.take(queue, { group, count: 2, leaseMs }),
      model: (model) => model.take(queue, group, 2, leaseMs),
    });
  });

const settling = fc.tuple(refSpecs, fc.boolean()).map(([spec, isCommit]): MakeCall => {
  const terms = { delayMs: 0, countTry: true };
  return (_model, world) => {
    const { queue, ref } = resolve(world, spec);
    return {
      real: (storage) =>
        isCommit ? commit(storage, queue, [ref]) : rollback(storage, queue, [{ ...ref, ...terms }]),
      model: (model) => {
        if (isCommit) model.commit(queue, ref);
        else model.rollback(queue, ref, terms.delayMs, terms.countTry);
      },
    };
  };
});

/**
 * I12: the process is killed during a call. The results of earlier calls persist. The call itself took effect
 * completely if it was killed after its commit, and not at all if before.
 */
export const crashes: fc.Arbitrary<Command> = fc
  .tuple(fc.constantFrom<CrashMoment>('before-commit', 'after-commit'), fc.oneof(inserting, taking, settling))
  .map(([moment, makeCall]) =>
    command(
      () => `crash(${moment}, ${fc.stringify(makeCall)})`,
      async (model, world) => {
        const { opened } = world;
        assert.ok('crash' in opened);
        const call = makeCall(model, world);
        let isAnswered = false;
        world.opened = await opened.crash(moment, () => {
          const onResult = (): void => {
            isAnswered = true;
          };
          call.real(opened.engine.storage).then(onResult, () => {});
        });
        assert.equal(isAnswered, false, 'no caller got a result');
        if (moment === 'after-commit') {
          call.model(model);
          if (call.addsExpiry === true) await world.opened.passTime(opened.lateSweepMs);
        }
        model.advanceTo(world.opened.now());
        // The time of the restart may have ended a lease.
        await sweepAll(model, world);
        // Pops of the old process can no longer be undone.
        world.popped = [];
      },
    ),
  );
