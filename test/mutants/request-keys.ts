import type { Edit, Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): readonly Edit[] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of request keys: elements that are stored twice, lost as wrong repeats, or returned with wrong ids. */
export const REQUEST_KEYS: readonly Mutant[] = [
  {
    name: 'the ids of a repeat assume one number per element',
    suite: 'request keys on SQLite',
    edits: edit('engines/sqlite/worker/insert.ts', 'seq += numbersOf(groups);', 'seq += 1;'),
  },
  {
    name: 'SQLite accepts other content with a known request key as a repeat',
    suite: 'request keys on SQLite',
    edits: edit(
      'engines/sqlite/worker/insert.ts',
      'if (elements.length === 0 || !isSame) return',
      'if (elements.length === 0) return',
    ),
  },
  {
    name: 'Redis accepts other content with a known request key as a repeat',
    suite: 'request keys on Redis',
    edits: edit(
      'engines/redis/library/insert.lua',
      '(seen == fingerprint and REPEATED or MISMATCHED)',
      'REPEATED',
    ),
  },
  {
    name: 'Redis stores the key of a request that was rejected because of its groups',
    suite: 'request keys on Redis',
    edits: edit(
      'engines/redis/library/insert.lua',
      'if first ~= six(0) then rememberKey(',
      'if first then rememberKey(',
    ),
  },
  {
    name: 'elements in a batch with a keyed request get the id of the first element of their call',
    suite: 'request keys on Redis',
    edits: edit('engines/redis/library/insert.lua', 'six(first + i) .. STORED', 'six(first) .. STORED'),
  },
  {
    name: 'looking up a request key on Redis stores it',
    suite: 'request keys on Redis',
    edits: edit(
      'engines/redis/library/insert.lua',
      'if count == 0 then return six(0) .. STORED end\n',
      'if count == 0 then rememberKey(q, key, six(1), fingerprint, before) return six(0) .. STORED end\n',
    ),
  },
  {
    name: 'all elements of a request have one key on PostgreSQL',
    suite: 'request keys on PostgreSQL',
    edits: edit(
      'engine/request-keys.ts',
      'dedupKey: keyAt(index), fingerprint',
      'dedupKey: keyAt(0), fingerprint',
    ),
  },
  {
    name: 'request keys of the old engine are unknown',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      '? this.#from.insert(queue, elements, { ...options, signal: null })',
      '? this.#to.insert(queue, elements, options)',
    ),
  },
  {
    name: 'an element with another content type counts as a repeat',
    suite: 'request keys over HTTP',
    edits: edit('model/fingerprint.ts', '    a.contentType === b.contentType &&\n', ''),
  },
  {
    name: 'an element with another expiry counts as a repeat',
    suite: 'request keys over HTTP',
    edits: edit('model/fingerprint.ts', 'this.#last.ttlMs !== ttlMs || ', ''),
  },
  {
    name: 'headers and parameters are not compared for a request key',
    suite: 'request keys over HTTP',
    edits: edit('model/fingerprint.ts', 'facts: JSON.stringify(hashedFields(element, ttlMs))', "facts: ''"),
  },
  {
    name: 'a request key is treated as the dedup key of an element',
    suite: 'request keys over HTTP',
    edits: edit('model/fingerprint.ts', '{userKey(user, key)}`;', '{userKey(user, key)}`.slice(1);'),
  },
  {
    name: 'dedup keys of elements in a keyed request are ignored',
    suite: 'request keys over HTTP',
    edits: edit(
      'http/routes/inserts.ts',
      'if (key !== null && element.key !== null) throw secondKey(place, element.key);\n',
      '',
    ),
  },
  {
    name: 'the TypeScript SDK sends no request key',
    suite: 'SDK inserts',
    edits: edit(
      'client/wire.ts',
      "const idempotencyKey = kind === 'random' &&",
      "const idempotencyKey = kind === 'none' &&",
    ),
  },
  {
    name: 'the TypeScript SDK repeats inserts without a key',
    suite: 'SDK inserts',
    edits: edit('client/wire.ts', "isRepeatable: kind !== 'none',", 'isRepeatable: true,'),
  },
  {
    name: 'request keys are shared between users',
    suite: 'keys of users',
    edits: edit(
      'http/routes/inserts.ts',
      'requestKey(user.name, request.key)',
      "requestKey('any', request.key)",
    ),
  },
];
