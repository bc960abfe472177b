import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/amqp/${file}`, search, replace },
];
const shared = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/session/${file}`, search, replace },
];

/** Bugs of the AMQP front end, found by the model through AMQP or by other suites. */
export const AMQP: readonly Mutant[] = [
  {
    name: 'the outcome released counts a failed try',
    suite: 'model through AMQP',
    edits: edit(
      'links.ts',
      "case DESCRIBED.released:\n        return { kind: 'release', delayMs: 0, countTry: false };",
      "case DESCRIBED.released:\n        return { kind: 'release', delayMs: 0, countTry: true };",
    ),
  },
  {
    name: 'a rejected message is delivered again immediately',
    suite: 'model through AMQP',
    edits: edit(
      'links.ts',
      '{ ...failedTry(delayAfter(tries)), reason: state.reason }',
      '{ ...failedTry(0), reason: state.reason }',
    ),
  },
  {
    name: 'a delivery that is settled without an outcome stays reserved',
    suite: 'model through AMQP',
    edits: edit('links.ts', 'return isSettled ? failedTry(0) : null;', 'return null;'),
  },
  {
    name: 'a detached link forgets the outstanding deliveries of its client',
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
    edits: edit('links.ts', '    this.endpoint.drained();\n', ''),
  },
  {
    name: 'the listed window of a link never shrinks',
    suite: 'AMQP credit',
    edits: edit('links.ts', ', this.outstanding.size + credit);', ', Number.POSITIVE_INFINITY);'),
  },
  {
    name: 'a drain detaches the link if the engine is briefly unavailable',
    suite: 'AMQP credit',
    edits: shared(
      'push-consumer.ts',
      'if (this.isDraining && TRANSIENT',
      'if (TRANSIENT.size === 0 && TRANSIENT',
    ),
  },
  {
    name: 'all links beyond the limit of consumers are tried each second',
    suite: 'AMQP credit',
    edits: shared(
      'client-session.ts',
      'if (!next.isRetrying) continue;',
      'if (next !== undefined) continue;',
    ),
  },
  {
    name: 'a delivery in transit to a client whose link the server detaches counts no failed try',
    suite: 'AMQP credit',
    edits: edit('connection.ts', 'if (link instanceof OutgoingLink && !this.isEnding) link.markSeen();', ''),
  },
  {
    name: 'a message whose insert has an unknown outcome is released',
    suite: 'AMQP sending',
    edits: edit(
      'errors.ts',
      "if (code === 'outcome-unknown' || code === 'internal') return 'detach';",
      "if (code === 'outcome-unknown') return 'released';",
    ),
  },
  {
    name: 'credit is granted once and never again',
    suite: 'AMQP sending',
    edits: edit('links.ts', 'this.endpoint.grant(this.#usedCredit);', ''),
  },
  {
    name: 'all frames of a message are written at once',
    suite: 'AMQP deliveries',
    edits: edit('core/session.ts', ' && this.#connection.host.canWrite', ''),
  },
  {
    name: 'ids of the session are not serial numbers',
    suite: 'AMQP deliveries',
    edits: edit('core/serial.ts', '  return (a - b) | 0;', '  return a - b;'),
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
    name: 'credit that a drain has used up is granted again by a wrong delivery-count',
    suite: 'AMQP deliveries',
    edits: edit('core/link.ts', 'Math.max(queued, serial', 'Math.max(0, serial'),
  },
  {
    name: 'every echo that a client requests is queued',
    suite: 'AMQP deliveries',
    edits: edit(
      'core/session.ts',
      'else if (lastWaiting instanceof SentDelivery)',
      'else if (lastWaiting !== null)',
    ),
  },
  {
    name: 'outstanding deliveries return with a failed try when the broker drains',
    suite: 'AMQP settling',
    edits: edit(
      'connection.ts',
      "    if (error.code === 'shutting-down') {",
      "    if (error.code === 'shutting-down') {\n      link.stop(true);",
    ),
  },
  {
    name: 'the full reason of a rejected outcome is retained until the engine has stored it',
    suite: 'AMQP settling',
    edits: edit(
      'core/performatives.ts',
      "truncateUtf8(parts.join(': '), LIMITS.reasonBytes)",
      "parts.join(': ')",
    ),
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
    name: 'a client that has closed its half of the connection gets no outcomes',
    suite: 'AMQP sending',
    edits: shared(
      'client-session.ts',
      'if (this.#writeClose === null) this.endTurn();',
      'if (this.#writeClose === null);',
    ),
  },
  {
    name: 'a message is released because another one in its batch exceeded the capacity',
    suite: 'AMQP sending',
    edits: shared('batchers.ts', 'elements.length === 1) {', 'elements.length > 0) {'),
  },
];
