import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/stomp/${file}`, search, replace },
];
const shared = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/session/${file}`, search, replace },
];

/** Bugs of the STOMP front end: found by the model through STOMP, or by a suite of their own. */
export const STOMP: readonly Mutant[] = [
  {
    name: 'no LF follows a frame with a large body',
    suite: 'STOMP frame ends',
    edits: edit('outbox.ts', 'this.#text = this.#frameEnd;', "this.#text = '\\0';"),
  },
  {
    name: 'a SUBSCRIBE that asks to browse pops',
    suite: 'STOMP slips',
    edits: edit('commands/subscribe.ts', 'if (NO.test(value)) return;', 'return;'),
  },
  {
    name: 'a misspelt header of SEND is passed on, and has no effect',
    suite: 'STOMP slips',
    edits: edit('commands/send.ts', 'if (EXTENSION.test(name)) SLIPS.check(name);', ''),
  },
  {
    name: 'every client may say where it connects from',
    suite: 'PROXY headers',
    edits: shared('server.ts', 'if (!options.trustedProxies.has(proxy)) {', 'if (proxy === null) {'),
  },
  {
    name: 'a cumulative ACK settles only the message that it names',
    suite: 'model through STOMP',
    edits: edit(
      'subscription.ts',
      "if (this.options.mode !== 'client') return [named];",
      'if (named !== undefined) return [named];',
    ),
  },
  {
    name: 'a window is never full',
    suite: 'model through STOMP',
    edits: edit(
      'subscription.ts',
      'return this.options.window - this.#held.size - this.#unwritten;',
      'return this.options.window - this.#unwritten;',
    ),
  },
  {
    name: 'a window that has room again is not filled',
    suite: 'model through STOMP',
    edits: edit('commands/settle.ts', 'session.subscriptions.roomIn(subscription);', ''),
  },
  {
    name: 'what a client saw and gave back is not a failed try',
    suite: 'model through STOMP',
    edits: shared('release-held.ts', 'countTry: countSeen && one.isSeen', 'countTry: false'),
  },
  {
    name: 'an UNSUBSCRIBE forgets what the client holds',
    suite: 'model through STOMP',
    edits: edit(
      'subscription.ts',
      'if (held.length > 0) await this.#host.releaseHeld(queue, held, countSeen);',
      '',
    ),
  },
  {
    name: 'the delay of a NACK is left out',
    suite: 'model through STOMP',
    edits: edit('commands/settle.ts', 'delayMs: delayOf(subscription, headers),', 'delayMs: 0,'),
  },
  {
    name: 'a COMMIT does not look whether the client still holds what it acknowledges',
    suite: 'model through STOMP',
    edits: edit('commit.ts', 'await this.#confirmHeld();', ''),
  },
  {
    name: 'an ABORT leaves claimed what the transaction acknowledged',
    suite: 'model through STOMP',
    edits: edit('transaction.ts', 'for (const { held } of this.#settlements) held.isClaimed = false;', ''),
  },
  {
    name: 'a COMMIT loses the SENDs that go with an ACK',
    suite: 'model through STOMP',
    edits: edit('commit.ts', 'inserts: one === anchor ? sends : []', 'inserts: []'),
  },
  {
    name: 'a session does not keep the leases of what its client holds',
    suite: 'STOMP subscriptions',
    edits: shared('lease-keeper.ts', 'if (old.length === 0) return;', 'if (old.length >= 0) return;'),
  },
  {
    name: 'a popped element that the client never saw is lost',
    suite: 'STOMP clients that go away',
    edits: shared('handout.ts', 'this.#queue.returnUndelivered(this.#delivery);', ''),
  },
  {
    name: 'a receipt comes before the element is stored',
    suite: 'STOMP conformance',
    edits: shared(
      'storing.ts',
      'await queue.insert(elements);\n      this.#host.stored(tickets);',
      'this.#host.stored(tickets);\n      await queue.insert(elements);',
    ),
  },
];
