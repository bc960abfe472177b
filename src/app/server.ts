import { hostname } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { Account } from '../access/account.ts';
import { ApiTokens } from '../access/api-tokens.ts';
import { bodyLimit } from '../access/body-limit.ts';
import { ConsoleSessions } from '../access/console-sessions.ts';
import { EndedSessions } from '../access/ended-sessions.ts';
import { KnownLogins } from '../access/known-logins.ts';
import { PasswordAuthenticator } from '../access/password-authenticator.ts';
import type { User } from '../access/user.ts';
import { Broker } from '../broker/broker.ts';
import { nodeText, VariantConflict } from '../broker/cluster.ts';
import { MigrationTargetMissing } from '../broker/migration.ts';
import { QueueWatch } from '../broker/queue-watch.ts';
import { ConfigError, type ErrorAt, type Path, pathText } from '../config/errors.ts';
import type { Config } from '../config/options.ts';
import { alarms, exchangePictures, nodePictures, operationPictures } from '../events/pictures.ts';
import { EventPublisher } from '../events/publisher.ts';
import { Exchanges } from '../exchange/exchanges.ts';
import { HTTP_DEFAULTS } from '../http/options.ts';
import { HttpServer } from '../http/server.ts';
import { Metrics } from '../metrics/metrics.ts';
import type { EngineHealth } from '../model/records.ts';
import { BulkOperations } from '../operations/operations.ts';
import { Searches } from '../operations/search.ts';
import { type SelectorSandbox, WorkerSandbox } from '../sandbox/sandbox.ts';
import type { SessionServer } from '../session/server.ts';
import { type Clock, systemClock } from '../util/clock.ts';
import { InputTurns } from '../util/input-turns.ts';
import { isRecord } from '../util/is-record.ts';
import type { LeveledLog } from '../util/log.ts';
import { maskUrl } from '../util/mask.ts';
import { type Service, ServiceStack, withStartError } from '../util/service.ts';
import type { UpgradeHandler } from '../util/upgrade.ts';
import { Backups } from './backups.ts';
import { checkDataDir, DATA_FILES, dateWarnings, hostWarnings } from './checks.ts';
import { checkExchanges, parseExchanges, tryExchanges } from './configured-exchanges.ts';
import { type EngineParts, type EngineSet, loadEngines } from './engines.ts';
import {
  FRONT_ENDS,
  FrontEnd,
  loadSessionServer,
  loadWebSocket,
  readCertificate,
  readListener,
  readProxies,
} from './listeners.ts';
import { namespaceSetups } from './namespaces.ts';
import { Readiness } from './readiness.ts';
import type { Tracing } from './tracing.ts';
import {
  hasConfiguredUsers,
  loadUsers,
  type NewAdministrator,
  saveUsers,
  sharedUsersWarnings,
} from './users.ts';

/** Dependencies of a server in addition to its configuration. */
interface ServerParts {
  readonly log: LeveledLog;
  readonly version: string;
  /** Creates the errors for invalid values of the configuration. */
  readonly errorAt: ErrorAt;
}

/**
 * Engines are started in groups of this size, so that a stop during startup waits for one group only: each SQLite file
 * has a thread, and starting hundreds of them takes longer than a stop may.
 */
const ENGINE_START_GROUP = 16;

/** The parts that are called after startup. */
interface Running {
  readonly broker: Broker;
  readonly exchanges: Exchanges;
  readonly authenticator: PasswordAuthenticator;
  readonly tokens: ApiTokens;
  readonly consoleSessions: ConsoleSessions;
  readonly events: EventPublisher;
  readonly sandbox: SelectorSandbox;
  readonly http: FrontEnd<HttpServer>;
  /** The enabled front ends other than HTTP. */
  readonly sessions: readonly FrontEnd<SessionServer>[];
}

/**
 * The composition root: creates engines, broker, exchanges and front ends from a configuration, starts them in this
 * order, and stops them in reverse order. It opens, binds and reads nothing before `start`.
 */
