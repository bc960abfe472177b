import assert from 'node:assert/strict';
import { after, before } from 'node:test';
import { type Account, readAccounts, type UserDefinition } from '../../src/access/account.ts';
import { ApiTokens } from '../../src/access/api-tokens.ts';
import { ConsoleSessions } from '../../src/access/console-sessions.ts';
import { EndedSessions } from '../../src/access/ended-sessions.ts';
import { bearerToken } from '../../src/access/password-authenticator.ts';
import type { Authenticator, User } from '../../src/access/user.ts';
import type { Broker } from '../../src/broker/broker.ts';
import { QueueWatch } from '../../src/broker/queue-watch.ts';
import type { NamespacePolicy } from '../../src/engine/engine.ts';
import {
  exchangePictures,
  nodePictures,
  operationPictures,
  type PictureSource,
} from '../../src/events/pictures.ts';
import { EventPublisher } from '../../src/events/publisher.ts';
import type { Declaration } from '../../src/exchange/declaration.ts';
import { Exchanges } from '../../src/exchange/exchanges.ts';
import { HTTP_DEFAULTS, type HttpOptions, type ReadyReport } from '../../src/http/options.ts';
import { HttpServer } from '../../src/http/server.ts';
import { Metrics } from '../../src/metrics/metrics.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import type { EngineHealth, SessionInfo } from '../../src/model/records.ts';
import { BulkOperations } from '../../src/operations/operations.ts';
import { Searches } from '../../src/operations/search.ts';
import type { SandboxLimits } from '../../src/sandbox/limits.ts';
import { type SelectorSandbox, WorkerSandbox } from '../../src/sandbox/sandbox.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { EngineUnderTest, TestEngine } from '../engines.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { brokerOn, plain, SILENT_LOG } from '../support/broker.ts';
import { DEFAULTS } from '../support/defaults.ts';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';

export interface HarnessOptions {
  /** Defaults to SQLite in memory. */
  readonly engine?: EngineUnderTest;
  readonly namespaces?: readonly NamespacePolicy[];
  /** Max. queues per namespace. */
  readonly maxQueues?: number;
  readonly maxExchanges?: number;
  readonly maxElements?: number;
  readonly maxHops?: number;
  readonly maxCopies?: number;
  readonly users?: readonly UserDefinition[];
  /** Exchanges of the configuration file. */
  readonly configured?: ReadonlyMap<string, Declaration>;
  readonly http?: Partial<HttpOptions>;
  /** Whether queues are watched, which rates and events require. */
  readonly watches?: boolean;
  /** Additional sources of events. */
  readonly eventSources?: (broker: Broker, opened: TestEngine) => readonly PictureSource[];
  /** Max. subscribers of events, in total and per user. */
  readonly maxSubscribers?: { readonly total: number; readonly perUser: number };
  /** Whether lines of level debug are logged. */
  readonly logsDebug?: boolean;
  /** Limits of the selector sandbox; by default they are so generous that a busy machine does not exceed them. */
  readonly limits?: Partial<SandboxLimits>;
  /** Accounts of console sessions; defaults to those of `users`. */
  readonly accountNamed?: (name: string) => Account | null;
  readonly consoleSecret?: string;
  /** Returns the current user for an earlier one; by default the same. */
  readonly renewUser?: Authenticator['renew'];
  /** The sessions of STOMP and AMQP; none by default. */
  readonly sessions?: () => readonly SessionInfo[];
  /** Replaces the text of the metrics. */
  readonly metricsText?: () => string;
  /** Defaults to {@link NamedUsers}. */
  readonly authenticator?: (opened: TestEngine, tokens: ApiTokens) => Authenticator;
}

export const NAMESPACES: readonly NamespacePolicy[] = [
  plain('N'),
  plain('jobs', { deadLetter: { maxTries: 3, queue: '__deadletter__' } }),
  plain('events', { groups: ['default'] }),
  plain('hidden'),
];

const VERSION = '0.0.0-test';

const USERS: readonly UserDefinition[] = [{ name: 'test1', password: 'test1', rights: null }];

export interface LogLine {
  readonly level: 'debug' | 'info' | 'warn' | 'error';
  readonly fields: Readonly<Record<string, unknown>>;
  readonly message: string;
}

/**
 * Engine, broker and HTTP server in this process, with a clock that the test advances. `close` fails the test
 * if something is left over, such as a blocked call, a connection or a timer.
 */
