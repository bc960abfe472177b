import { ACCESS } from './access.ts';
import { AMQP } from './amqp.ts';
import { BROKER, EXCHANGE } from './broker.ts';
import { BROWSE } from './browse.ts';
import { CLIENT } from './client.ts';
import { CONSOLE } from './console.ts';
import { EVENTS } from './events.ts';
import { EXCHANGE_USERS } from './exchange.ts';
import { HTTP } from './http.ts';
import { MIGRATE } from './migrate.ts';
import { NODES } from './nodes.ts';
import { OPERATIONS } from './operations.ts';
import { POSTGRES } from './postgres.ts';
import { REDIS } from './redis.ts';
import { REDIS_DRIVER } from './redis-driver.ts';
import { REQUEST_KEYS } from './request-keys.ts';
import { SQLITE } from './sqlite.ts';
import { STOMP } from './stomp.ts';
import { TRACING } from './tracing.ts';

/**
 * Bugs that the tests must find: each is planted in a copy of the source, and its suite is run there. A part of the
 * program that gets a suite gets its mutants here.
 */
export interface Mutant {
  /** The symptom, as in the title of a bug report. */
  readonly name: string;
  readonly edits: readonly Edit[];
  readonly suite: SuiteName;
}

/** Replaces the only occurrence of `search` in the file. */
export interface Edit {
  readonly file: string;
  readonly search: string;
  readonly replace: string;
}

/** Test files, and a pattern of the full names of the tests to run; null: all. */
export interface Suite {
  readonly files: readonly string[];
  readonly pattern: string | null;
}

