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
    edits: edit('session.ts', 'head, bytes, this.#frameEnd);', "head, bytes, '\\0');"),
  },
  {
    name: 'a SUBSCRIBE that asks to browse pops',
    suite: 'STOMP browsing',
    edits: edit(
      'subscriptions.ts',
      'browses ||= !FALSE_VALUE.test(headers[at + 1] as string);',
      'browses ||= false;',
    ),
  },
  {
    name: 'a misspelt header of SEND is passed on, and has no effect',
    suite: 'STOMP slips',
    edits: edit('commands.ts', 'if (SPELLING_CHECKED.test(name)) SEND_SPELLING.check(name);', ''),
  },
  {
    name: 'a misspelt ack of SUBSCRIBE has no effect, so that it pops',
    suite: 'STOMP slips',
    edits: edit(
      'headers.ts',
      'nearestName(name, this.#plain);',
      'nearestName(name, this.#plain, MIN_LENGTH);',
    ),
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
      'subscriptions.ts',
      "if (this.options.mode !== 'client') return [named];",
      'if (named !== undefined) return [named];',
    ),
  },
  {
    name: 'a window is never full',
    suite: 'model through STOMP',
    edits: edit(
      'subscriptions.ts',
      'return this.window - this.outstanding.size - this.unwritten;',
      'return this.window - this.unwritten;',
    ),
  },
  {
    name: 'a window that has room again is not filled',
    suite: 'STOMP subscriptions',
    edits: edit('commands.ts', 'session.planFill(subscription);', ''),
  },
  {
    name: 'what a client saw and gave back is not a failed try',
    suite: 'model through STOMP',
    edits: shared('push-consumer.ts', 'countTry: countTries && delivery.isSeen', 'countTry: false'),
  },
  {
    name: 'an UNSUBSCRIBE forgets what the client holds',
    suite: 'model through STOMP',
    edits: shared(
      'push-consumer.ts',
      'return unsettled.length === 0 ? null : returnOutstanding(this.queue, unsettled, countTries, this.session);',
      'return null;',
    ),
  },
  {
    name: 'the delay of a NACK is left out',
    suite: 'model through STOMP',
    edits: edit('commands.ts', '(delayMs ?? STOMP_LIMITS.nackDelayMs)', '0'),
  },
  {
    name: 'a COMMIT does not look whether the client still holds what it acknowledges',
    suite: 'model through STOMP',
    edits: edit('transactions.ts', 'await this.#confirmLeases();', ''),
  },
  {
    name: 'an ABORT leaves claimed what the transaction acknowledged',
    suite: 'model through STOMP',
    edits: edit(
      'transactions.ts',
      'for (const { outstanding } of this.#settlements) outstanding.isClaimed = false;',
      '',
    ),
  },
  {
    name: 'a COMMIT loses the SENDs that go with an ACK',
    suite: 'model through STOMP',
    edits: edit('transactions.ts', 'inserts: settlement === anchor ? sends : []', 'inserts: []'),
  },
  {
    name: 'a session does not renew the leases of what its client holds',
    suite: 'STOMP subscriptions',
    edits: shared(
      'push-consumer.ts',
      'if (expiring.length === 0) return;',
      'if (expiring.length >= 0) return;',
    ),
  },
  {
    name: 'a popped element that the client never saw is lost',
    suite: 'STOMP clients that go away',
    edits: shared('push-consumer.ts', 'this.#queue.returnUndelivered(this.#delivery);', ''),
  },
  {
    name: 'a connection over TLS that its client closes loses what waits for the login',
    suite: 'STOMP over TLS',
    edits: shared('server.ts', 'socket.allowHalfOpen = true;', ''),
  },
  {
    name: 'a WebSocket that closes loses what its client sent before',
    suite: 'WebSocket',
    edits: shared(
      'websocket.ts',
      "webSocket.on('close', () => this.push(null));",
      "webSocket.on('close', () => this.destroy());",
    ),
  },
  {
    name: 'a WebSocket message may be kept for a client that is not logged in',
    suite: 'WebSocket',
    edits: shared('websocket.ts', "if (this.#loginBytes < 0) this.#closeTooBig('before the login');", ''),
  },
  {
    name: 'WebSockets do not count among the connections of STOMP',
    suite: 'WebSocket',
    edits: shared('websocket.ts', 'this.#server.checkCapacity();', ''),
  },
  {
    name: 'a rejected WebSocket whose client resets the connection stops the server',
    suite: 'WebSocket',
    edits: [
      { file: 'src/http/front.ts', search: "socket.on('error', () => socket.destroy());", replace: '' },
    ],
  },
  {
    name: 'a page of another site may connect by WebSocket',
    suite: 'WebSocket',
    edits: [
      {
        file: 'src/http/front.ts',
        search: 'call.origin = checkPage(call.head, this.#origins);',
        replace: '',
      },
    ],
  },
  {
    name: 'a session that does not read misses heart-beats',
    suite: 'heart-beats',
    edits: shared('client-session.ts', 'this.#isPaused ? graceMs : this', 'this'),
  },
  {
    name: 'a receipt comes before the element is stored',
    suite: 'STOMP conformance',
    edits: shared(
      'batchers.ts',
      'await queue.insert(elements, { user: this.#session.owner, onSent });\n    } catch',
      'this.#session.inserted(replies);\n      await queue.insert(elements, { user: this.#session.owner, onSent });\n      return true;\n    } catch',
    ),
  },
  {
    name: 'a DISCONNECT is confirmed although a frame before it failed',
    suite: 'STOMP disconnects',
    edits: shared(
      'client-session.ts',
      'if (this.isEnding && !this.#isClientEnding) return;',
      'if (this.isEnding) return;',
    ),
  },
  {
    name: 'what follows a COMMIT is stored before it',
    suite: 'STOMP commits',
    edits: edit('session.ts', 'if (storesLater) this.setPause(PAUSE.commit, true);', ''),
  },
  {
    name: 'frames with one receipt id are confirmed once',
    suite: 'STOMP settling',
    edits: shared('batchers.ts', " && typeof reply === 'object'", ''),
  },
  {
    name: 'the end of any COMMIT lets later frames overtake another one',
    suite: 'STOMP commits',
    edits: edit(
      'session.ts',
      'if (storesLater) this.setPause(PAUSE.commit, false);',
      'this.setPause(PAUSE.commit, false);',
    ),
  },
  {
    name: 'an ACK does not wait for what a COMMIT before it stores',
    suite: 'STOMP commits',
    edits: edit(
      'transactions.ts',
      'await inserts.track((onSent) => queue.insert(elements, { user: this.#user, onSent }));',
      'await queue.insert(elements, { user: this.#user });',
    ),
  },
  {
    name: 'a client that reads slowly is cut soon after its DISCONNECT',
    suite: 'STOMP disconnects',
    edits: shared('client-session.ts', 'if (!isByClient) this.#planCut();', 'this.#planCut();'),
  },
  {
    name: 'fragments of a WebSocket message may have any number of control frames between them',
    suite: 'WebSocket',
    edits: shared(
      'websocket.ts',
      "if (this.#bytes > this.#maxBytes) this.#closeTooBig('for one message');",
      '',
    ),
  },
  {
    name: 'control frames between WebSocket messages count for the next one',
    suite: 'WebSocket',
    edits: shared(
      'websocket.ts',
      'if (this.#bytes - this.#controlBytes <= MAX_CONTROL_BYTES) {',
      'if (this.#bytes <= 0) {',
    ),
  },
];