export class Harness {
  readonly opened: TestEngine;
  readonly broker: Broker;
  readonly exchanges: Exchanges;
  readonly operations: BulkOperations;
  readonly tokens: ApiTokens;
  readonly ended: EndedSessions;
  readonly consoleSessions: ConsoleSessions;
  readonly watch: QueueWatch;
  readonly events: EventPublisher;
  readonly server: HttpServer;
  readonly log: readonly LogLine[];
  readiness: ReadyReport = { ready: true, checks: { 'sqlite:test': 'ok' } };
  engines: readonly EngineHealth[] = [];
  readonly #sandbox: SelectorSandbox;
  readonly #clients = new Map<string | null, QueueClient>();
  readonly #queue: { made: number } = { made: 0 };

  private constructor(opened: TestEngine, options: HarnessOptions) {
    const { namespaces = NAMESPACES, users = USERS, http = {}, maxQueues = 1000 } = options;
    const { maxExchanges = 1000, limits } = options;
    const lines: LogLine[] = [];
    const logAt = (level: LogLine['level']) => (fields: object, message: string) =>
      lines.push({ level, fields: fields as LogLine['fields'], message });
    this.opened = opened;
    this.log = lines;
    this.broker = brokerOn(
      namespaces.map((policy) => ({
        policy,
        engine: opened.engine,
        maxQueues,
        maxExchanges,
        ...(options.maxElements !== undefined && { maxElements: options.maxElements }),
      })),
      opened.clock,
      undefined,
      {
        ...SILENT_LOG,
        // An error thrown by a response's own code would otherwise go unnoticed: the call is never answered.
        warn: (fields, message) => {
          if (message === 'a consumer failed') logAt('error')(fields, message);
        },
      },
    );
    const accounts = readAccounts(
      users,
      namespaces.map(({ name }) => name),
    );
    const { clock } = opened;
    this.#sandbox = limits === undefined ? sharedSandbox() : new WorkerSandbox({ limits });
    this.exchanges = new Exchanges({
      broker: this.broker,
      sandbox: this.#sandbox,
      clock: opened.clock,
      random: () => 0.5,
      log: { info: logAt('info'), warn: () => {} },
      maxHops: options.maxHops ?? DEFAULTS.maxHops,
      maxCopies: options.maxCopies ?? DEFAULTS.maxCopies,
      owners: (name) => accounts.get(name)?.user ?? null,
      selectors: true,
      configured: options.configured ?? new Map(),
    });
    this.tokens = new ApiTokens({
      namespaces: this.broker.namespaces(),
      ownerNamed: (name) => accounts.get(name)?.user ?? null,
      clock,
      random: () => 0.5,
      log: { debug: logAt('debug'), warn: logAt('warn') },
    });
    const searches = new Searches({ sandbox: this.#sandbox, clock, selectors: true });
    this.operations = new BulkOperations({
      broker: this.broker,
      userNamed: (name) => accounts.get(name)?.user ?? null,
      searches,
      exchanges: this.exchanges,
      clock,
      random: () => 0.5,
      log: { info: logAt('info'), warn: () => {} },
    });
    this.watch = new QueueWatch(this.broker.namespaces());
    this.events = new EventPublisher({
      namespaces: this.broker.namespaces(),
      watch: this.watch,
      sources: [
        exchangePictures(this.exchanges),
        nodePictures(this.broker),
        operationPictures(this.operations),
        ...(options.eventSources?.(this.broker, opened) ?? []),
      ],
      clock,
      random: () => 0.5,
      limits: options.maxSubscribers ?? DEFAULTS.events,
    });
    const metrics = new Metrics({
      broker: this.broker,
      clock: opened.clock,
      exchanges: this.exchanges,
      operations: this.operations,
      version: VERSION,
      perQueue: true,
      requestTimes: () => this.server.requestTimes,
      engines: async () => [],
      logins: () => ({}),
      events: () => this.events.counts,
      sessions: () => new Map(),
    });
    this.ended = new EndedSessions({
      namespaces: this.broker.namespaces(),
      clock,
      random: () => 0.5,
      log: { warn: logAt('warn'), error: logAt('error') },
    });
    this.consoleSessions = new ConsoleSessions({
      accountNamed: options.accountNamed ?? ((name) => accounts.get(name) ?? null),
      clock,
      idleMs: 1_800_000,
      secret: options.consoleSecret ?? null,
      ended: this.ended,
    });
    this.server = new HttpServer({
      broker: this.broker,
      exchanges: this.exchanges,
      operations: this.operations,
      events: this.events,
      searches,
      authenticator:
        options.authenticator?.(opened, this.tokens) ??
        new NamedUsers(accounts, users, this.tokens, options.renewUser),
      tokens: this.tokens,
      consoleSessions: this.consoleSessions,
      options: { ...HTTP_DEFAULTS, port: 0, ...http },
      log: {
        debug: options.logsDebug === true ? logAt('debug') : () => {},
        info: logAt('info'),
        warn: logAt('warn'),
        error: logAt('error'),
        isLevelEnabled: () => options.logsDebug === true,
      },
      clock: opened.clock,
      metricsText: async (viewer) => options.metricsText?.() ?? metrics.text(viewer),
      ...(options.sessions !== undefined && { sessions: options.sessions }),
      ready: async () => this.readiness,
      engines: async () => this.engines,
      backUp: () => Promise.reject(new QuaysideError('backup-conflict', 'This harness has no files.')),
      version: VERSION,
    });
  }

  static async start(options: HarnessOptions = {}): Promise<Harness> {
    const { engine = MEMORY_SQLITE, namespaces = NAMESPACES } = options;
    const opened = await engine.open({ namespaces });
    let harness: Harness | null = null;
    try {
      harness = new Harness(opened, options);
      await harness.broker.start();
      await harness.exchanges.start();
      await harness.operations.start();
      await harness.tokens.start();
      await harness.ended.start();
      if (options.watches === true) await harness.watch.start();
      await harness.server.start();
      return harness;
    } catch (error) {
      // If the constructor rejects its options, the engine must still be closed.
      await (harness === null ? opened.close() : harness.close());
      throw error;
    }
  }

  get port(): number {
    return this.server.address.port;
  }

  /**
   * The client with these credentials, which opens as many connections as it has requests at once; it is closed with
   * the harness.
   */
  client(credentials: string | null = 'test1:test1'): QueueClient {
    const client =
      this.#clients.get(credentials) ??
      new QueueClient({ url: `http://127.0.0.1:${this.port}`, credentials });
    this.#clients.set(credentials, client);
    return client;
  }

  /** A queue name that no other test uses. */
  queue(): string {
    this.#queue.made += 1;
    return `q${this.#queue.made}`;
  }

  /** Resolves when exactly `count` calls wait. */
  waiting(count: number): Promise<void> {
    return until(() => this.broker.waiting === count);
  }

  passTime(ms: number): Promise<void> {
    return this.opened.passTime(ms);
  }

  faults(): LogLine[] {
    return this.log.filter(({ level }) => level === 'error');
  }

  /** Stops everything in the order in which the server stops. */
  async close(): Promise<void> {
    for (const client of this.#clients.values()) client.close();
    this.server.drain();
    this.broker.drain();
    await this.server.stop();
    await this.operations.stop();
    await this.tokens.stop();
    await this.ended.stop();
    await this.events.stop();
    await this.watch.stop();
    await this.exchanges.stop();
    await this.#sandbox.stop();
    await this.broker.stop();
    assert.equal(this.broker.waiting, 0, 'no call waits after the stop');
    await this.opened.close();
  }
}

/** One harness for all tests of a `describe`. The suite fails if an error was logged. */
export function sharedHarness(options: HarnessOptions = {}): () => Harness {
  let harness: Harness | null = null;
  before(async () => {
    harness = await Harness.start(options);
  });
  after(async () => {
    await harness?.close();
    assert.deepEqual(harness?.faults(), []);
    // The runner keeps this suite until all files of the process have run, and a heap full of them is slow to collect.
    harness = null;
  });
  return () => {
    if (harness === null) throw new Error('The harness is there from the first test to the last.');
    return harness;
  };
}

/** Authenticates the users of a test without a slow hash, but with their real rights. */
export class NamedUsers implements Authenticator {
  readonly #users: ReadonlyMap<string, User>;
  readonly #tokens: ApiTokens;
  readonly renew: Authenticator['renew'];

  loginWithoutPassword(): null {
    return null;
  }

  constructor(
    accounts: ReadonlyMap<string, Account>,
    definitions: readonly UserDefinition[],
    tokens: ApiTokens,
    renew: Authenticator['renew'] = (user) => user,
  ) {
    this.#tokens = tokens;
    this.renew = renew;
    this.#users = new Map(
      definitions.map(({ name, password }) => {
        const account = accounts.get(name);
        if (account === undefined) throw new RangeError(`There is no account ${name}.`);
        return [basic(name, password), account.user];
      }),
    );
  }

  recall(authorization: string): User | null {
    return this.#users.get(authorization) ?? this.#tokens.recall(bearerToken(authorization) ?? '');
  }

  async login(authorization: string): Promise<User> {
    const user = this.#users.get(authorization);
    if (user === undefined) throw new QuaysideError('unauthorized', 'The name or the password is wrong.');
    return user;
  }
}

export function basic(name: string, password: string): string {
  return `Basic ${Buffer.from(`${name}:${password}`).toString('base64')}`;
}

/** The members of a queue's status that tests of takes read. */
export interface Status {
  readonly size: number;
  readonly resvSize: number;
  readonly totalSize: number;
  readonly stats: { readonly get: number; readonly reserve: number; readonly rollback: number };
}

export async function statusOf(harness: Harness, queue: string, ns = 'N'): Promise<Status> {
  return jsonOf<Status>(await harness.client().status(ns, queue));
}
