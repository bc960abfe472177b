import type { Edit, Mutant } from './mutants.ts';

const inRedis = (file: string, search: string, replace: string): Edit => ({
  file: `src/engines/redis/${file}`,
  search,
  replace,
});

/** Bugs of the Redis engine that only an outage or a failover brings to light. */
export const REDIS: readonly Mutant[] = [
  {
    name: 'a batch waits until what it sent elsewhere has arrived',
    suite: 'redis batches',
    edits: [
      inRedis(
        'calls/lanes.ts',
        'return { reply, after: around.behind(queues, reply) };',
        'const after = around.behind(queues, reply);\n    for (const task of tasks) await after?.(task);\n    return { reply, after: null };',
      ),
    ],
  },
  {
    name: 'an idle queue that was used again is forgotten, and a second batch overtakes the first',
    suite: 'redis batches',
    edits: [
      inRedis('calls/lanes.ts', 'refusal !== null && lane.isUnused', 'refusal !== null && lane.isSettled'),
      inRedis('calls/lanes.ts', '|| this.#lanes.get(text) !== lane) return;', ') return;'),
      inRedis(
        'calls/lanes.ts',
        '    this.#lanes.delete(text);\n    lane.stopTimer();',
        '    this.#lanes.delete(text);',
      ),
    ],
  },
  {
    name: 'a lease that ran out while the server was away counts a try',
    suite: 'redis outages',
    edits: [inRedis('library/leases.lua', 'if isExcused(held, till) then', 'if false then')],
  },
  {
    name: 'a lease that is given out soon after an outage counts no try',
    suite: 'redis outages',
    edits: [inRedis('library/leases.lua', ' and leasedAt(held) < call.contact', '')],
  },
  {
    name: 'a lease without its delivery ends as if it had one',
    suite: 'redis damage',
    edits: [inRedis('library/leases.lua', 'if not isHeldAt(held, till) then', 'if false then')],
  },
  {
    name: 'a malformed token commits a reservation whose record has no token',
    suite: 'redis damage',
    edits: [
      inRedis('library/settle.lua', '(token == NO_TOKEN or token ~= found.token)', 'token ~= found.token'),
    ],
  },
  {
    name: 'the name of a queue is removed although it was used since it was found unused',
    suite: 'redis forgotten queues',
    edits: [
      inRedis(
        'library/registry.lua',
        "if tonumber(db('ZSCORE', keys[2], name) or -1) ~= seen then return 0 end",
        '',
      ),
    ],
  },
  {
    name: 'a queue that holds something is forgotten',
    suite: 'redis forgotten queues',
    edits: [inRedis('library/registry.lua', "db('ZCARD', keys[2]) > 1 or ", '')],
  },
  {
    name: 'a node that inserts every hour notes no use',
    suite: 'redis forgotten queues',
    edits: [
      inRedis(
        'registry.ts',
        'const SURELY_KNOWN_MS = 12 * USE_NOTED_MS;',
        'const SURELY_KNOWN_MS = Number.POSITIVE_INFINITY;',
      ),
      inRedis('around.ts', 'if (!unknown.includes(each)) registry.noteUse(each);', 'unknown.includes(each);'),
    ],
  },
  {
    name: 'a take whose answer cannot be decoded counts as received',
    suite: 'redis damage',
    edits: [
      inRedis(
        'calls/lane.ts',
        'else if (batch.number > 0) this.#received',
        'if (batch.number > 0) this.#received',
      ),
    ],
  },
  {
    name: 'an element that cannot be decoded is taken again and again',
    suite: 'redis damage',
    edits: [inRedis('calls/lane.ts', 'if (members.length > 0) this', 'if (members.length < 0) this')],
  },
  {
    name: 'the bytes of a namespace leave out the content of its elements',
    suite: 'redis capacity',
    edits: [
      inRedis(
        'usage.ts',
        '[memoryOf(executor, hash), memoryOf(executor, order)]',
        '[memoryOf(executor, order)]',
      ),
    ],
  },
];
