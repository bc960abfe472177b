import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of the broker: found by the line's interleavings, or by the model through HTTP. */
export const BROKER: readonly Mutant[] = [
  {
    name: 'an element that comes while the engine is being asked wakes nobody',
    suite: 'waiting line',
    edits: edit('broker/line.ts', 'this.#matchAgain += count;', ''),
  },
  {
    name: 'an element that matures while the engine is being asked is asked for later',
    suite: 'waiting line',
    edits: edit('broker/line.ts', 'return at > askedAt ? at', 'return at > this.#host.clock.now() ? at'),
  },
  {
    name: 'the timer is not re-armed when an earlier maturity is stored',
    suite: 'waiting line',
    edits: edit('broker/line.ts', 'earlier(this.#dueAt, at) !== this.#dueAt', 'this.#dueAt === null'),
  },
  {
    name: 'consumers that were not served go to the end of the line',
    suite: 'model through HTTP',
    edits: edit('broker/line.ts', 'this.#waiting.prepend(consumer);', 'this.#waiting.append(consumer);'),
  },
  {
    name: 'a cancelled call still takes an element',
    suite: 'waiting line',
    edits: edit(
      'broker/line.ts',
      "if (consumer.state === 'asked') served += this.#hand(consumer, deliveries, served);",
      'served += this.#hand(consumer, deliveries, served);',
    ),
  },
  {
    name: 'an element whose consumer left is dropped',
    suite: 'waiting line',
    edits: edit(
      'broker/line.ts',
      'for (const spare of deliveries.slice(served)) this.#host.returnUndelivered(spare);',
      '',
    ),
  },
  {
    name: 'paused queues hand out',
    suite: 'waiting line',
    edits: edit(
      'broker/line.ts',
      'if (this.#waiting.size === 0 || this.#host.paused) return;\n    this.#disarm();',
      'if (this.#waiting.size === 0) return;\n    this.#disarm();',
    ),
  },
  {
    name: 'a rollback wakes nobody',
    suite: 'wake-ups',
    edits: edit(
      'broker/queue.ts',
      'this.#waiting?.wake(group ?? this.#ns.defaultGroup, action.delayMs);',
      '{}',
    ),
  },
  {
    name: 'a lease that ends wakes nobody and is not counted',
    suite: 'wake-ups',
    edits: edit('broker/sweeper.ts', 'if (at < this.#timerAt && !this.#stopped) this.#arm(at);', ''),
  },
  {
    name: 'a lease that ends during a sweep stops all that would follow',
    suite: 'ends of leases',
    edits: edit(
      'broker/sweeper.ts',
      'this.#disarm();\n      if (this.#sweeping === null)',
      'this.#timer = null;\n      if (this.#sweeping === null)',
    ),
  },
  {
    name: 'leases that end wake one consumer on another node, however many wait there',
    suite: 'ends of leases',
    edits: edit('broker/namespace.ts', 'name }, MANY);', 'name }, 1);'),
  },
  {
    name: 'timers go by this machine’s clock',
    suite: 'clocks apart',
    edits: edit('broker/engine-time.ts', 'at + (clocks.clock.now() - engineNow(clocks, queue))', 'at'),
  },
  {
    name: 'a hand-out that came to nobody is counted as undone',
    suite: 'wake-ups',
    edits: edit('broker/queue.ts', 'this.#returnUncounted([delivery]),', 'this.returnUndelivered(delivery),'),
  },
  {
    name: 'resume wakes nobody',
    suite: 'wake-ups',
    edits: edit('broker/waiting.ts', 'this.match(MANY);', 'this.match(0);'),
  },
];

/** Bugs of exchanges: found by random graphs, or by the tests of one exchange. */
export const EXCHANGE: readonly Mutant[] = [
  {
    name: 'a copy does not count its hop',
    suite: 'exchange graphs',
    edits: edit('exchange/forward.ts', 'String(hops + 1)', 'String(hops)'),
  },
  {
    name: 'headers that a selector changed are not stored',
    suite: 'exchange graphs',
    edits: edit('exchange/forward.ts', 'verdict.headers ?? content.headers', 'content.headers'),
  },
  {
    name: 'a retry stores a copy in another engine twice',
    suite: 'exchanges',
    edits: edit(
      'exchange/forwarder.ts',
      'dedupKey: this.#dedupKey(plan, copy.destination ?? -i - 1)',
      'dedupKey: i < 0 ? this.#dedupKey(plan, i) : null',
    ),
  },
];
