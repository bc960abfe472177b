import type { Edit, Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): readonly Edit[] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of keys of whole requests: elements that are stored twice, lost to a wrong repeat, or named by wrong ids. */
export const REQUEST_KEYS: readonly Mutant[] = [
  {
    name: 'a repeat takes each element for one that drew a single number',
    suite: 'request keys on SQLite',
    edits: edit('engines/sqlite/worker/insert.ts', 'seq += numbersOf(groups);', 'seq += 1;'),
  },
  {
    name: 'SQLite takes other content under the key of a request for a repeat',
    suite: 'request keys on SQLite',
    edits: edit(
      'engines/sqlite/worker/insert.ts',
      'if (elements.length === 0 || !isSame) return',
      'if (elements.length === 0) return',
    ),
  },
  {
    name: 'Redis takes other content under the key of a request for a repeat',
    suite: 'request keys on Redis',
    edits: edit(
      'engines/redis/library/insert.lua',
      '(seen == fingerprint and REPEATED or MISMATCHED)',
      'REPEATED',
    ),
  },
  {
    name: 'Redis remembers the key of a request whose groups do not fit',
    suite: 'request keys on Redis',
    edits: edit(
      'engines/redis/library/insert.lua',
      'if first ~= six(0) then rememberKey(',
      'if first then rememberKey(',
    ),
  },
  {
    name: 'elements that travel with a request that has a key get the id of the first of their call',
    suite: 'request keys on Redis',
    edits: edit('engines/redis/library/insert.lua', 'six(first + i) .. STORED', 'six(first) .. STORED'),
  },
  {
    name: 'a look at a key on Redis stores it',
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
      'dedupKey: keyAt(request, index), fingerprint',
      'dedupKey: keyAt(request, 0), fingerprint',
    ),
  },
  {
    name: 'the keys of requests that the old engine has seen are unknown',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      '? this.#from.insert(queue, elements, { ...options, signal: null })',
      '? this.#to.insert(queue, elements, options)',
    ),
  },
  {
    name: 'an element counts as like the one before although it has another type',
    suite: 'request keys over HTTP',
    edits: edit('model/fingerprint.ts', '    a.contentType === b.contentType &&\n', ''),
  },
  {
    name: 'an element counts as like the one before although it expires at another time',
    suite: 'request keys over HTTP',
    edits: edit('model/fingerprint.ts', 'this.#last.ttlMs !== ttlMs || ', ''),
  },
  {
    name: 'headers and parameters do not count for the key of a request',
    suite: 'request keys over HTTP',
    edits: edit('model/fingerprint.ts', 'facts: JSON.stringify(hashedFields(element, ttlMs))', "facts: ''"),
  },
  {
    name: 'a request with a key is the insert of an element with that key',
    suite: 'request keys over HTTP',
    edits: edit('model/fingerprint.ts', '{userKey(user, key)}`;', '{userKey(user, key)}`.slice(1);'),
  },
  {
    name: 'elements of a request with a key have keys, too, which are ignored',
    suite: 'request keys over HTTP',
    edits: edit(
      'http/routes/elements.ts',
      'if (key !== null && element.key !== null) throw secondKey(place, element.key);\n',
      '',
    ),
  },
  {
    name: 'the TypeScript SDK sends no key of a request',
    suite: 'SDK inserts',
    edits: edit(
      'client/wire.ts',
      "idempotencyKey: kind === 'random' &&",
      "idempotencyKey: kind === 'none' &&",
    ),
  },
  {
    name: 'the TypeScript SDK repeats inserts without a key',
    suite: 'SDK inserts',
    edits: edit('client/wire.ts', "isRepeatable: kind !== 'none',", 'isRepeatable: true,'),
  },
  {
    name: 'users share the keys of requests',
    suite: 'keys of users',
    edits: edit('http/routes/elements.ts', 'requestKey(user.name, key)', "requestKey('any', key)"),
  },
];
