import type { Edit, Mutant } from './mutants.ts';

const inClient = (file: string, search: string, replace: string): Edit => ({
  file: `src/engines/redis/client/${file}`,
  search,
  replace,
});

/** Bugs of the connections to Redis. */
export const REDIS_DRIVER: readonly Mutant[] = [
  {
    name: 'a command that was sent on a lost connection counts as never sent',
    suite: 'redis connection',
    edits: [inClient('connection.ts', 'throw new CommandLost(true);', 'throw new CommandLost(false);')],
  },
  {
    name: 'the driver sends a lost command again',
    suite: 'redis connection',
    edits: [
      inClient('connection.ts', 'retryStrategy: null,', 'retryStrategy: () => 60,'),
      inClient(
        'connection.ts',
        'autoResendUnfulfilledCommands: false',
        'autoResendUnfulfilledCommands: true',
      ),
    ],
  },
  {
    name: 'changes wait for a replica that is permanently gone',
    suite: 'redis connection',
    edits: [inClient('master.ts', 'heartbeatsWithout >= HEARTBEATS', 'heartbeatsWithout < 0 * HEARTBEATS')],
  },
  {
    name: 'a master that may be cut off acknowledges changes without a replica',
    suite: 'redis connection',
    edits: [inClient('master.ts', ' && settings.sentinel === null', '')],
  },
  {
    name: 'a replica that is being synchronized counts as available',
    suite: 'redis connection',
    edits: [inClient('master.ts', " && value.includes('state=online')", '')],
  },
  {
    name: 'a server that vanished without closing the connection is waited for',
    suite: 'redis connection',
    edits: [inClient('connection.ts', 'const SILENCE_MS = 3_000;', 'const SILENCE_MS = 30_000;')],
  },
  {
    name: 'a node that was suspended does not read replies that arrived in that time',
    suite: 'redis connection',
    edits: [inClient('connection.ts', 'runTimer(clock.monotonic() - dueAt,', 'runTimer(0,')],
  },
  {
    name: 'a connection is closed while a long reply arrives',
    suite: 'redis connection',
    edits: [inClient('connection.ts', "socket.on('data', () => this.#noteAlive());", '')],
  },
  {
    name: 'the error of a reply contains the arguments of its command',
    suite: 'redis connection',
    edits: [
      inClient(
        'connection.ts',
        'throw new ReplyError(error.message);',
        'throw Object.assign(new ReplyError(error.message), error);',
      ),
    ],
  },
  {
    name: 'a write is acknowledged although no replica has it',
    suite: 'redis connection',
    edits: [inClient('master.ts', 'Number(count.value) >= wait)', 'Number(count.value) >= 0)')],
  },
  {
    name: 'a server that evicts is used',
    suite: 'redis unfit',
    edits: [inClient('master.ts', "if (policy === 'noeviction') return;", 'if (policy) return;')],
  },
  {
    name: 'a server that starts to evict is still used',
    suite: 'redis away',
    edits: [inClient('master.ts', 'if (error instanceof UnfitRedis) connection.reconnect(error);', '')],
  },
  {
    name: 'the functions are not loaded on a server that has lost them',
    suite: 'redis bad network',
    edits: [
      inClient(
        'executor.ts',
        'return master.loadLibrary().then(',
        'throw execution.failure();\n      return master.loadLibrary().then(',
      ),
    ],
  },
  {
    name: 'a redirection without a host leads to this machine',
    suite: 'redis connection',
    edits: [inClient('topology.ts', "address.startsWith(':') ?", 'address.length === 0 ?')],
  },
  {
    name: 'a server that is cut off from its cluster is asked for the slot map again and again',
    suite: 'redis connection',
    edits: [
      inClient(
        'topology.ts',
        'this.#masters.set(address, doubted);',
        'this.#masters = new Map([[address, doubted], ...this.#masters]);',
      ),
      inClient('topology.ts', 'readonly #masters', '#masters'),
    ],
  },
  {
    name: 'a failed SELECT leaves the connection in database 0',
    suite: 'redis database',
    edits: [inClient('master.ts', 'if (db !== 0) await selectDatabase(connection, db);', '')],
  },
  {
    name: 'every turn sends its own WAIT, however many a stalled replica blocks',
    suite: 'redis connection',
    edits: [
      inClient(
        'connection.ts',
        'if (this.#waiting === null) return this.#sendWait();',
        'return this.#sendWait();',
      ),
    ],
  },
  {
    name: 'a new master of a cluster counts time from 1970 until it replies',
    suite: 'redis cluster',
    edits: [inClient('topology.ts', '      serverTime: this.#serverTime,', '      serverTime: 0,')],
  },
];
