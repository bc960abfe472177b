import { fileURLToPath } from 'node:url';
import type { ApiTokens } from '../access/api-tokens.ts';
import type { ConsoleSessions } from '../access/console-sessions.ts';
import { Networks } from '../access/networks.ts';
import type { Authenticator, User } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { EventPublisher } from '../events/publisher.ts';
import type { Exchanges } from '../exchange/exchanges.ts';
import type { BackupReport, EngineHealth, SessionInfo } from '../model/records.ts';
import type { BulkOperations } from '../operations/operations.ts';
import type { Searches } from '../operations/search.ts';
import type { Tracer } from '../tracing/tracer.ts';
import type { Clock } from '../util/clock.ts';
import type { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import type { InputTurns } from '../util/input-turns.ts';
import type { LeveledLog } from '../util/log.ts';
import type { TlsMaterial } from '../util/sockets.ts';
import type { UpgradeHandler } from '../util/upgrade.ts';

/** The options of the HTTP front end, validated by `config`. Durations are in ms, sizes in bytes. */
export interface HttpOptions {
  /** A name, an address, or the path of a Unix socket. */
  readonly host: string;
  /** 0: any free port; see `HttpServer.address`. */
  readonly port: number;
  /** The largest body that is accepted; larger ones are answered with 413. */
  readonly bodyLimit: number;
  /** Elements of one insert of many, and items of one settlement of many. */
  readonly batchCount: number;
  /** The largest body of these requests, and of the response to a take of many. */
  readonly batchBytes: number;
  /** PEM contents; null: plain HTTP. */
  readonly tls: TlsMaterial | null;
  /**
   * Origins (`https://jobs.example`) whose pages may call from a browser, in addition to the one that the request's
   * `Host` names.
   */
  readonly allowedOrigins: readonly string[];
  /** Whether `/metrics` is served without credentials. */
  readonly metricsWithoutLogin: boolean;
  /** Peers whose `X-Forwarded-For` and `Forwarded` are believed. */
  readonly trustedProxies: Networks;
  /** Whether each request is logged when it has ended. */
  readonly logsAccess: boolean;
  /** The folder of the console's built pages; null: the console is off. */
  readonly consoleFolder: string | null;
  /** Maximum number of connections; further ones are closed when they arrive. */
  readonly maxSockets: number;
  /** From the first byte of a request to the end of its header section. */
  readonly headersTimeoutMs: number;
  /**
   * From the first byte of a request to the last byte of its body; waiting for an element does not count. For an
   * import, whose body may have any length, the time without a further byte of it. Also the time without progress after
   * which a client that does not read its response is disconnected.
   */
  readonly requestTimeoutMs: number;
  /** How long an idle connection is kept. */
  readonly keepAliveTimeoutMs: number;
  /** How long `stop` waits for pending responses before it cuts their connections. */
  readonly drainMs: number;
}

/** The values of options that the configuration does not set. */
export const HTTP_DEFAULTS: HttpOptions = {
  host: '127.0.0.1',
  port: 3444,
  bodyLimit: 1_048_576,
  batchCount: 10_000,
  batchBytes: 16_777_216,
  tls: null,
  allowedOrigins: [],
  metricsWithoutLogin: false,
  trustedProxies: new Networks([]),
  logsAccess: false,
  consoleFolder: fileURLToPath(new URL('../../dist/console', import.meta.url)),
  maxSockets: 20_000,
  headersTimeoutMs: 10_000,
  requestTimeoutMs: 60_000,
  keepAliveTimeoutMs: 65_000,
  drainMs: 10_000,
};

/** The entry of a {@link ReadyReport} that is about the node itself. */
export const NODE_CHECK = 'node';

/** Whether this node should get requests. */
export interface ReadyReport {
  readonly ready: boolean;
  /**
   * `ok` or an error for each part: {@link NODE_CHECK}, or the masked URL of an engine. Users see only the engines of
   * namespaces that they may see.
   */
  readonly checks: Readonly<Record<string, string>>;
}

/** The dependencies of the front end. */
export interface HttpParts {
  readonly broker: Broker;
  readonly exchanges: Exchanges;
  readonly operations: BulkOperations;
  readonly events: EventPublisher;
  readonly searches: Searches;
  readonly authenticator: Authenticator;
  readonly tokens: ApiTokens;
  /** Undefined if the console is off; its cookie is then ignored. */
  readonly consoleSessions?: ConsoleSessions;
  readonly options: HttpOptions;
  readonly log: LeveledLog;
  readonly clock: Clock;
  /** The Prometheus text of `/metrics`, without series of namespaces that the viewer may not see. */
  readonly metricsText: (viewer: Pick<User, 'may' | 'maySee'>) => Promise<string>;
  /** The STOMP and AMQP sessions of this node; not given: there are none. */
  readonly sessions?: () => readonly SessionInfo[];
  readonly ready: () => Promise<ReadyReport>;
  /** The engines of this node, each URL once. */
  readonly engines: () => Promise<readonly EngineHealth[]>;
  /** Backs up all engines that support it, under this name; null: one made from the current time. */
  readonly backUp: (name: string | null) => Promise<BackupReport>;
  /** Version of the program, as in `/openapi.json`. */
  readonly version: string;
  /** Creates a span for each request; undefined if tracing is off. */
  readonly tracer?: Tracer;
  /** Those of all front ends; not given: this one has its own. */
  readonly inputTurns?: InputTurns;
  /** The same: see `bodyLimit`. */
  readonly bodies?: ConcurrencyLimit;
  /** Paths on which a connection may become a WebSocket; not given: none. */
  readonly upgrades?: ReadonlyMap<string, UpgradeHandler>;
}
