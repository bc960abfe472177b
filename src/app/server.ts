import { hostname } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { accountChanges } from '../access/account.ts';
import { ApiTokens } from '../access/api-tokens.ts';
import { ConsoleSessions, EndedSessions } from '../access/console-sessions.ts';
import { KnownLogins } from '../access/known-logins.ts';
import { PasswordAuthenticator } from '../access/password-authenticator.ts';
import type { User } from '../access/user.ts';
import type { NewAdministrator } from '../access/users-file.ts';
import { Broker } from '../broker/broker.ts';
import { nodeText, VariantConflict } from '../broker/cluster.ts';
import { MigrationTargetMissing } from '../broker/migration.ts';
import { QueueWatch } from '../broker/queue-watch.ts';
import { ConfigError, type ErrorAt, type Path, pathText } from '../config/load.ts';
import type { Config } from '../config/options.ts';
import type { Engine } from '../engine/engine.ts';
import {
  Alarms,
  ExchangePictures,
  NodePictures,
  OperationPictures,
  type WatchedDisk,
} from '../events/pictures.ts';
import { EventPublisher } from '../events/publisher.ts';
import { Exchanges } from '../exchange/exchanges.ts';
import { type EngineReport, HTTP_DEFAULTS, NODE_CHECK, type ReadyReport } from '../http/options.ts';
import { HttpServer } from '../http/server.ts';
import { Metrics } from '../metrics/metrics.ts';
import { BulkOperations } from '../operations/operations.ts';
import { Searches } from '../operations/search.ts';
import { makeSandbox, type SelectorSandbox } from '../sandbox/sandbox.ts';
import type { SessionServer } from '../session/server.ts';
import { type Clock, systemClock } from '../util/clock.ts';
import { isRecord } from '../util/is-record.ts';
import type { LeveledLog } from '../util/log.ts';
import { maskUrl } from '../util/mask.ts';
import { type Service, ServiceStack, withStartError } from '../util/service.ts';
import type { UpgradeHandler } from '../util/upgrade.ts';
import { Backups } from './backups.ts';
import { checkDataDir, DATA_FILES, dateWarnings, hostWarnings } from './checks.ts';
import { checkExchanges, parseExchanges } from './configured-exchanges.ts';
import { type EngineSet, loadEngines, namespaceSetups } from './engines.ts';
import {
  FRONT_ENDS,
  FrontEnd,
  loadSessionServer,
  loadWebSocket,
  readCertificate,
  readListener,
  readProxies,
} from './listeners.ts';
import type { Tracing } from './tracing.ts';
import { type LoadedUsers, loadUsers, saveUsers, sharedUsersWarnings } from './users.ts';

/** What a server needs in addition to its configuration. */
interface ServerParts {
  readonly log: LeveledLog;
  readonly version: string;
  readonly clock?: Clock;
  /** 0 (inclusive) to 1. */
  readonly random?: () => number;
  /** Makes the errors of values of the configuration that cannot be used. */
  readonly errorAt?: ErrorAt;
}

/**
 * A stop during the start waits for so many at most: each file of SQLite has a thread, and hundreds of them take longer
 * than a stop may.
 */
const ENGINES_AT_ONCE = 16;

/** A server that is not started yet. Nothing is opened, bound or read before `start`. */
export function createServer(config: Config, parts: ServerParts): Server {
  return new Server(config, {
    clock: systemClock,
    random: Math.random,
    errorAt: (path, problem, hint) =>
      new ConfigError([{ source: null, path: pathText(path), problem, hint }]),
    ...parts,
  });
}

/** The parts that are called once front ends listen. */
interface Running {
  readonly broker: Broker;
  readonly exchanges: Exchanges;
  readonly authenticator: PasswordAuthenticator;
  readonly tokens: ApiTokens;
  readonly consoleSessions: ConsoleSessions;
  readonly events: EventPublisher;
  readonly http: FrontEnd<HttpServer>;
  /** The front ends other than HTTP that have a port. */
  readonly sessions: readonly FrontEnd<SessionServer>[];
}

/** What events are made of. */
interface EventParts {
  readonly broker: Broker;
  readonly exchanges: Exchanges;
  readonly operations: BulkOperations;
  readonly watch: QueueWatch;
  readonly disks: readonly WatchedDisk[];
}

