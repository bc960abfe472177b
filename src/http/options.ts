import { fileURLToPath } from 'node:url';
import type { ApiTokens } from '../access/api-tokens.ts';
import type { ConsoleSessions } from '../access/console-sessions.ts';
import { Networks } from '../access/networks.ts';
import type { Authenticator, RenewUser, User } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { SessionInfo } from '../broker/consumer.ts';
import type { EventPublisher } from '../events/publisher.ts';
import type { Exchanges } from '../exchange/exchanges.ts';
import type { BulkOperations } from '../operations/operations.ts';
import type { Searches } from '../operations/search.ts';
import type { Tracer } from '../tracing/tracer.ts';
import type { Clock } from '../util/clock.ts';
import type { LeveledLog } from '../util/log.ts';
import type { TlsMaterial } from '../util/sockets.ts';
import type { UpgradeHandler } from '../util/upgrade.ts';

/** What an operator may set, checked by `config` before it comes here. Lengths are in ms, sizes in bytes. */
export interface HttpOptions {
  /** A name, an address, or the path of a Unix socket. */
  readonly host: string;
  /** 0: any free port; see `HttpServer.address`. */
  readonly port: number;
  /** The largest body that is taken; a larger one is answered with 413. */
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
  /** Connections kept at once; further ones are closed when they come. */
  readonly maxSockets: number;
  /** From the first byte of a request to the end of its header section. */
  readonly headersTimeoutMs: number;
  /**
   * From the first byte of a request to the last of its body; waiting for an element is not counted. Of an import,
   * which may be of any length: how long nothing of its body may come. Also how long a client may take without reading
   * on in its response.
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
   * One entry per part, {@link NODE_CHECK} or the masked URL of an engine: `ok` or what is wrong. A known user is
   * shown those of namespaces that they may see.
   */
  readonly checks: Readonly<Record<string, string>>;
}

/** An engine as this node sees it now. */
export interface EngineReport {
  /** Its masked URL. */
  readonly engine: string;
  readonly type: string;
  readonly state: 'healthy' | 'slow' | 'unavailable';
  /** How long it took to answer a ping; null: it did not answer. */
  readonly pingMs: number | null;
  /**
   * Bytes of its files, and of the space that their disk has; null: it has none on this machine, or they cannot be
   * looked at now.
   */
  readonly disk: {
    readonly fileBytes: number;
    readonly freeBytes: number;
    readonly minFreeBytes: number;
  } | null;
}

/** What a backup holds; the same is its manifest. */
export interface BackupReport {
  readonly name: string;
  readonly folder: string;
  /** ISO 8601. */
  readonly takenAt: string;
  /** Of the program. */
  readonly version: string;
  readonly files: readonly {
    readonly file: string;
    readonly url: string;
    readonly namespaces: readonly string[];
    readonly bytes: number;
  }[];
  /** Engines that have other means, or are in memory. */
  readonly skipped: readonly { readonly url: string; readonly namespaces: readonly string[] }[];
}

/** Everything that the front end needs. */
export interface HttpParts {
  readonly broker: Broker;
  readonly exchanges: Exchanges;
  readonly operations: BulkOperations;
  readonly events: EventPublisher;
  readonly searches: Searches;
  readonly authenticator: Authenticator;
  /** For calls that last. */
  readonly renewUser: RenewUser;
  readonly tokens: ApiTokens;
  /** Not given: the console is off, and its cookie means nothing. */
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
  readonly engines: () => Promise<readonly EngineReport[]>;
  /** Backs up all engines that can, under that name, or that of the time. */
  readonly backUp: (name: string | null) => Promise<BackupReport>;
  /** Of the program; shown in `/openapi.json`. */
  readonly version: string;
  /** Makes a span of each request; not given: there are no spans. */
  readonly tracer?: Tracer;
  /** Paths on which a connection may become a WebSocket; not given: none. */
  readonly upgrades?: ReadonlyMap<string, UpgradeHandler>;
}
