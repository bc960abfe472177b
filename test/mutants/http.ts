import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of the HTTP front end: typing errors that lose data, and unusual behavior of connections. */
export const HTTP: readonly Mutant[] = [
  {
    name: 'a flag without a value is false, so that ?reserve pops',
    suite: 'HTTP requests',
    edits: edit(
      'http/parameters.ts',
      "if (lower !== '') return !FALSE_WORDS.has(lower);",
      "return lower !== '' && !FALSE_WORDS.has(lower);",
    ),
  },
  {
    name: 'a misspelled parameter is ignored',
    suite: 'HTTP slips',
    edits: edit('http/parameters.ts', 'if (meant === null) return;', 'return;'),
  },
  {
    name: 'a parameter in another case is ignored',
    suite: 'HTTP slips',
    edits: edit(
      'util/did-you-mean.ts',
      'if (candidate.toLowerCase() === name.toLowerCase()) return candidate;',
      '',
    ),
  },
  {
    name: 'an unknown member of a JSON body is ignored',
    suite: 'HTTP exchanges',
    edits: edit(
      'util/schema.ts',
      'else if (additionalProperties === false) {',
      'else if (additionalProperties === null) {',
    ),
  },
  {
    name: 'each chunk of a body is kept as a separate object',
    suite: 'HTTP small chunks',
    edits: edit('util/byte-pieces.ts', 'if (piece.length >= SMALL_BYTES)', 'if (piece.length >= 1)'),
  },
  {
    name: 'pipelined gets take their elements concurrently',
    suite: 'HTTP pipelining',
    edits: edit(
      'http/front.ts',
      'const isPipelined = response.socket === null && call.isRead;',
      'const isPipelined = false;',
    ),
  },
  {
    name: 'a get waits on a connection that is no longer read, and takes an element for a client that disconnected',
    suite: 'HTTP pipelining',
    edits: edit('http/connection.ts', 'if (this.isPaused) this.waitingCall?.onPause?.();', ''),
  },
  {
    name: 'a get starts to wait on a connection that is not read',
    suite: 'HTTP pipelining',
    edits: edit('http/routes/takes.ts', '  if (connection.isPaused) throw inputPaused();\n', ''),
  },
  {
    name: 'a client that half-closes is disconnected',
    suite: 'HTTP half-closed',
    edits: edit(
      'http/server.ts',
      '{ httpAllowHalfOpen: boolean }).httpAllowHalfOpen = true;',
      '{ httpAllowHalfOpen: boolean }).httpAllowHalfOpen = false;',
    ),
  },
  {
    name: 'a get of a client that half-closed keeps waiting, and takes an element after the client disconnected',
    suite: 'HTTP half-closed',
    edits: edit('http/connection.ts', "socket.on('end', () => this.waitingCall?.onInputEnd());", ''),
  },
  {
    name: 'a malformed request behind a pending insert is answered instead of the insert',
    suite: 'HTTP framing',
    edits: edit('http/server.ts', 'if (first?.req.complete) first.once', 'if (first?.closed) first.once'),
  },
  {
    name: 'a waiting call before a malformed request takes an element',
    suite: 'HTTP framing',
    edits: edit(
      'http/connection.ts',
      'this.#unreadable = reason;\n    this.waitingCall?.onInputEnd();',
      'this.#unreadable = reason;',
    ),
  },
  {
    name: 'responses to clients that take and do not read fill the memory',
    suite: 'HTTP clients that go away',
    edits: edit('http/limits.ts', '    this.#unread.enter(user, held);\n', ''),
  },
  {
    name: 'pipelined requests without a login are handled, however many arrive together',
    suite: 'HTTP pipelining',
    edits: edit(
      'http/front.ts',
      'if (count <= MAX_ANONYMOUS_REQUESTS) return false;',
      'if (count > 0) return false;',
    ),
  },
  {
    name: 'requests behind the last one that is handled without a login are still parsed',
    suite: 'HTTP pipelining',
    edits: edit('http/front.ts', 'connection.stopParsing(error);', ''),
  },
  {
    name: 'connections that pipeline wait for their turn in one line for all users',
    suite: 'HTTP input',
    edits: edit('http/connection.ts', 'wait(this.countedFor ?? ', "wait('' ?? "),
  },
  {
    name: 'a connection that is no longer read in parts is read although a body waits',
    suite: 'HTTP input',
    edits: edit('http/connection.ts', ' || this.#isYielding || this.#isBlocked) return;', ') return;'),
  },
  {
    name: 'a parser that skipped a body skips those of later connections',
    suite: 'HTTP bodies',
    edits: edit('http/connection.ts', 'parser[kOnBody] = onBody;', ''),
  },
  {
    name: 'the rest of a rejected body may be any number of small chunks',
    suite: 'HTTP bodies',
    edits: edit('http/request.ts', ' || this.#discardedSmallChunks > DISCARDED_SMALL_CHUNKS', ''),
  },
  {
    name: 'a body that was stored occupies the bytes of its user forever',
    suite: 'HTTP bodies',
    edits: edit('http/request.ts', 'used.then(release, release)', 'used.catch(() => {})'),
  },
  {
    name: 'a body whose client disconnects before its end occupies the bytes of its user forever',
    suite: 'HTTP bodies',
    edits: edit('http/request.ts', "      socket.once('close', onClose);\n", ''),
  },
  {
    name: 'a body that is being stored counts no longer once its client has disconnected',
    suite: 'HTTP bodies',
    edits: edit('http/request.ts', "        socket.off('close', onClose);\n", ''),
  },
  {
    name: 'a body that had to wait occupies its place after its time to arrive',
    suite: 'HTTP bodies',
    edits: edit(
      'http/request.ts',
      '    call.fail(requestTimeout());\n    release();\n',
      '    call.fail(requestTimeout());\n',
    ),
  },
  {
    name: 'a body that was rejected leaves a listener on its connection',
    suite: 'HTTP bodies',
    edits: edit('http/limits.ts', ', onRejected);', ', (error) => call.fail(error));'),
  },
  {
    name: 'large bodies of a user wait for those of another',
    suite: 'HTTP bodies',
    edits: edit('http/limits.ts', 'this.#bodies.tryEnter(user,', "this.#bodies.tryEnter('',"),
  },
  {
    name: 'responses to clients that request long texts and do not read fill the memory',
    suite: 'HTTP clients that go away',
    edits: edit('http/call.ts', 'if (this.isRead) this.front.limits.holdUnread(this, length);', ''),
  },
  {
    name: 'the response to a bulk insert counts only after storing, when it can no longer be rejected',
    suite: 'HTTP clients that go away',
    edits: edit('http/routes/inserts.ts', 'call.front.limits.holdUnread(call, ID_BYTES * batch.length);', ''),
  },
  {
    name: 'responses that were read count as unread forever',
    suite: 'HTTP clients that go away',
    edits: edit('http/limits.ts', 'this.#unread.exit(user, held);', ''),
  },
  {
    name: 'unread responses of two users prevent a third one from taking',
    suite: 'HTTP clients that go away',
    edits: edit('util/user-limit.ts', 'held === 0 || held + count <= guaranteed', 'false'),
  },
  {
    name: 'listings of one user run concurrently',
    suite: 'HTTP listings under load',
    edits: edit('http/limits.ts', 'perKey: 1,', 'perKey: 100,'),
  },
  {
    name: 'the next page starts with the last entry of the previous one',
    suite: 'HTTP pages',
    edits: edit('http/listing.ts', '(name) => name > after', '(name) => name >= after'),
  },
  {
    name: 'a web page of any origin can read responses',
    suite: 'HTTP CORS',
    edits: edit(
      'http/browser.ts',
      'origin !== null && allowedOrigins.has(origin.toLowerCase());',
      'origin !== null;',
    ),
  },
  {
    name: 'the line numbers of a bulk insert skip empty lines',
    suite: 'inserts of many',
    edits: edit('http/sent-elements.ts', 'if (chunk[at] === LINE_FEED) this.#count += 1;', ''),
  },
  {
    name: 'the JSON of a line is stored re-serialized, so that large numbers lose digits',
    suite: 'inserts of many',
    edits: edit('http/sent-elements.ts', 'Buffer.from(jsonText)', 'Buffer.from(JSON.stringify(json))'),
  },
  {
    name: 'of a repeated json in a long line, the first one is stored',
    suite: 'long lines',
    edits: edit(
      'http/sent-elements.ts',
      "if (member === 'json') json = line.slice(from, scanner.at);",
      "if (member === 'json') json ||= line.slice(from, scanner.at);",
    ),
  },
  {
    name: 'a long line may have any number of JSON values outside of json, and parsing it blocks all other requests',
    suite: 'long lines',
    edits: edit('http/sent-elements.ts', 'if (valueCount > FEW_VALUES) throw tooManyValues();', ''),
  },
  {
    name: 'no other request is served while a long line of an import is read',
    suite: 'long lines',
    edits: edit(
      'http/sent-elements.ts',
      'for (; step.done !== true; step = steps.next()) await turn();',
      'while (step.done !== true) step = steps.next();',
    ),
  },
  {
    name: 'a long line with many values is parsed in one turn of the event loop',
    suite: 'long lines',
    edits: edit('util/json-scanner.ts', '!hasMoreValues(text, FEW_VALUES)', 'true'),
  },
  {
    name: 'an array in a long line may end as an object',
    suite: 'JSON scanner',
    edits: edit(
      'util/json-scanner.ts',
      'if (code !== (isInObject ? CLOSE_BRACE : CLOSE_BRACKET)) throw',
      'if (code !== CLOSE_BRACE && code !== CLOSE_BRACKET) throw',
    ),
  },
  {
    name: 'arrays in a long line are taken for objects if they are nested more than 32 deep',
    suite: 'JSON scanner',
    edits: edit(
      'util/json-scanner.ts',
      'const index = depth >>> 5;',
      'const index = Math.min(depth >>> 5, 0);',
    ),
  },
  {
    name: 'all settlements of a call are counted with the kind of the first',
    suite: 'inserts of many',
    edits: edit(
      'broker/queue.ts',
      'meter.countSettled(item, outcome, count);',
      'meter.countSettled(items[0] as SettleItem, outcome, count);',
    ),
  },
  {
    name: 'several settlements of one kind in a call are counted once',
    suite: 'inserts of many',
    edits: edit('broker/queue.ts', '{ commit: count }', '{ commit: 1 }'),
  },
  {
    name: 'elements served together are counted once',
    suite: 'inserts of many',
    edits: edit('broker/wait-queue.ts', '{ reserve: count }', '{ reserve: 1 }'),
  },
  {
    name: 'settlements are counted with the outcome of the first',
    suite: 'inserts of many',
    edits: edit('broker/queue.ts', 'while (results[i + count] === results[i] && isAlike', 'while (isAlike'),
  },
];
