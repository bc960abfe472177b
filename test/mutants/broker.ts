import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of the broker, found by interleavings of the wait queue or by the model through HTTP. */
export const BROKER: readonly Mutant[] = [
  {
    name: 'an element that is inserted while a take is in flight wakes no consumer',
    suite: 'wait queue',
    edits: edit('broker/wait-queue.ts', 'this.#matchAgain += count;', ''),
  },
  {
    name: 'all concurrent inserts of one user are passed to the engine together',
    suite: 'insert turns',
    edits: edit(
      'broker/engine-permits.ts',
      'perKey: MAX_BYTES,\n        total: MAX_BYTES,',
      'perKey: Infinity,',
    ),
  },
  {
    name: 'inserts wait for their turn without a limit',
    suite: 'insert turns',
    edits: edit('broker/engine-permits.ts', 'timeout: { clock, ms: TIMEOUT_MS },', ''),
  },
  {
    name: 'the deadline of an insert starts again when its turn comes',
    suite: 'insert turns',
    edits: edit('broker/queue.ts', '        leftMs: deadlineAt - clock.monotonic(),', ''),
  },
  {
    name: 'all concurrent large takes of one user are passed to the engine together',
    suite: 'take turns',
    edits: edit('broker/wait-queue.ts', 'if (owner !== null && bytes > FREE_BYTES) {', 'if (false) {'),
  },
  {
    name: 'a consumer whose user waits for a turn to take delays those behind it',
    suite: 'take turns',
    edits: edit('broker/wait-queue.ts', 'this.#park(owner, consumer);\n          continue;', 'break;'),
  },
  {
    name: 'a turn to take is kept after its consumer has left',
    suite: 'take turns',
    edits: edit(
      'broker/parked-consumers.ts',
      'for (const permit of this.#permits.values()) permit.end();',
      '',
    ),
  },
  {
    name: 'the deadline of a take starts again when its turn comes',
    suite: 'take turns',
    edits: edit('broker/wait-queue.ts', 'CALL_TIMEOUT_MS - permit.waitedMs', 'CALL_TIMEOUT_MS'),
  },
  {
    name: 'one user can use all HTTP connections',
    suite: 'connections of users',
    edits: edit('http/front.ts', 'this.#connectionLimit.enter(user);', ''),
  },
  {
    name: 'a joint take takes in two queues concurrently',
    suite: 'joint takes',
    edits: edit(
      'broker/joint-take.ts',
      '(this.#holder === null || this.#holder === consumer)',
      '(this.#holder === null || this.#holder !== null)',
    ),
  },
  {
    name: 'a joint take misses elements inserted while it was taking in another queue',
    suite: 'joint takes',
    edits: edit('broker/joint-take.ts', 'place.waitQueue?.promote(place.consumer, true);', ''),
  },
  {
    name: 'a joint take misses elements inserted during its first look',
    suite: 'joint takes',
    edits: edit(
      'broker/joint-take.ts',
      'place.waitQueue?.promote(place.consumer, isMissed);',
      'place.waitQueue?.promote(place.consumer, false);',
    ),
  },
  {
    name: 'a joint take holds too few elements while it waits for more',
    suite: 'joint takes',
    edits: edit(
      'broker/joint-take.ts',
      'if (this.#taken > 0 && isEnough) this.#finish();',
      'if (this.#taken > 0) this.#finish();',
    ),
  },
  {
    name: 'elements of a joint take are lost if its client disconnects',
    suite: 'joint takes',
    edits: edit(
      'broker/joint-take.ts',
      'this.#close();\n    this.#returnTaken();\n  }\n\n  acquire',
      'this.#close();\n  }\n\n  acquire',
    ),
  },
  {
    name: 'a count that started before an insert is returned to later callers',
    suite: 'joint takes',
    edits: edit('broker/wait-queue.ts', ' && this.#countedAt === this.#eligible', ''),
  },
  {
    name: 'a count for callers that have left is returned to callers after an insert',
    suite: 'joint takes',
    edits: edit('broker/wait-queue.ts', '    if (this.#consumers.size === 0) this.#counting = null;\n', ''),
  },
  {
    name: 'a joint take sleeps while an element matures in a queue that it only counted',
    suite: 'joint takes',
    edits: edit('broker/joint-take.ts', 'place.waitQueue?.expect(', 'void ('),
  },
  {
    name: 'a joint take of several elements waits for new ones instead of scheduled ones',
    suite: 'joint takes',
    edits: edit('broker/joint-take.ts', '(scheduled < missing ? missing - scheduled : missing)', 'missing'),
  },
  {
    name: 'an element that matures while a take is in flight is taken later',
    suite: 'wait queue',
    edits: edit(
      'broker/wait-queue.ts',
      'return at > matchedAt ? at',
      'return at > this.#ns.clock.now() ? at',
    ),
  },
  {
    name: 'the timer is not re-armed when an earlier maturity is stored',
    suite: 'wait queue',
    edits: edit('broker/wait-queue.ts', 'earlier(this.#dueAt, at) !== this.#dueAt', 'this.#dueAt === null'),
  },
  {
    name: 'consumers that were not served move to the end of the wait queue',
    suite: 'wait queue',
    edits: edit(
      'broker/wait-queue.ts',
      "for (const consumer of unserved) consumer.state = 'waiting';",
      "for (const consumer of unserved.toReversed()) {\nconsumer.state = 'waiting';\nthis.#waiting.remove(consumer);\nthis.#waiting.append(consumer);\n}",
    ),
  },
  {
    name: 'a cancelled call still takes an element',
    suite: 'wait queue',
    edits: edit(
      'broker/wait-queue.ts',
      "if (consumer.state === 'taking') served += this.#deliver(consumer, deliveries, served);",
      'served += this.#deliver(consumer, deliveries, served);',
    ),
  },
  {
    name: 'an element whose consumer disconnected is lost',
    suite: 'wait queue',
    edits: edit(
      'broker/wait-queue.ts',
      'if (served < deliveries.length) this.#queue.returnUncounted(deliveries.slice(served));',
      '',
    ),
  },
  {
    name: 'paused queues deliver',
    suite: 'wait queue',
    edits: edit(
      'broker/wait-queue.ts',
      '    if (!this.#hasConsumers || this.#queue.paused) {\n      this.#parked?.releasePermits();',
      '    if (!this.#hasConsumers) {\n      this.#parked?.releasePermits();',
    ),
  },
  {
    name: 'an element wakes the consumers of all groups on other nodes',
    suite: 'wake-ups',
    edits: edit('broker/queue.ts', 'groups ?? waitQueues?.keys()', 'waitQueues?.keys()'),
  },
  {
    name: 'an element of many groups wakes consumers of some of them on other nodes',
    suite: 'wake-ups',
    edits: edit(
      'broker/cluster.ts',
      '(groups !== null && groups.length <= MAX_NAMED_GROUPS && { groups })',
      '(groups !== null && { groups: groups.slice(0, MAX_NAMED_GROUPS) })',
    ),
  },
  {
    name: 'a rollback wakes no consumer',
    suite: 'wake-ups',
    edits: edit('broker/queue.ts', 'this.#wake(group, action.delayMs);', '{}'),
  },
  {
    name: 'an element that stays, for lack of a dead-letter queue, wakes no consumer',
    suite: 'wake-ups',
    edits: edit('broker/queue.ts', 'this.#wake(group, 0, count);', ''),
  },
  {
    name: 'an expired lease wakes no consumer and is not counted',
    suite: 'wake-ups',
    edits: edit('broker/sweeper.ts', 'if (!this.#stopped) this.#timer.within(ms);', ''),
  },
  {
    name: 'a lease that expires during a sweep stops all later sweeps',
    suite: 'ends of leases',
    edits: edit(
      'util/earliest-timer.ts',
      'this.cancel();\n      this.#run();',
      'this.#cancel = null;\n      this.#run();',
    ),
  },
  {
    name: 'expired leases wake only one consumer on another node, however many wait there',
    suite: 'ends of leases',
    edits: edit('broker/namespace.ts', 'this.announce(key, MANY);', 'this.announce(key, 1);'),
  },
  {
    name: 'options of the namespace take precedence over stored ones',
    suite: 'options of queues',
    edits: edit(
      'broker/queue-options.ts',
      '{ ...this.#defaults, ...rule?.options, ...stored }',
      '{ ...stored, ...rule?.options, ...this.#defaults }',
    ),
  },
  {
    name: 'options that a killed node did not pass to the engine are never applied',
    suite: 'options of queues',
    edits: edit(
      'broker/namespace.ts',
      '    await this.#declareStored();\n    const reread',
      '    const reread',
    ),
  },
  {
    name: 'a queue counts as full for as long as a namespace does',
    suite: 'options of queues',
    edits: edit('broker/capacity.ts', 'const FULL_REFRESH_MS = 20;', 'const FULL_REFRESH_MS = 2_000;'),
  },
  {
    name: 'inserts into a bounded queue wake no consumer',
    suite: 'options of queues',
    edits: edit(
      'broker/queue.ts',
      '      this.#wakeFor(elements);',
      '      if (bound === null) this.#wakeFor(elements);',
    ),
  },
  {
    name: 'timers use this machine’s clock instead of the engine’s',
    suite: 'clocks apart',
    edits: edit('broker/engine-time.ts', 'at - engineNow(clocks, queue)', 'at - clocks.clock.now()'),
  },
  {
    name: 'a delivery that no consumer received is counted as undone',
    suite: 'wake-ups',
    edits: edit(
      'broker/wait-queue.ts',
      'this.#queue.returnUncounted(deliveries.slice',
      'this.#queue.returnAllUndelivered(deliveries.slice',
    ),
  },
  {
    name: 'elements of undone pops wake no consumer if the engine does not report them',
    suite: 'undone takes',
    edits: edit('broker/undone-takes.ts', 'if (!isCertain(error)) done();', ''),
  },
  {
    name: 'resume wakes no consumer',
    suite: 'wake-ups',
    edits: edit('broker/queue.ts', 'if (!paused) this.match(MANY);', 'if (!paused) this.match(0);'),
  },
  {
    name: 'a dead letter wakes no consumer',
    suite: 'dead letters',
    edits: edit('broker/queue.ts', 'if (hasDied) sweeper.reportAffected();', ''),
  },
  {
    name: 'queues whose first insert was rejected are registered',
    suite: 'queues of a namespace',
    edits: edit('broker/namespace.ts', 'this.activity.forget(name);', ''),
  },
  {
    name: 'purging a queue that does not exist registers it',
    suite: 'HTTP operations',
    edits: edit('operations/removal.ts', 'if (step.removed > 0) {', '{'),
  },
  {
    name: 'a lone node publishes signals for its inserts',
    suite: 'a lone node',
    edits: edit(
      'broker/cluster.ts',
      ' || (this.#peers.size === 0 && now - this.#startedAt >= ALL_SEEN_MS)',
      '',
    ),
  },
];

/** Bugs of exchanges, found by random graphs or by the tests of single exchanges. */
export const EXCHANGE: readonly Mutant[] = [
  {
    name: 'a copy does not count its hop',
    suite: 'exchange graphs',
    edits: edit('exchange/copies.ts', 'String(hops + 1)', 'String(hops)'),
  },
  {
    name: 'headers that a selector changed are not stored',
    suite: 'exchange graphs',
    edits: edit('exchange/copies.ts', 'verdict.headers ?? content.headers', 'content.headers'),
  },
  {
    name: 'a retry stores a copy in another engine twice',
    suite: 'exchanges',
    edits: edit(
      'exchange/forwarder.ts',
      'dedupKey: this.#dedupKey(plan, copy) }',
      'dedupKey: plan.copies.length < 0 ? this.#dedupKey(plan, copy) : null }',
    ),
  },
];