export const SUITES = {
  'storage model': { files: ['test/contract/model.test.ts'], pattern: 'Storage model: sqlite::memory: ' },
  'storage model with crashes': {
    files: ['test/contract/model.test.ts'],
    pattern: 'Storage model: sqlite agrees',
  },
  contract: { files: ['test/contract/engines.test.ts'], pattern: 'port: sqlite::memory: ' },
  'sqlite batch': { files: ['test/unit/sqlite-batch.test.ts'], pattern: null },
  'sqlite counts': { files: ['test/unit/sqlite-counts.test.ts'], pattern: null },
  'sqlite messages': { files: ['test/unit/sqlite-message.test.ts'], pattern: null },
  'sqlite faults': { files: ['test/system/sqlite-faults.test.ts'], pattern: null },
  'sqlite reload': { files: ['test/system/sqlite-reload.test.ts'], pattern: null },
  'sqlite restart': { files: ['test/system/sqlite-restart.test.ts'], pattern: null },
  'sqlite damage': { files: ['test/system/sqlite-damage.test.ts'], pattern: null },
  'sqlite log': { files: ['test/system/sqlite-log.test.ts'], pattern: null },
  'sqlite files': { files: ['test/system/sqlite-files.test.ts'], pattern: null },
  'sqlite backup': { files: ['test/system/sqlite-backup.test.ts'], pattern: null },
  'backups over HTTP': { files: ['test/system/backup.test.ts'], pattern: null },
  'sqlite forgotten queues': { files: ['test/system/sqlite-forgotten.test.ts'], pattern: null },
  'sqlite dead letters': { files: ['test/system/sqlite-dead-letters.test.ts'], pattern: null },
  'sqlite clock': { files: ['test/system/sqlite-clock.test.ts'], pattern: null },
  'sqlite power loss': { files: ['test/system/sqlite-power-loss.test.ts'], pattern: null },
  'sqlite disk full': { files: ['test/system/sqlite-disk-full.test.ts'], pattern: 'reported as full' },
  'sqlite full disk': { files: ['test/system/sqlite-disk-full.test.ts'], pattern: 'on a full disk' },
  'postgres order': {
    files: ['test/contract/engines.test.ts'],
    pattern: 'Storage port: postgres (calls that overlap (take|settle)|transfer)',
  },
  'postgres streams': { files: ['test/contract/engines.test.ts'], pattern: 'Storage port: postgres streams' },
  'postgres settlements': {
    files: ['test/contract/engines.test.ts'],
    pattern: 'Storage port: postgres (commit|leases|settle)',
  },
  'postgres dead letters': {
    files: ['test/contract/engines.test.ts'],
    pattern: 'Storage port: postgres dead letter',
  },
  'postgres keys': { files: ['test/contract/engines.test.ts'], pattern: 'Storage port: postgres declare' },
  'postgres options': { files: ['test/contract/engines.test.ts'], pattern: 'Storage port: postgres options' },
  'postgres expiry': { files: ['test/engines/expiry.postgres.test.ts'], pattern: null },
  'postgres registry': { files: ['test/engines/registry.postgres.test.ts'], pattern: null },
  'postgres unused queues': { files: ['test/engines/unused-queues.postgres.test.ts'], pattern: null },
  'postgres faults': { files: ['test/engines/faults.postgres.test.ts'], pattern: null },
  'postgres nodes': { files: ['test/engines/nodes.postgres.test.ts'], pattern: 'receives signals after' },
  'postgres races': { files: ['test/engines/races.postgres.test.ts'], pattern: null },
  'postgres housekeeping': { files: ['test/engines/housekeeping.postgres.test.ts'], pattern: null },
  'postgres large settlements': {
    files: ['test/engines/large-settlements.postgres.test.ts'],
    pattern: null,
  },
  'postgres dead entries': { files: ['test/engines/dead-entries.postgres.test.ts'], pattern: null },
  'postgres watermark': { files: ['test/engines/watermark.postgres.test.ts'], pattern: null },
  'contract of inserts on SQLite': {
    files: ['test/contract/engines.test.ts'],
    pattern: 'port: sqlite::memory: declare, queues and insert',
  },
  'request keys on SQLite': {
    files: ['test/contract/engines.test.ts'],
    pattern: 'port: sqlite::memory: the key of a request',
  },
  'request keys on Redis': {
    files: ['test/contract/engines.test.ts'],
    pattern: 'port: redis the key of a request',
  },
  'request keys on PostgreSQL': {
    files: ['test/contract/engines.test.ts'],
    pattern: 'port: postgres the key of a request',
  },
  'request keys over HTTP': {
    files: ['test/http/batches.test.ts'],
    pattern: 'sqlite::memory: .*(request with a key|request key)|a request key cannot be combined',
  },
  'SDK inserts': {
    files: ['test/client/client.test.ts'],
    pattern: 'The client (sends one key|does not repeat)',
  },
  'client library': { files: ['test/client/client.test.ts'], pattern: '^The client$' },
  'workers of the client library': { files: ['test/client/worker.test.ts'], pattern: '^A worker$' },
  'keys of users': { files: ['test/http/elements.test.ts'], pattern: 'idempotency keys of different users' },
  'redis batches': { files: ['test/engines/redis-batches.test.ts'], pattern: null },
  'redis outbox': { files: ['test/engines/redis-outbox.redis.test.ts'], pattern: null },
  'redis calls': { files: ['test/engines/redis-calls.redis.test.ts'], pattern: 'bad network' },
  'redis answers': { files: ['test/engines/redis-answers.redis.test.ts'], pattern: null },
  'redis no trace': { files: ['test/engines/redis-no-trace.redis.test.ts'], pattern: null },
  'redis expiry': { files: ['test/contract/engines.test.ts'], pattern: 'port: redis expiry ' },
  'redis listings': { files: ['test/engines/redis-listing.redis.test.ts'], pattern: null },
  'redis outages': { files: ['test/engines/redis-outage.redis.test.ts'], pattern: null },
  'redis damage': { files: ['test/engines/redis-damage.redis.test.ts'], pattern: null },
  'redis capacity': { files: ['test/engines/redis-capacity.redis.test.ts'], pattern: null },
  'redis forgotten queues': { files: ['test/engines/redis-forgotten.redis.test.ts'], pattern: null },
  'redis upkeep': { files: ['test/engines/redis-upkeep.redis.test.ts'], pattern: null },
  'redis commits': { files: ['test/contract/engines.test.ts'], pattern: 'port: redis commit and rollback ' },
  'redis transfers': { files: ['test/contract/engines.test.ts'], pattern: 'port: redis transfer ' },
  'redis large elements': {
    files: ['test/engines/redis-large.redis.test.ts'],
    pattern: 'takes of a batch|of at most eight pages|whose reply was full',
  },
  'redis lists': {
    files: ['test/engines/redis-list.redis.test.ts'],
    pattern: 'one server (returns no more|stores no dedup keys)|an item that cannot be decoded',
  },
  'redis connection': { files: ['test/engines/redis-connection.test.ts'], pattern: null },
  'redis cluster': {
    files: ['test/engines/redis-cluster.redis.test.ts'],
    pattern: 'time of the other servers|although a silent server|and pops from them',
  },
  'redis nodes': { files: ['test/engines/redis-nodes.redis.test.ts'], pattern: 'before they stop' },
  'redis unfit': { files: ['test/engines/redis-calls.redis.test.ts'], pattern: 'that evicts' },
  'redis bad network': { files: ['test/engines/redis-calls.redis.test.ts'], pattern: 'loads its functions' },
  'redis away': { files: ['test/engines/redis-away.redis.test.ts'], pattern: 'starts to evict' },
  'redis database': {
    files: ['test/engines/redis-database.redis.test.ts'],
    pattern: 'out of range',
  },
  'API tokens that expire': { files: ['test/unit/access-tokens.test.ts'], pattern: null },
  'API tokens in the server': { files: ['test/system/tokens.test.ts'], pattern: null },
  logins: { files: ['test/unit/access-logins.test.ts'], pattern: null },
  'API tokens': { files: ['test/http/tokens.test.ts'], pattern: null },
  'client addresses': { files: ['test/unit/http-client-address.test.ts'], pattern: null },
  'differences of nodes': { files: ['test/broker/agreement.test.ts'], pattern: 'until one of them stops' },
  'questions between nodes': { files: ['test/broker/questions.test.ts'], pattern: null },
  'rights in lists of nodes': { files: ['test/http/node-lists.test.ts'], pattern: null },
  'lists of nodes': { files: ['test/cluster/node-lists.test.ts'], pattern: 'behind Redis' },
  'ended sessions': { files: ['test/unit/access-ended-sessions.test.ts'], pattern: null },
  'access on several nodes': { files: ['test/cluster/access.test.ts'], pattern: 'behind Redis' },
  'agreement of nodes': { files: ['test/broker/agreement.test.ts'], pattern: null },
  tracing: { files: ['test/system/tracing.test.ts'], pattern: null },
  'span exporter': { files: ['test/unit/span-exporter.test.ts'], pattern: null },
  metrics: { files: ['test/unit/metrics.test.ts'], pattern: 'from 0|oldest ready|show an engine' },
  'wait queue': { files: ['test/broker/wait-queue.test.ts'], pattern: null },
  'insert turns': { files: ['test/http/insert-turns.test.ts'], pattern: null },
  'take turns': { files: ['test/http/take-turns.test.ts'], pattern: null },
  'names of queues': { files: ['test/http/limits.test.ts'], pattern: 'A queue retains only its name' },
  'user commands': { files: ['test/unit/user-commands.test.ts'], pattern: null },
  'connections of users': { files: ['test/http/limits.test.ts'], pattern: 'Connections of one user' },
  'joint takes': { files: ['test/broker/joint-take.test.ts'], pattern: null },
  'dead letters': { files: ['test/broker/dead-letter-wake.test.ts'], pattern: 'memory' },
  'a lone node': { files: ['test/broker/alone.test.ts'], pattern: null },
  'wake-ups': { files: ['test/broker/wake-up.test.ts'], pattern: null },
  'undone takes': { files: ['test/broker/undone-takes.test.ts'], pattern: null },
  'options of queues': { files: ['test/broker/queue-options.test.ts'], pattern: 'nodes: sqlite::memory:' },
  'retry delays': { files: ['test/contract/engines.test.ts'], pattern: 'sqlite::memory: retry delay' },
  'redis retry delays': { files: ['test/contract/engines.test.ts'], pattern: 'port: redis retry delay' },
  'postgres retry delays': {
    files: ['test/contract/engines.test.ts'],
    pattern: 'port: postgres retry delay',
  },
  'ends of leases': { files: ['test/broker/sweeper.test.ts'], pattern: null },
  'clocks apart': { files: ['test/broker/clock-skew.test.ts'], pattern: null },
  'model through HTTP': { files: ['test/http/model.test.ts'], pattern: null },
  'HTTP requests': { files: ['test/http/requests.test.ts'], pattern: null },
  'console sessions': { files: ['test/http/console-session.test.ts'], pattern: null },
  'console in a browser': {
    files: ['test/console/connection.test.ts'],
    pattern:
      'break off|a response (never comes|stops)|silent before|start a proxy answered|keeps the dialog|ends a count',
  },
  'console pages': { files: ['test/http/console-files.test.ts'], pattern: null },
  'queues of all namespaces': { files: ['test/http/find-queues.test.ts'], pattern: null },
  'HTTP slips': { files: ['test/http/slips.test.ts'], pattern: null },
  'long lines': { files: ['test/http/long-lines.test.ts'], pattern: null },
  'JSON scanner': { files: ['test/unit/json-scanner.test.ts'], pattern: null },
  'inserts of many': {
    files: ['test/http/batches.test.ts'],
    pattern: 'request bodies|Large batch inserts|sqlite::memory:',
  },
  'HTTP operations': { files: ['test/http/operations.test.ts'], pattern: null },
  operations: {
    files: ['test/operations/actions.test.ts'],
    pattern: 'Bulk operations (on sqlite::memory:|that have ended|while the clock)',
  },
  'operations of many pages': {
    files: ['test/operations/actions.test.ts'],
    pattern: 'Bulk operations on sqlite::memory: (delete|move|copy)',
  },
  'operations of nodes that die': {
    files: ['test/operations/crash.test.ts'],
    pattern: 'bulk operation, on sqlite::memory:',
  },
  'operations that are taken over': { files: ['test/operations/takeover.test.ts'], pattern: null },
  'moves to another engine': { files: ['test/operations/far.test.ts'], pattern: null },
  'joined engines': { files: ['test/contract/migrating.test.ts'], pattern: null },
  migrations: { files: ['test/operations/migrate.test.ts'], pattern: null },
  'HTTP exchanges': { files: ['test/http/exchanges.test.ts'], pattern: null },
  'HTTP small chunks': { files: ['test/http/limits.test.ts'], pattern: 'chunks of one byte' },
  'HTTP pipelining': { files: ['test/http/pipelining.test.ts'], pattern: null },
  'HTTP input': { files: ['test/http/input-turns.test.ts'], pattern: null },
  'HTTP bodies': { files: ['test/http/limits.test.ts'], pattern: 'Bodies over the limit|Bodies of one user' },
  'HTTP half-closed': { files: ['test/http/half-closed.test.ts'], pattern: null },
  'HTTP framing': { files: ['test/http/smuggling.test.ts'], pattern: null },
  'HTTP clients that go away': { files: ['test/http/client-gone.test.ts'], pattern: null },
  'HTTP listings under load': { files: ['test/http/listing-load.test.ts'], pattern: null },
  'HTTP pages': { files: ['test/http/paging.test.ts'], pattern: null },
  'HTTP events': { files: ['test/http/events.test.ts'], pattern: '/GET .events/' },
  'event publisher': { files: ['test/unit/event-publisher.test.ts'], pattern: null },
  'watched queues': { files: ['test/broker/queue-watch.test.ts'], pattern: null },
  'buffered statistics': { files: ['test/unit/buffered-stats.test.ts'], pattern: null },
  'queues of a namespace': { files: ['test/broker/queues.test.ts'], pattern: null },
  'series of queues': { files: ['test/unit/queue-series.test.ts'], pattern: null },
  'HTTP CORS': { files: ['test/http/cors.test.ts', 'test/http/rights.test.ts'], pattern: null },
  'model through STOMP': { files: ['test/stomp/model.test.ts'], pattern: null },
  'STOMP subscriptions': { files: ['test/stomp/subscriptions.test.ts'], pattern: null },
  'STOMP clients that go away': {
    files: ['test/session/session.test.ts'],
    pattern: '/a session of STOMP whose client disconnects/',
  },
  'bodies of sessions': { files: ['test/session/body-bytes.test.ts'], pattern: null },
  WebSocket: { files: ['test/session/web-socket.test.ts'], pattern: null },
  'turns of sessions': {
    files: ['test/session/session.test.ts'],
    pattern: '/executes (frames for a few|its frames soon)/',
  },
  'heart-beats': { files: ['test/session/session.test.ts'], pattern: '/STOMP whose client promised/' },
  'STOMP disconnects': {
    files: ['test/stomp/disconnect.test.ts'],
    pattern: '/that was not stored|reads slowly/',
  },
  'STOMP frame ends': { files: ['test/stomp/trailing-newline.test.ts'], pattern: null },
  'STOMP over TLS': { files: ['test/stomp/tls.test.ts'], pattern: 'before it closed' },
  'STOMP settling': { files: ['test/stomp/settling.test.ts'], pattern: null },
  'STOMP commits': { files: ['test/stomp/commit.test.ts'], pattern: null },
  'STOMP browsing': { files: ['test/stomp/browsing.test.ts'], pattern: null },
  'STOMP slips': { files: ['test/stomp/slips.test.ts'], pattern: null },
  'PROXY headers': { files: ['test/system/proxy-header.test.ts'], pattern: 'A PROXY protocol header' },
  'STOMP conformance': {
    files: ['test/stomp/conformance-1.2.test.ts'],
    pattern: null,
  },
  'model through AMQP': { files: ['test/amqp/model.test.ts'], pattern: null },
  'AMQP credit': { files: ['test/amqp/credit.test.ts'], pattern: null },
  'AMQP settling': { files: ['test/amqp/settling.test.ts'], pattern: null },
  'AMQP sending': { files: ['test/amqp/sending.test.ts'], pattern: null },
  'AMQP elements': { files: ['test/amqp/elements.test.ts'], pattern: null },
  'AMQP clients that go away': {
    files: ['test/session/session.test.ts'],
    pattern: '/a session of AMQP whose client disconnects/',
  },
  'AMQP deliveries': { files: ['test/amqp/deliveries.test.ts'], pattern: null },
  'exchange graphs': { files: ['test/exchange/graph-model.test.ts'], pattern: null },
  exchanges: { files: ['test/exchange/exchanges.test.ts'], pattern: null },
  'selector wait queue': { files: ['test/sandbox/fair-queue.test.ts'], pattern: null },
  'overruns of exchanges': { files: ['test/http/exchange-overrun.test.ts'], pattern: null },
  'copies in loops': { files: ['test/http/exchange-copies.test.ts'], pattern: null },
  'loops through __no_route__': { files: ['test/exchange/unroutable-loops.test.ts'], pattern: null },
  'selectors that write much': {
    files: ['test/sandbox/limits.test.ts'],
    pattern: 'selectors that write much',
  },
  'headers in selectors': { files: ['test/sandbox/header-text.test.ts'], pattern: null },
  'hidden exchanges': { files: ['test/http/exchange-hidden.test.ts'], pattern: null },
  'exchanges without an owner': { files: ['test/exchange/unowned.test.ts'], pattern: null },
  'documents of definitions': {
    files: ['test/http/definitions.test.ts'],
    pattern: 'A document of definitions',
  },
  'changed exchanges': { files: ['test/http/exchange-change.test.ts'], pattern: null },
  'HTTP browsing': {
    files: ['test/http/browse.test.ts'],
    pattern: '/^(Browsing$|Browsing over HTTP, sqlite::memory:)/',
  },
  searches: {
    files: ['test/operations/search.test.ts'],
    pattern: '/^(Search rejects|Search, sqlite::memory:)/',
  },
  'full destinations': { files: ['test/exchange/full-destination.test.ts'], pattern: null },
  'taken elements': { files: ['test/exchange/taken-limit.test.ts'], pattern: null },
  'bytes in flight': { files: ['test/exchange/in-flight-limit.test.ts'], pattern: null },
} as const satisfies Record<string, Suite>;
export type SuiteName = keyof typeof SUITES;

/** By part of the program. */
export const MUTANTS: Readonly<Record<string, readonly Mutant[]>> = {
  client: CLIENT,
  sqlite: SQLITE,
  postgres: POSTGRES,
  redis: REDIS,
  'redis-driver': REDIS_DRIVER,
  'request-keys': REQUEST_KEYS,
  access: ACCESS,
  broker: BROKER,
  nodes: NODES,
  tracing: TRACING,
  exchange: EXCHANGE,
  'exchange users': EXCHANGE_USERS,
  http: HTTP,
  console: CONSOLE,
  browse: BROWSE,
  operations: OPERATIONS,
  migrate: MIGRATE,
  events: EVENTS,
  stomp: STOMP,
  amqp: AMQP,
};