export class Server implements Service {
  /** Resolves when an engine has failed permanently; the caller must then stop the server and report the error. */
  readonly failed: Promise<Error>;
  readonly #config: Config;
  /** Whether the present users are those of the configuration, not those of the users file. */
  #areUsersConfigured: boolean;
  readonly #parts: ServerParts & { readonly clock: Clock; readonly random: () => number };
  readonly #stack = new ServiceStack();
  readonly #readiness: Readiness;
  readonly #fail: (error: Error) => void;
  #running: Running | null = null;
  #newAdministrator: NewAdministrator | null = null;
  #starting: Promise<void> | null = null;
  #areEnginesStarting = false;
  #stopping: Promise<void> | null = null;

  constructor(config: Config, parts: ServerParts) {
    this.#config = config;
    this.#areUsersConfigured = hasConfiguredUsers(config);
    this.#parts = { ...parts, clock: systemClock, random: Math.random };
    this.#readiness = new Readiness(systemClock);
    const { promise, resolve } = Promise.withResolvers<Error>();
    this.failed = promise;
    this.#fail = resolve;
  }

  /**
   * Base URL of the HTTP interface; `unix:` and a path for a Unix socket.
   * @throws Error before `start` has resolved
   */
  get url(): string {
    return this.#started.http.url;
  }

