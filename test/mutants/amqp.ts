import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/amqp/${file}`, search, replace },
];
const shared = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/session/${file}`, search, replace },
];

/** Bugs of the AMQP front end: found by the model through AMQP, or by a suite of their own. */
export const AMQP: readonly Mutant[] = [
  {
    name: 'released counts a failed try',
    suite: 'model through AMQP',
    edits: edit(
      'outgoing-link.ts',
      'host.heard(({ delivery }) => this.#back(delivery, false)),',
      'host.heard(({ delivery }) => this.#back(delivery, true)),',
    ),
  },
  {
    name: 'rejected comes back at once',
    suite: 'model through AMQP',
    edits: edit(
      'outgoing-link.ts',
      'delayMs: delayAfter(held.one.tries), countTry: true, reason }',
      'delayMs: 0, countTry: true, reason }',
    ),
  },
  {
    name: 'a delivery that is settled without an outcome stays with its client',
    suite: 'model through AMQP',
    edits: edit('outgoing-link.ts', '    this.#back(delivery, true);\n', ''),
  },
  {
    name: 'a link that ends forgets what the client holds',
    suite: 'model through AMQP',
    edits: edit('outgoing-link.ts', 'void this.#consumer.stop(countSeen);', ''),
  },
  {
    name: 'credit that is drained still waits in the line',
    suite: 'model through AMQP',
    edits: edit('outgoing-link.ts', '    writeDrained(this.#sender);\n', ''),
  },
  {
    name: 'a consumer that was answered at once is taken for one that waits',
    suite: 'AMQP credit',
    edits: shared(
      'push-consumer.ts',
      "if (consumer.state !== 'gone') this.#consumer = consumer;",
      'this.#consumer = consumer;',
    ),
  },
  {
    name: 'a message whose storing has an unknown outcome is released',
    suite: 'AMQP sending',
    edits: edit(
      'errors.ts',
      "'outcome-unknown': { condition: 'amqp:internal-error', message: 'detach' }",
      "'outcome-unknown': { condition: 'amqp:internal-error', message: 'released' }",
    ),
  },
  {
    name: 'credit is granted once and never again',
    suite: 'AMQP sending',
    edits: edit('incoming-link.ts', 'this.#receiver.add_credit(this.#settled);', ''),
  },
  {
    name: 'outcomes are heard after the detach behind them',
    suite: 'AMQP credit',
    edits: edit('rhea.ts', '    disposition(frame);\n    outgoing.process();', '    disposition(frame);'),
  },
  {
    name: 'an old disposition settles the delivery that took its place',
    suite: 'AMQP and rhea',
    edits: edit('rhea.ts', '(id < (deliveries.get_head()?.id ?? 0) ? undefined : byId(id))', 'byId(id)'),
  },
  {
    name: 'a popped element that the client never saw is lost',
    suite: 'AMQP clients that go away',
    edits: edit('carried.ts', '    this.#cargo?.lost();\n', ''),
  },
  {
    name: 'types of application properties are not kept',
    suite: 'AMQP elements',
    edits: edit(
      'message/from-message.ts',
      'if (type !== usual) this.#types.push',
      'if (false) this.#types.push',
    ),
  },
];
