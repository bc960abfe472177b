import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of the HTTP front end: slips that destroy, and connections that do not behave as most do. */
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
    name: 'a misspelt parameter is ignored',
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
      'model/members.ts',
      'if (known === null || unknownName === undefined',
      'if (known !== undefined || unknownName === undefined',
    ),
  },
  {
    name: 'each chunk of a body is kept as an object of its own',
    suite: 'HTTP small chunks',
    edits: edit('util/byte-pieces.ts', 'if (piece.length >= SMALL_BYTES)', 'if (piece.length >= 1)'),
  },
  {
    name: 'pipelined gets take their elements at once',
    suite: 'HTTP pipelining',
    edits: edit(
      'http/front.ts',
      'const isPipelined = response.socket === null && READ_METHODS.has(request.method);',
      'const isPipelined = false;',
    ),
  },
  {
    name: 'a get waits on a connection that is no longer read, and takes an element for a client that left',
    suite: 'HTTP pipelining',
    edits: edit('http/request.ts', "  socket.on('pause', check);\n", ''),
  },
  {
    name: 'a get begins to wait on a connection that is not read',
    suite: 'HTTP pipelining',
    edits: edit('http/routes/takes.ts', '  if (socket.isPaused()) throw inputPaused();\n', ''),
  },
  {
    name: 'a client that half-closes is cut off',
    suite: 'HTTP half-closed',
    edits: edit(
      'http/server.ts',
      '{ httpAllowHalfOpen: boolean }).httpAllowHalfOpen = true;',
      '{ httpAllowHalfOpen: boolean }).httpAllowHalfOpen = false;',
    ),
  },
  {
    name: 'a get of a client that half-closed waits on, and takes an element for one that left',
    suite: 'HTTP half-closed',
    edits: edit('http/request.ts', "  socket.on('end', run);\n", ''),
  },
  {
    name: 'what is broken behind an insert in flight is answered in its place',
    suite: 'HTTP framing',
    edits: edit('http/server.ts', 'if (first?.req.complete) first.once', 'if (first?.closed) first.once'),
  },
  {
    name: 'a call that waits in front of what is broken takes an element',
    suite: 'HTTP framing',
    edits: edit('http/request.ts', '  socket.on(UNREADABLE_EVENT, run);\n', ''),
  },
  {
    name: 'clients that take and do not read fill the memory',
    suite: 'HTTP clients that go away',
    edits: edit('http/front.ts', '    this.#unread.enter(user, held);\n', ''),
  },
  {
    name: 'clients that ask for long texts and do not read fill the memory',
    suite: 'HTTP clients that go away',
    edits: edit(
      'http/call.ts',
      'if (READ_METHODS.has(this.request.method)) this.front.holdUnread(this, length);',
      '',
    ),
  },
  {
    name: 'the response to an insert of many counts when all is stored, so that it cannot be rejected',
    suite: 'HTTP clients that go away',
    edits: edit(
      'http/routes/elements.ts',
      'call.front.holdUnread(call, RECORD_BYTES.id * batch.length);',
      '',
    ),
  },
  {
    name: 'what was read counts as unread for ever',
    suite: 'HTTP clients that go away',
    edits: edit('http/front.ts', 'this.#unread.exit(user, held);', ''),
  },
  {
    name: 'what two users have not read keeps a third one from taking',
    suite: 'HTTP clients that go away',
    edits: edit('util/user-limit.ts', 'held === 0 || held + count <= guaranteed', 'false'),
  },
  {
    name: 'listings of one user run at the same time',
    suite: 'HTTP listings under load',
    edits: edit('http/front.ts', 'perKey: 1,', 'perKey: 100,'),
  },
  {
    name: 'the next page begins with the last entry of the one before',
    suite: 'HTTP pages',
    edits: edit('http/listing.ts', '(name) => name > after', '(name) => name >= after'),
  },
  {
    name: 'a page of any origin may read responses',
    suite: 'HTTP CORS',
    edits: edit(
      'http/browser.ts',
      'origin !== null && allowedOrigins.has(origin.toLowerCase());',
      'origin !== null;',
    ),
  },
  {
    name: 'the lines of an insert of many are counted without the empty ones',
    suite: 'inserts of many',
    edits: edit('http/sent-elements.ts', 'if (chunk[at] === LINE_FEED) this.#count += 1;', ''),
  },
  {
    name: 'the json of a line is stored as it was parsed, so that large numbers lose digits',
    suite: 'inserts of many',
    edits: edit(
      'http/sent-elements.ts',
      "Buffer.from(memberSource(line, 'json'))",
      'Buffer.from(JSON.stringify(json))',
    ),
  },
  {
    name: 'all settlements of one call are counted as the first is',
    suite: 'inserts of many',
    edits: edit(
      'broker/queue.ts',
      'meter.countSettled(item, outcome, count);',
      'meter.countSettled(items[0] as SettleItem, outcome, count);',
    ),
  },
  {
    name: 'settlements of one kind in one call are counted as one',
    suite: 'inserts of many',
    edits: edit('broker/queue.ts', '{ commit: count }', '{ commit: 1 }'),
  },
  {
    name: 'what is served together is counted as one',
    suite: 'inserts of many',
    edits: edit('broker/wait-queue.ts', '{ reserve: count }', '{ reserve: 1 }'),
  },
  {
    name: 'settlements are counted as the first of them ended',
    suite: 'inserts of many',
    edits: edit('broker/queue.ts', 'while (results[i + count] === results[i] && isAlike', 'while (isAlike'),
  },
];
