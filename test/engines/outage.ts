import assert from 'node:assert/strict';
import type { Engine } from '../../src/engine/engine.ts';
import type { QueueKey } from '../../src/model/names.ts';
import type { FakeClock } from '../support/clock.ts';
import { bodyTexts, newElement, newElements } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';
import {
  commit,
  type DeliveryRef,
  extend,
  nextDueAt,
  purge,
  remove,
  rollback,
  transfer,
} from '../support/settle.ts';
import { inTime, settledOf, turns } from './fake-time.ts';

const POP = { group: '', count: 10, leaseMs: null };

export interface Outage {
  readonly engine: Engine;
  /** The clock of the engine's timeouts. */
  readonly clock: FakeClock;
  /** A queue with elements. */
  readonly used: QueueKey;
  begin(): Promise<void>;
  /** Ends the outage. Resolves when calls succeed again. */
  end(): Promise<void>;
}

/**
 * Makes calls of every kind during an outage of the engine's server: each must be rejected within 5 s, and at once when
 * the server is known to be unavailable. Afterwards the engine must work as before.
 */
export async function checkOutage({ engine, clock, used, begin, end }: Outage): Promise<void> {
  const { storage } = engine;
  const fresh = { ns: used.ns, name: `${used.name}, new` };
  await begin();
  for (let round = 0; round < 3; round++) {
    const calls = [...callsOn(engine, used), ...callsOn(engine, fresh)].map(codeOf);
    assert.deepEqual(await inTime(clock, calls), []);
  }
  const late = callsOn(engine, used).map(codeOf);
  await turns();
  const settled = new Set(await settledOf(late));
  assert.deepEqual(settled, new Set([true]), 'all calls were rejected immediately');

  await end();
  // Calls with an unknown outcome may have been applied: a frozen server executes what it received when it resumes.
  await purge(storage, used);
  await storage.insert(used, newElements('first', 'second'));
  assert.deepEqual(bodyTexts((await storage.take(used, POP)).deliveries), ['first', 'second']);
}

/** One call of every kind that is sent to the server. */
function callsOn(engine: Engine, queue: QueueKey): Promise<unknown>[] {
  const { storage, definitions, stats } = engine;
  const ref: DeliveryRef = { id: '0123456789ab0000000001', group: '', token: null };
  const reserving = storage.capabilities.reserve
    ? [
        storage.take(queue, { ...POP, leaseMs: 60_000 }),
        commit(storage, queue, [ref]),
        rollback(storage, queue, [{ ...ref, delayMs: 0, countTry: true }]),
        extend(storage, queue, [{ ...ref, leaseMs: 1_000 }]),
        remove(storage, queue, [ref.id]),
        transfer(storage, [{ from: queue, finish: ref, inserts: [{ queue, element: newElement() }] }]),
        storage.sweep(),
      ]
    : [];
  return [
    storage.insert(queue, newElements('x')),
    storage.take(queue, POP),
    ...reserving,
    storage.scan(queue, { group: '', states: ['ready'], bodies: true, after: null, limit: 5 }),
    storage.counts(queue),
    nextDueAt(storage, queue, ''),
    storage.declare([{ ns: 'plain', name: `${queue.name}, declared` }]),
    storage.queues('plain'),
    storage.usage('plain'),
    purge(storage, queue),
    storage.drop(queue),
    definitions.get('queue', 'any'),
    definitions.put('queue', 'any', 1, 'any'),
    definitions.list('queue'),
    stats.read(queue),
    engine.ping(),
  ];
}