/**
 * The composition root: builds engines, broker, exchanges and front ends from a configuration, starts them in this
 * order, and stops them in the reverse one.
 */
export class Server implements Service {
  /** Resolves, once, when an engine cannot keep its promises any more: stop, and report why. */
  readonly failed: Promise<Error>;
  readonly #config: Config;
  readonly #parts: Required<ServerParts>;
  readonly #stack = new ServiceStack();
  readonly #readiness: Readiness;
  readonly #fail: (error: Error) => void;
  #running: Running | null = null;
  #newAdministrator: NewAdministrator | null = null;
  #starting: Promise<void> | null = null;
  #stopping: Promise<void> | null = null;

  constructor(config: Config, parts: Required<ServerParts>) {
    this.#config = config;
    this.#parts = parts;
    this.#readiness = new Readiness(parts.clock);
    const { promise, resolve } = Promise.withResolvers<Error>();
    this.failed = promise;
    this.#fail = resolve;
  }

  /**
   * Base address of the HTTP interface; `unix:` and a path for a Unix socket.
   * @throws Error before `start` has resolved
   */
  get url(): string {
    return this.#started.http.url;
  }

  /** Addresses of the front ends other than HTTP, by name. @throws Error before `start` has resolved */
  get otherUrls(): Readonly<Record<string, string>> {
    return Object.fromEntries(this.#started.sessions.map(({ name, url }) => [name, url]));
  }

  /** Set after a first start: to be shown once, then forgotten. */
  get newAdministrator(): NewAdministrator | null {
    return this.#newAdministrator;
  }

  get #started(): Running {
    if (this.#running === null) throw new Error('The server is not started.');
    return this.#running;
  }

  /**
   * Resolves when requests are answered.
   * @throws ConfigError if something that the configuration names cannot be used
   */
  start(): Promise<void> {
    this.#starting ??= this.#start();
    return this.#starting;
  }

  /**
   * Rejects new requests that would wait, ends those that do, and changes `/readyz`. Everything else continues, though
   * each response over HTTP ends its connection.
   */
  drain(): void {
    this.#readiness.drain();
    // First, so that the responses to requests that wait end their connections, too.
    this.#running?.http.server.drain();
    this.#running?.broker.drain();
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  /**
   * Applies the users and certificates of a configuration that was read again. All or nothing.
   * @throws ConfigError
   */
  async reload(config: Config): Promise<void> {
    if (this.#running === null || this.#stopping !== null) return;
    const { authenticator, tokens, consoleSessions, exchanges, http, sessions } = this.#running;
    const { clock, log, errorAt } = this.#parts;
    await checkUnopened(config, this.#parts);
    const { accounts, created, warnings } = await loadUsers(config, errorAt);
    if (created !== null) {
      const problem = 'names no users, and there are none in users.json';
      throw new ConfigError([{ source: null, path: 'http.users', problem, hint: 'Name one, or restart' }]);
    }
    const messages = [...warnings];
    const listeners: readonly FrontEnd[] = [http, ...sessions];
    const certificates = await Promise.all(
      listeners.map(({ name }) =>
        readCertificate(config, name, errorAt, (message) => messages.push(message)),
      ),
    );
    for (const [i, { name }] of listeners.entries())
      messages.push(...dateWarnings(config[name].tls, certificates[i], clock));
    const before = authenticator.accounts;
    const changes = accountChanges(before, accounts);
    authenticator.replaceAccounts(accounts);
    this.#renewUsers(this.#running, null);
    await exchanges.stopUnowned();
    // Nodes that have not read the users again accept what ended here until they know.
    const passwords = [...changes.removed, ...changes.changed].flatMap((name) => before.get(name) ?? []);
    await Promise.all([
      tokens.revokeOf(changes.removed),
      // What cannot be stored now is logged, and stored later.
      ...passwords.map((account) => consoleSessions.endPassword(account).catch(() => {})),
    ]);
    for (const [i, { server }] of listeners.entries()) {
      const tls = certificates[i];
      if (tls) server.reloadTls(tls);
    }
    for (const message of messages) log.warn({}, message);
    log.info({ event: 'reload', users: accounts.size, ...changes }, 'users and certificate were read again');
    const options = changedOptions(this.#config, config);
    if (options.length > 0) {
      log.warn({ event: 'reload', options }, `${options.join(', ')} changed as well and need a restart`);
    }
  }

  /**
   * Ends what lasts of users who are gone: sessions, calls that wait, and streams of events. The others get their
   * rights of now.
   * @param of only what lasts of these; null: of all
   */
  #renewUsers({ authenticator, http, sessions, events }: Running, of: ReadonlySet<User> | null): void {
    const renew = (user: User): User | null => authenticator.renew(user);
    for (const { server } of [http, ...sessions]) server.renewUsers(renew, of);
    events.renewUsers(renew, of);
  }

  async #start(): Promise<void> {
    this.#checkNotStopping();
    const { clock, log, version, errorAt } = this.#parts;
    const config = this.#config;
    checkDataDir(config, errorAt);
    const warnings: string[] = [];
    const warn = (message: string): unknown => warnings.push(message);
    const settings = {
      http: await readListener(config, 'http', errorAt, warn),
      stomp: await readListener(config, 'stomp', errorAt, warn),
      amqp: await readListener(config, 'amqp', errorAt, warn),
    };
    const users = await loadUsers(config, errorAt);
    for (const name of FRONT_ENDS)
      warnings.push(...dateWarnings(config[name].tls, settings[name]?.tls, clock));
    warnings.push(...users.warnings, ...sharedUsersWarnings(config), ...hostWarnings(config));
    for (const warning of warnings) log.warn({}, warning);

    const tracing = await this.#startTracing();
    const engines = await this.#startEngines();
    const broker = await this.#startBroker(engines, tracing);
    const watch = new QueueWatch({ namespaces: broker.namespaces(), clock });
    await this.#startParts(watch);
    const tokens = new ApiTokens({
      namespaces: broker.namespaces(),
      ownerNamed: (name) => authenticator.userNamed(name),
      clock,
      random: this.#parts.random,
      log,
    });
    const authenticator: PasswordAuthenticator = await this.#startAuthenticator(users, tokens);
    await this.#startParts(tokens);
    const sandbox = await this.#startSandbox();
    const exchanges = await this.#startExchanges(broker, authenticator, sandbox);
    const searches = new Searches({ sandbox, clock, selectors: config.selectors === 'on' });
    const operations = await this.#startOperations(broker, authenticator, searches, exchanges);
    const shared = { broker, authenticator, clock, log, version };
    const sessions: FrontEnd<SessionServer>[] = [];
    const upgrades = new Map<string, UpgradeHandler>();
    for (const name of ['stomp', 'amqp'] as const) {
      const own = settings[name];
      if (own === null) continue;
      const server = await loadSessionServer(name, config, own, shared);
      sessions.push(new FrontEnd(name, server, config, errorAt));
      if (config[name].webSocket) upgrades.set(`/${name}`, await loadWebSocket(name, server, own));
    }
    const backups = new Backups({ config, engines, clock, version });
    const byEngine = broker.namespacesByEngine();
    const disks = engines.all().flatMap(({ engine: { disk, url } }) => {
      const engine = maskUrl(url);
      return disk === undefined ? [] : [{ engine, neededBy: byEngine.get(engine) ?? [], usage: disk }];
    });
    const events = this.#makeEvents({ broker, exchanges, operations, watch, disks });
    await this.#startParts(events);
    const metrics = new Metrics({
      broker,
      clock,
      exchanges,
      operations,
      disks,
      version,
      perQueue: config.metrics.perQueue,
      requestTimes: () => http.server.requestTimes,
      logins: () => ({ ...authenticator.counts }),
      events: () => events.counts,
      ...(tracing !== null && { spans: () => tracing.exporter.counts }),
      sessions: () => new Map(sessions.map(({ name, server }) => [name, server.counts])),
    });
    const { allowedOrigins, metricsWithoutLogin, batchCount, batchBytes } = config.http;
    const many = { batchCount, batchBytes };
    const { enabled, idle, secret = null } = config.console;
    const ended = new EndedSessions({
      namespaces: broker.namespaces(),
      clock,
      random: this.#parts.random,
      log,
    });
    await this.#startParts(ended);
    const consoleSessions = new ConsoleSessions({
      accountNamed: (name) => authenticator.accountNamed(name),
      clock,
      idleMs: idle * 1000,
      secret,
      ended,
    });
    const httpServer = new HttpServer({
      ...shared,
      renewUser: (user) => authenticator.renew(user),
      tokens,
      ...(enabled && { consoleSessions }),
      exchanges,
      operations,
      events,
      searches,
      options: {
        ...HTTP_DEFAULTS,
        ...settings.http,
        ...many,
        allowedOrigins,
        metricsWithoutLogin,
        ...(!enabled && { consoleFolder: null }),
      },
      metricsText: (viewer) => metrics.text(viewer),
      sessions: () => sessions.flatMap(({ server }) => server.describeSessions()),
      ready: () => this.#readiness.report(),
      engines: () => this.#readiness.engines(),
      backUp: (name) => backups.make(name),
      upgrades,
      ...(tracing !== null && { tracer: tracing.tracer }),
    });
    const http = new FrontEnd('http', httpServer, config, errorAt);
    const running = { broker, exchanges, authenticator, tokens, consoleSessions, events, http, sessions };
    // Before they listen: one front end serves while another fails to start, and the stop must drain what it serves.
    this.#running = running;
    tokens.onEnded((users) => this.#renewUsers(running, users));
    await this.#startParts(http, ...sessions);
    if (users.created !== null) await saveUsers(config, [users.created.definition], errorAt);
    this.#newAdministrator = users.created;
    this.#readiness.open();
    log.info({ event: 'start', pid: process.pid, url: this.url, ...this.otherUrls }, 'listening');
  }

  /** First, so that it is stopped last: the stop of all others may end spans. Null if it is off. */
  async #startTracing(): Promise<Tracing | null> {
    const { tracing } = this.#config;
    if (tracing === undefined) return null;
    // Loaded only if it is on: nobody else should pay for it at a start.
    const { openTracing } = await import('./tracing.ts');
    const opened = openTracing(tracing, this.#parts);
    await this.#startParts(opened.exporter);
    return opened;
  }

  async #startEngines(): Promise<EngineSet> {
    const engines = await loadEngines(this.#config, this.#parts);
    const services = engines.all().map(({ service }) => service);
    for (let from = 0; from < services.length; from += ENGINES_AT_ONCE) {
      await this.#startParts(...services.slice(from, from + ENGINES_AT_ONCE));
    }
    for (const { engine } of engines.all()) {
      this.#readiness.watch(maskUrl(engine.url), engine);
      void engine.failed.then((error) => this.#fail(error));
    }
    return engines;
  }

  /** A variant that other nodes forbid is an error of the configuration that names it. */
  async #startBroker(engines: EngineSet, tracing: Tracing | null): Promise<Broker> {
    const { log, version, errorAt } = this.#parts;
    const setups = namespaceSetups(this.#config, engines, log);
    const broker = new Broker({
      ...this.#parts,
      node: { host: hostname(), pid: process.pid, version },
      namespaces: tracing === null ? setups : tracing.trace(setups),
      waiting: this.#config.waiting,
    });
    await this.#startParts(
      withStartError(broker, (error) => {
        if (error instanceof MigrationTargetMissing) {
          return errorAt(
            ['namespaces', error.namespace, 'url'],
            `names the engine that the namespace leaves for that of namespace ${error.to}, which is not configured on another engine`,
            `Configure ${error.to} as before, or if the move is done, name its engine here`,
          );
        }
        if (!(error instanceof VariantConflict)) return error;
        const { namespace, here, there, node } = error;
        return errorAt(
          ['namespaces', namespace, 'variant'],
          `is ${here}, and node ${nodeText(node)} serves the namespace as ${there}`,
          'Use the variant of the other nodes, or stop them first',
        );
      }),
    );
    return broker;
  }

  async #startAuthenticator({ accounts }: LoadedUsers, tokens: ApiTokens): Promise<PasswordAuthenticator> {
    const { clock, log } = this.#parts;
    const known = new KnownLogins(join(this.#config.dataDir, DATA_FILES.logins), clock, log);
    await this.#startParts(known);
    return new PasswordAuthenticator({ ...this.#parts, accounts, known, tokens });
  }

  /**
   * Stopped after what uses it. Nothing starts it before the first selector: its thread costs as much as the rest of a
   * start.
   */
  async #startSandbox(): Promise<SelectorSandbox> {
    const sandbox = makeSandbox({ clock: this.#parts.clock });
    await this.#startParts({ start: async () => {}, stop: () => sandbox.stop() });
    return sandbox;
  }

  async #startOperations(
    broker: Broker,
    authenticator: PasswordAuthenticator,
    searches: Searches,
    exchanges: Exchanges,
  ): Promise<BulkOperations> {
    const { clock, random, log } = this.#parts;
    const userNamed = (name: string) => authenticator.userNamed(name);
    const operations = new BulkOperations({ broker, searches, userNamed, exchanges, clock, random, log });
    await this.#startParts(operations);
    return operations;
  }

  /** What keeps a configured exchange from starting (a namespace, a selector) is an error of the configuration. */
  async #startExchanges(
    broker: Broker,
    authenticator: PasswordAuthenticator,
    sandbox: SelectorSandbox,
  ): Promise<Exchanges> {
    const { clock, random, log, errorAt } = this.#parts;
    const { selectors, maxHops, maxCopies } = this.#config;
    const configured = parseExchanges(this.#config, errorAt);
    const exchanges = new Exchanges({
      broker,
      sandbox,
      clock,
      random,
      log,
      maxHops,
      maxCopies,
      selectors: selectors === 'on',
      configured,
      owners: (name) => authenticator.userNamed(name),
    });
    await this.#startParts({
      async start() {
        await checkExchanges(configured, (declaration) => exchanges.check(declaration), errorAt);
        await exchanges.start();
      },
      stop: () => exchanges.stop(),
    });
    return exchanges;
  }

  #makeEvents({ broker, exchanges, operations, watch, disks }: EventParts): EventPublisher {
    const { clock, random } = this.#parts;
    const namespaces = broker.namespaces();
    const engineChecks = async (): Promise<Readonly<Record<string, string>>> => {
      const { [NODE_CHECK]: _, ...engines } = (await this.#readiness.report()).checks;
      return engines;
    };
    return new EventPublisher({
      namespaces,
      watch,
      sources: [
        new ExchangePictures(exchanges),
        new NodePictures(broker),
        new OperationPictures(operations),
        new Alarms({ namespaces, engineChecks, disks, clock }),
      ],
      clock,
      random,
      limits: this.#config.events,
    });
  }

  /** Starts parts that do not depend on each other. @throws Error if the server was stopped by then */
  async #startParts(...parts: readonly Service[]): Promise<void> {
    await this.#stack.startAll(parts);
    this.#checkNotStopping();
  }

  async #stop(): Promise<void> {
    this.drain();
    // A start in progress ends at its next step.
    await this.#starting?.catch(() => {});
    this.drain();
    await this.#stack.stop();
  }

  #checkNotStopping(): void {
    if (this.#stopping !== null) throw new Error('The server was stopped before it had started.');
  }
}

/**
 * Checks what a start would check without opening anything: a restart should not be the first to find it.
 * @throws ConfigError
 */
async function checkUnopened(config: Config, parts: Required<ServerParts>): Promise<void> {
  const { errorAt } = parts;
  for (const name of FRONT_ENDS) if (config[name].port !== undefined) readProxies(config, name, errorAt);
  parseExchanges(config, errorAt);
  await loadEngines(config, parts);
}

/** Options that a reload does not apply and whose values differ, by their paths, in the order of the first. */
function changedOptions(before: Config, after: Config): string[] {
  return differences(restartOptions(before), restartOptions(after)).map(pathText);
}

/** What takes a restart. Of certificates that is which there are. */
function restartOptions({ http: { users, tls, ...http }, stomp, amqp, ...config }: Config): object {
  const namesOf = (files: object | undefined): string[] | undefined => files && Object.keys(files).sort();
  return {
    ...config,
    http: { ...http, tls: namesOf(tls) },
    stomp: { ...stomp, tls: namesOf(stomp.tls) },
    amqp: { ...amqp, tls: namesOf(amqp.tls) },
  };
}

function differences(before: unknown, after: unknown, path: Path = []): Path[] {
  if (isDeepStrictEqual(before, after)) return [];
  if (!isRecord(before) || !isRecord(after)) return [path];
  const keys = new Set([...Object.keys(before), ...Object.keys(after)]);
  return [...keys].flatMap((key) => differences(before[key], after[key], [...path, key]));
}

/** An engine that has not replied after this long is reported as unavailable. Probes wait for a second, by default. */
const PING_MS = 800;

/** An engine in good health replies within milliseconds; one that takes longer delays every request. */
const SLOW_MS = 200;

const OK = 'ok';
/** The worst first. */
const STATES = ['unavailable', 'slow', 'healthy'] as const;

/** What an engine replied to a ping. */
interface PingReply {
  /** `ok`, or what is wrong. */
  readonly check: string;
  readonly tookMs: number;
}

interface WatchedEngine {
  readonly name: string;
  readonly engine: Engine;
  /** In progress, for all who ask now: anybody may, without credentials and at any rate. */
  ping: Promise<PingReply> | null;
}

/**
 * Whether this node should get requests: it has started, does not stop, and an engine answers. One of several
 * that is unavailable is reported and no more: it is most likely unavailable to other nodes, too, and the
 * namespaces of the others would be cut off for nothing.
 */
export class Readiness {
  readonly #clock: Clock;
  /** Several may have one name, as secrets and variants do not show in it. */
  readonly #engines: WatchedEngine[] = [];
  #state: 'starting' | 'open' | 'draining' = 'starting';

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** @param name what the report shows, as namespaces name the engine: its masked URL */
  watch(name: string, engine: Engine): void {
    this.#engines.push({ name, engine, ping: null });
  }

  open(): void {
    if (this.#state === 'starting') this.#state = 'open';
  }

  drain(): void {
    this.#state = 'draining';
  }

  async report(): Promise<ReadyReport> {
    const node = this.#state === 'open' ? OK : this.#state;
    const asked = await Promise.all(
      this.#engines.map(async (watched) => ({
        name: watched.name,
        check: (await this.#ping(watched)).check,
      })),
    );
    const answers = asked.length === 0 || asked.some(({ check }) => check === OK);
    const checks: Record<string, string> = { [NODE_CHECK]: node };
    // Of those with one name the worst is shown.
    for (const { name, check } of asked) if ((checks[name] ?? OK) === OK) checks[name] = check;
    return { ready: node === OK && answers, checks };
  }

  /** Each engine, how it replies, and what its files take. Of those with one name the worst is shown. */
  async engines(): Promise<EngineReport[]> {
    const reports = await Promise.all(this.#engines.map((watched) => this.#describe(watched)));
    reports.sort((a, b) => STATES.indexOf(a.state) - STATES.indexOf(b.state));
    return [...Map.groupBy(reports, ({ engine }) => engine).values()].flatMap((same) => same.slice(0, 1));
  }

  async #describe(watched: WatchedEngine): Promise<EngineReport> {
    const { name, engine } = watched;
    const [{ check, tookMs }, disk] = await Promise.all([
      this.#ping(watched),
      engine.disk?.().catch(() => null) ?? null,
    ]);
    const isThere = check === OK;
    return {
      engine: name,
      type: engine.type,
      state: !isThere ? 'unavailable' : tookMs > SLOW_MS ? 'slow' : 'healthy',
      pingMs: isThere ? Math.round(tookMs) : null,
      disk,
    };
  }

  #ping(watched: WatchedEngine): Promise<PingReply> {
    watched.ping ??= this.#pingOnce(watched.engine).finally(() => {
      watched.ping = null;
    });
    return watched.ping;
  }

  /** Resolves within `PING_MS`. */
  async #pingOnce(engine: Engine): Promise<PingReply> {
    const { promise: late, resolve } = Promise.withResolvers<string>();
    const cancel = this.#clock.after(PING_MS, () => resolve('does not answer'));
    const startedAt = this.#clock.monotonic();
    const answered = engine.ping().then(
      () => OK,
      () => 'away',
    );
    try {
      const check = await Promise.race([answered, late]);
      return { check, tookMs: this.#clock.monotonic() - startedAt };
    } finally {
      cancel();
    }
  }
}