  /** URLs of the front ends other than HTTP, by name. @throws Error before `start` has resolved */
  get otherUrls(): Readonly<Record<string, string>> {
    return Object.fromEntries(this.#started.sessions.map(({ name, url }) => [name, url]));
  }

  /** The administrator that this start has created, whose password is to be shown once; null if users existed. */
  get newAdministrator(): NewAdministrator | null {
    return this.#newAdministrator;
  }

  get #started(): Running {
    if (this.#running === null) throw new Error('The server is not started.');
    return this.#running;
  }

  /**
   * Resolves when the server accepts requests.
   * @throws ConfigError if a part of the configuration cannot be used
   */
  start(): Promise<void> {
    this.#starting ??= this.#start();
    return this.#starting;
  }

  /**
   * Rejects new blocking calls, ends pending ones, and makes `/readyz` fail. Other requests continue, but each HTTP
   * response closes its connection.
   */
  drain(): void {
    this.#readiness.drain();
    // Drain HTTP first, so that the responses to ended blocking calls close their connections as well.
    this.#running?.http.server.drain();
    this.#running?.broker.drain();
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  /**
   * Applies the users and certificates of a reloaded configuration, or nothing if any part is invalid.
   * @throws ConfigError
   */
  async reload(config: Config): Promise<void> {
    if (this.#running === null || this.#stopping !== null) return;
    const { authenticator, tokens, consoleSessions, exchanges, http, sandbox, sessions } = this.#running;
    const { clock, log, errorAt } = this.#parts;
    await checkUnopened(config, sandbox, this.#parts);
    const { accounts, created, warnings } = await loadUsers(config, errorAt);
    // An empty file, as while it is written, would end the sessions of all users, and revoke their tokens.
    const lacksUsers = this.#areUsersConfigured && !hasConfiguredUsers(config);
    if (lacksUsers || created !== null) {
      const why = lacksUsers ? 'but named some before' : 'and there are none in users.json';
      const problem = `names no users, ${why}`;
      throw new ConfigError([{ source: null, path: 'http.users', problem, hint: 'Name one, or restart' }]);
    }
    const messages = [...warnings];
    const listeners = new Map<string, FrontEnd>(
      [http, ...sessions].map((listener) => [listener.name, listener]),
    );
    const certificates = await Promise.all(
      // Also those of front ends that are off until a restart.
      FRONT_ENDS.filter((name) => config[name].port !== undefined || listeners.has(name)).map(
        async (name) => ({
          name,
          tls: await readCertificate(config, name, errorAt, (message) => messages.push(message)),
        }),
      ),
    );
    for (const { name, tls } of certificates) messages.push(...dateWarnings(config[name].tls, tls, clock));
    const { added, removed, changed } = authenticator.replaceAccounts(accounts);
    this.#areUsersConfigured = hasConfiguredUsers(config);
    this.#renewUsers(this.#running, null);
    await exchanges.stopUnowned();
    // Store the ends, so that nodes that have not reloaded their users reject these tokens and sessions as well.
    await Promise.all([
      tokens.revokeOf(removed.map(nameOf)),
      // Failures are logged and retried in the background.
      ...[...removed, ...changed].map((account) => consoleSessions.endPassword(account).catch(() => {})),
    ]);
    for (const { name, tls } of certificates) if (tls !== null) listeners.get(name)?.server.reloadTls(tls);
    for (const message of messages) log.warn({}, message);
    const changes = { added, removed: removed.map(nameOf), changed: changed.map(nameOf) };
    log.info({ event: 'reload', users: accounts.size, ...changes }, 'users and certificates were reloaded');
    const options = changedOptions(this.#config, config);
    if (options.length > 0) {
      log.warn({ event: 'reload', options }, `${options.join(', ')} changed as well and need a restart`);
    }
  }

  /**
   * Closes sessions, blocked calls and event streams of users whose login is no longer valid. Other users get their
   * current rights.
   * @param of check only these users; null: all users
   */
  #renewUsers({ authenticator, http, sessions, events }: Running, of: ReadonlySet<User> | null): void {
    for (const { server } of [http, ...sessions]) server.renewUsers(of);
    events.renewUsers(authenticator, of);
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
    const watch = new QueueWatch(broker.namespaces());
    await this.#startParts(watch);
    const tokens = new ApiTokens({
      namespaces: broker.namespaces(),
      ownerNamed: (name) => authenticator.userNamed(name),
      ...this.#parts,
    });
    const known = new KnownLogins(join(config.dataDir, DATA_FILES.logins), clock, log);
    await this.#startParts(known);
    const { accounts } = users;
    const authenticator: PasswordAuthenticator = new PasswordAuthenticator({
      ...this.#parts,
      accounts,
      known,
      tokens,
    });
    await this.#startParts(tokens);
    // Stopped after its users. Its thread starts with the first selector, because it takes as long as the rest of the
    // startup.
    const sandbox = new WorkerSandbox({ clock });
    await this.#startParts({ start: async () => {}, stop: () => sandbox.stop() });
    const userNamed = (name: string) => authenticator.userNamed(name);
    const exchanges = await this.#startExchanges(broker, userNamed, sandbox);
    const searches = new Searches({ sandbox, clock, selectors: config.selectors === 'on' });
    const operations = new BulkOperations({ ...this.#parts, broker, searches, userNamed, exchanges });
    await this.#startParts(operations);
    const shared = {
      broker,
      authenticator,
      clock,
      log,
      version,
      inputTurns: new InputTurns(),
      bodies: bodyLimit(clock),
    };
    const sessions: FrontEnd<SessionServer>[] = [];
    const upgrades = new Map<string, UpgradeHandler>();
    for (const name of ['stomp', 'amqp'] as const) {
      const listener = settings[name];
      if (listener === null) continue;
      const server = await loadSessionServer(name, config, listener, shared);
      sessions.push(new FrontEnd(name, server, config, errorAt));
      if (config[name].webSocket) upgrades.set(`/${name}`, await loadWebSocket(server));
    }
    const backups = new Backups({ config, engines, clock, version });
    const namespaces = broker.namespaces();
    const engineHealth = (): Promise<EngineHealth[]> => this.#readiness.engines();
    const events = new EventPublisher({
      namespaces,
      watch,
      sources: [
        exchangePictures(exchanges),
        nodePictures(broker),
        operationPictures(operations),
        alarms({ namespaces, engines: engineHealth, clock }),
      ],
      ...this.#parts,
      limits: config.events,
    });
    await this.#startParts(events);
    const metrics = new Metrics({
      broker,
      clock,
      exchanges,
      operations,
      engines: engineHealth,
      version,
      perQueue: config.metrics.perQueue,
      requestTimes: () => http.server.requestTimes,
      logins: () => ({ ...authenticator.counts }),
      events: () => events.counts,
      ...(tracing !== null && { spans: () => tracing.exporter.counts }),
      sessions: () => new Map(sessions.map(({ name, server }) => [name, server.counts])),
    });
    const { allowedOrigins, metricsWithoutLogin, batchCount, batchBytes } = config.http;
    const { enabled, idle, secret = null } = config.console;
    const ended = new EndedSessions({ namespaces, ...this.#parts });
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
      tokens,
      ...(enabled && { consoleSessions }),
      exchanges,
      operations,
      events,
      searches,
      options: {
        ...HTTP_DEFAULTS,
        ...settings.http,
        batchCount,
        batchBytes,
        allowedOrigins,
        metricsWithoutLogin,
        ...(!enabled && { consoleFolder: null }),
      },
      metricsText: (viewer) => metrics.text(viewer),
      sessions: () => sessions.flatMap(({ server }) => server.describeSessions()),
      ready: () => this.#readiness.report(),
      engines: engineHealth,
      backUp: (name) => backups.make(name),
      upgrades,
      ...(tracing !== null && { tracer: tracing.tracer }),
    });
    const http = new FrontEnd('http', httpServer, config, errorAt);
    const running = {
      broker,
      exchanges,
      authenticator,
      tokens,
      consoleSessions,
      events,
      sandbox,
      http,
      sessions,
    };
    // Set before the front ends listen: if one fails to start, another may already serve requests that `stop` must
    // drain.
    this.#running = running;
    tokens.onEnded((users) => this.#renewUsers(running, users));
    await this.#startParts(http, ...sessions);
    if (users.created !== null) await saveUsers(config, [users.created.definition], errorAt);
    this.#newAdministrator = users.created;
    this.#readiness.open();
    log.info({ event: 'start', pid: process.pid, url: this.url, ...this.otherUrls }, 'listening');
  }

  /** Started first and therefore stopped last, because stopping other parts may end spans. Null if tracing is off. */
  async #startTracing(): Promise<Tracing | null> {
    const { tracing } = this.#config;
    if (tracing === undefined) return null;
    // Imported only if enabled, to keep startup fast.
    const { openTracing } = await import('./tracing.ts');
    const opened = openTracing(tracing, this.#parts);
    await this.#startParts(opened.exporter);
    return opened;
  }

  async #startEngines(): Promise<EngineSet> {
    const engines = await loadEngines(this.#config, this.#parts);
    const services = engines.all().map(({ service }) => service);
    this.#areEnginesStarting = true;
    for (let from = 0; from < services.length; from += ENGINE_START_GROUP) {
      await this.#startParts(...services.slice(from, from + ENGINE_START_GROUP));
    }
    this.#areEnginesStarting = false;
    for (const { engine } of engines.all()) {
      this.#readiness.watch(maskUrl(engine.url), engine);
      void engine.failed.then((error) => this.#fail(error));
    }
    return engines;
  }

  /** Reports conflicts with other nodes as errors of the options that cause them. */
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

  /** If a configured exchange cannot start, because of its namespace or selector for example, throws a ConfigError. */
  async #startExchanges(
    broker: Broker,
    owners: (name: string) => User | null,
    sandbox: SelectorSandbox,
  ): Promise<Exchanges> {
    const { errorAt } = this.#parts;
    const { selectors, maxHops, maxCopies } = this.#config;
    const configured = parseExchanges(this.#config, errorAt);
    const exchanges = new Exchanges({
      ...this.#parts,
      broker,
      sandbox,
      maxHops,
      maxCopies,
      selectors: selectors === 'on',
      configured,
      owners,
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

  /** Starts independent parts concurrently. @throws Error if the server is being stopped */
  async #startParts(...parts: readonly Service[]): Promise<void> {
    await this.#stack.start(parts);
    this.#checkNotStopping();
  }

  async #stop(): Promise<void> {
    this.drain();
    // A startup in progress is aborted at its next step. An engine whose server does not reply would delay that step.
    const stopping = this.#areEnginesStarting ? this.#stack.stop() : Promise.resolve();
    await Promise.allSettled([this.#starting, stopping]);
    this.drain();
    await this.#stack.stop();
    await stopping;
  }

  #checkNotStopping(): void {
    if (this.#stopping !== null) throw new Error('The server was stopped before it had started.');
  }
}

function nameOf({ user }: Account): string {
  return user.name;
}

/**
 * Makes the checks of a startup that open nothing, so that a reload reports errors that would make a restart fail.
 * @throws ConfigError
 */
async function checkUnopened(config: Config, sandbox: SelectorSandbox, parts: EngineParts): Promise<void> {
  const { errorAt } = parts;
  checkDataDir(config, errorAt);
  for (const name of FRONT_ENDS) if (config[name].port !== undefined) readProxies(config, name, errorAt);
  await tryExchanges(config, await loadEngines(config, parts), sandbox, parts);
}

/** Paths of the changed options that a reload does not apply. */
function changedOptions(before: Config, after: Config): string[] {
  return differences(restartOptions(before), restartOptions(after)).map(pathText);
}

/**
 * The options that require a restart. A reload applies certificate files, but cannot turn TLS or client certificates on
 * or off.
 */
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
