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
      'links.ts',
      "case DESCRIBED.released:\n        return { kind: 'release', delayMs: 0, countTry: false };",
      "case DESCRIBED.released:\n        return { kind: 'release', delayMs: 0, countTry: true };",
    ),
  },
  {
    name: 'rejected comes back at once',
    suite: 'model through AMQP',
    edits: edit(
      'links.ts',
      '{ ...failedTry(delayAfter(tries)), reason: state.reason }',
      '{ ...failedTry(0), reason: state.reason }',
    ),
  },
  {
    name: 'a delivery that is settled without an outcome stays with its client',
    suite: 'model through AMQP',
    edits: edit('links.ts', 'return isSettled ? failedTry(0) : null;', 'return null;'),
  },
  {
    name: 'a link that ends forgets what the client holds',
    suite: 'model through AMQP',
    edits: edit(
      'links.ts',
      'const released = super.onStop(countTries);',
      'const released = Promise.resolve(countTries);',
    ),
  },
  {
    name: 'a consumer whose credit is drained stays in the wait queue',
    suite: 'model through AMQP',
    edits: edit('links.ts', '      this.endpoint.drained();\n', ''),
  },
  {
    name: 'the window that is listed never shrinks',
    suite: 'AMQP credit',
    edits: edit('links.ts', ', this.outstanding.size + credit);', ', Number.POSITIVE_INFINITY);'),
  },
  {
    name: 'a drain ends the link if the engine is away for a moment',
    suite: 'AMQP credit',
    edits: shared(
      'push-consumer.ts',
      'if (this.#onDrained !== null && TRANSIENT',
      'if (TRANSIENT.size === 0 && TRANSIENT',
    ),
  },
  {
    name: 'what is still sent to a client whose link the server ends counts no failed try',
    suite: 'AMQP credit',
    edits: edit('connection.ts', 'if (link instanceof OutgoingLink && !this.isEnding) link.markSeen();', ''),
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
    edits: edit('links.ts', 'this.endpoint.grant(this.#settledCount);', ''),
  },
  {
    name: 'an old disposition settles the delivery that took its place',
    suite: 'AMQP deliveries',
    // Each of the two keeps it from that.
    edits: [
      ...edit(
        'core/session.ts',
        'if ((id - this.#oldestId) >>> 0 >= (this.#nextDeliveryId - this.#oldestId) >>> 0) return undefined;',
        '',
      ),
      ...edit(
        'core/session.ts',
        'const from = serialDifference(oldest, first) > 0 ? oldest : first;',
        'const from = first;',
      ),
    ],
  },
  {
    name: 'a disposition of a delivery that was sent settled finds an older one',
    suite: 'AMQP deliveries',
    edits: edit(
      'core/session.ts',
      'while ((id - this.#oldestId) >>> 0 >= this.#ring.length) this.#growRing();',
      'while (!delivery.isSettled && (id - this.#oldestId) >>> 0 >= this.#ring.length) this.#growRing();',
    ),
  },
  {
    name: 'ids of the session are not serial numbers',
    suite: 'AMQP deliveries',
    edits: edit('core/session.ts', '  return (a - b) | 0;', '  return a - b;'),
  },
  {
    name: 'a flow that reports used credit overtakes a transfer',
    suite: 'AMQP deliveries',
    edits: edit(
      'core/session.ts',
      'if (lastWaiting === null) this.#writeLinkFlow',
      'if (lastWaiting !== undefined) this.#writeLinkFlow',
    ),
  },
  {
    name: 'credit that a drain has used up is granted again by a delivery-count that is not true',
    suite: 'AMQP deliveries',
    edits: edit('core/link.ts', 'Math.max(queued, (this', 'Math.max(0, (this'),
  },
  {
    name: 'each echo that a client asks for is queued',
    suite: 'AMQP deliveries',
    edits: edit(
      'core/session.ts',
      'else if (lastWaiting instanceof SentDelivery)',
      'else if (lastWaiting !== null)',
    ),
  },
  {
    name: 'what a client holds returns with a failed try when the broker drains',
    suite: 'AMQP settling',
    edits: edit(
      'connection.ts',
      "    if (error.code === 'shutting-down') {",
      "    if (error.code === 'shutting-down') {\n      link.stop(true);",
    ),
  },
  {
    name: 'the whole reason of a rejected outcome is kept until the engine has it',
    suite: 'AMQP settling',
    edits: edit('core/connection.ts', "cutText(parts.join(': '), LIMITS.reasonBytes)", "parts.join(': ')"),
  },
  {
    name: 'a popped element that the client never saw is lost',
    suite: 'AMQP clients that go away',
    edits: shared(
      'socket-writer.ts',
      'this.#append({ parts, observer });',
      'this.#append({ parts, observer: null });',
    ),
  },
  {
    name: 'a header of an element forges an annotation of the server',
    suite: 'AMQP elements',
    edits: edit('message.ts', 'if (!SENT_ANNOTATIONS.has(bare)) annotations.push', 'annotations.push'),
  },
  {
    name: 'types of application properties are not kept',
    suite: 'AMQP elements',
    edits: edit('message.ts', 'if (type !== defaultType) this.#types.push', 'if (false) this.#types.push'),
  },
  {
    name: 'the outcomes of a client that has closed its half of the connection are not sent',
    suite: 'AMQP sending',
    edits: shared(
      'client-session.ts',
      'if (this.#writeClose === null) this.endTurn();',
      'if (this.#writeClose === null);',
    ),
  },
  {
    name: 'a message is released since another one that came with it found no room',
    suite: 'AMQP sending',
    edits: shared('batchers.ts', 'elements.length === 1) {', 'elements.length > 0) {'),
  },
];
