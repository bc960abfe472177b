import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/stomp/${file}`, search, replace },
];
const shared = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/session/${file}`, search, replace },
];

/** Bugs of the STOMP front end, found by the model through STOMP or by other suites. */
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
    name: 'a misspelled header of SEND is accepted, and has no effect',
    suite: 'STOMP slips',
    edits: edit('commands.ts', 'if (SPELLING_CHECKED.test(name)) SEND_SPELLING.check(name);', ''),
  },
  {
    name: 'a misspelled ack header of SUBSCRIBE is accepted, so that it pops',
    suite: 'STOMP slips',
    edits: shared(
      'spelling.ts',
      'nearestName(name, this.#plain);',
      'nearestName(name, this.#plain, MIN_LENGTH);',
    ),
  },
  {
    name: 'any client can set its address',
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
    name: 'a window is not refilled after settlements',
    suite: 'STOMP subscriptions',
    edits: edit('commands.ts', 'session.planFill(subscription);', ''),
  },
  {
    name: 'an element that a client saw and returned counts no failed try',
    suite: 'model through STOMP',
    edits: shared('outstanding.ts', 'countTry: countTries && delivery.isSeen', 'countTry: false'),
  },
  {
    name: 'an UNSUBSCRIBE forgets the outstanding deliveries of its client',
    suite: 'model through STOMP',
    edits: shared(
      'push-consumer.ts',
      'return unsettled.length === 0 ? null : returnOutstanding(this.queue, unsettled, countTries, this.session);',
      'return null;',
    ),
  },
  {
    name: 'the delay of a NACK is ignored',
    suite: 'model through STOMP',
    edits: edit('commands.ts', '(delayMs ?? STOMP_LIMITS.nackDelayMs)', '0'),
  },
  {
    name: 'a COMMIT does not check whether the client still has the acknowledged deliveries',
    suite: 'model through STOMP',
    edits: edit('transactions.ts', 'await this.#confirmLeases();', ''),
  },
  {
    name: 'an ABORT does not release the deliveries that the transaction acknowledged',
    suite: 'model through STOMP',
    edits: edit(
      'transactions.ts',
      'for (const { outstanding } of this.#settlements) outstanding.isClaimed = false;',
      '',
    ),
  },
  {
    name: 'a COMMIT loses the SENDs of a transaction with an ACK',
    suite: 'model through STOMP',
    edits: edit('transactions.ts', 'inserts: settlement === anchor ? sends : []', 'inserts: []'),
  },
  {
    name: 'a session does not renew the leases of outstanding deliveries',
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
    edits: shared('push-consumer.ts', 'lost: () => this.#onPopLost(delivery),', 'lost: () => {},'),
  },
  {
    name: 'a TLS connection closed by its client loses frames that wait for the login',
    suite: 'STOMP over TLS',
    edits: shared('server.ts', 'socket.allowHalfOpen = true;', ''),
  },
  {
    name: 'a closing WebSocket loses frames sent before',
    suite: 'WebSocket',
    edits: shared('websocket.ts', 'this.#passOn();\n      this.push(null);', 'this.destroy();'),
  },
  {
    name: 'two sessions of a user with open transactions wait for each other',
    suite: 'bodies of sessions',
    edits: shared('client-session.ts', 'if (!mayReceive && this.openBytes > UNCOUNTED_BYTES)', 'if (false)'),
  },
  {
    name: 'a session waits for the place of its body without end',
    suite: 'bodies of sessions',
    edits: [{ file: 'src/access/body-limit.ts', search: 'onTimeout(error);', replace: '' }],
  },
  {
    name: 'a transaction does not count between its COMMIT and its call of the engine',
    suite: 'bodies of sessions',
    edits: edit(
      'session.ts',
      'this.work.begin(frames + 1, bytes);\n    this.endTurn();',
      'this.countHeld();\n    this.work.begin(frames + 1, bytes);',
    ),
  },
  {
    name: 'what sessions have on the way to the engine does not count for their user',
    suite: 'bodies of sessions',
    edits: shared(
      'client-session.ts',
      'this.setPause(PAUSE.work, isFull || isUserFull);',
      'this.setPause(PAUSE.work, isFull);',
    ),
  },
  {
    name: 'large WebSocket messages are buffered for a client that is not logged in',
    suite: 'WebSocket',
    edits: shared('websocket.ts', "if (this.#loginBytes < 0) this.#closeTooBig('before the login');", ''),
  },
  {
    name: 'WebSockets do not count as STOMP connections',
    suite: 'WebSocket',
    edits: shared('websocket.ts', 'server.checkCapacity();', ''),
  },
  {
    name: 'a rejected WebSocket whose client resets the connection stops the server',
    suite: 'WebSocket',
    edits: [
      { file: 'src/http/front.ts', search: "socket.on('error', () => socket.destroy());", replace: '' },
    ],
  },
  {
    name: 'a web page of another site can connect by WebSocket',
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
    name: 'a client whose frames take long delays all others',
    suite: 'turns of sessions',
    edits: shared('client-session.ts', 'clock.monotonic() - startedAt >= MAX_TURN_MS;', 'false;'),
  },
  {
    name: 'all clients that send at once execute frames in one turn of the event loop',
    suite: 'turns of sessions',
    edits: [
      {
        file: 'src/util/input-turns.ts',
        search: 'const MAX_INPUT_MS = 20;',
        replace: 'const MAX_INPUT_MS = Infinity;',
      },
    ],
  },
  {
    name: 'a client waits for all clients of another user that wait',
    suite: 'turns of sessions',
    edits: shared('client-session.ts', 'inputTurns.wait(user, ', "inputTurns.wait('', "),
  },
  {
    name: 'a session that does not read misses heart-beats',
    suite: 'heart-beats',
    edits: shared('heart-beat.ts', 'this.#isPaused ? graceMs : this', 'this'),
  },
  {
    name: 'a receipt is sent before the element is stored',
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
    name: 'a SEND after a COMMIT is stored before it',
    suite: 'STOMP commits',
    edits: edit('session.ts', 'if (storesLater) this.setPause(PAUSE.commit, true);', ''),
  },
  {
    name: 'several frames with the same receipt id are confirmed only once',
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
    name: 'an ACK does not wait for the inserts of an earlier COMMIT',
    suite: 'STOMP commits',
    edits: edit(
      'transactions.ts',
      'await inserts.track((onSent) => queue.insert(elements, { user: this.#user, onSent }));',
      'await queue.insert(elements, { user: this.#user });',
    ),
  },
  {
    name: 'a slow reader is disconnected soon after its DISCONNECT',
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
