import { hostname } from 'node:os';
import { join } from 'node:path';
import { KnownLogins } from '../access/known-logins.ts';
import { PasswordAuthenticator } from '../access/password-authenticator.ts';
import { loginLost, refusal } from '../access/user.ts';
import type { NewAdministrator } from '../access/users-file.ts';
import { Broker } from '../broker/broker.ts';
import type { Config } from '../config/options.ts';
import { ConfigError } from '../config/problem.ts';
import { Exchanges } from '../exchange/exchanges.ts';
import type { FindOwner } from '../exchange/owners.ts';
import type { HttpOptions } from '../http/options.ts';
import { HttpServer } from '../http/server.ts';
import type { DiskSource } from '../metrics/disk-families.ts';
import { Metrics } from '../metrics/metrics.ts';
import { makeSandbox } from '../sandbox/worker-sandbox.ts';
import { type Clock, systemClock } from '../util/clock.ts';
import type { LeveledLog } from '../util/log.ts';
import { maskUrl } from '../util/mask.ts';
import type { Service } from '../util/service.ts';
import { Backups } from './backups.ts';
import { startableBroker } from './broker.ts';
import { changedOptions } from './changed-options.ts';
import { checkDataDir, DATA_FILES, dataDirWarnings } from './data-dir.ts';
import { disksOf } from './disks.ts';
import { type EngineSet, type EngineSources, loadEngines, startable } from './engines.ts';
import { configuredExchanges, startableExchanges } from './exchanges.ts';
import { FrontEnds } from './front-ends.ts';
import { httpOptions, listening, urlOf } from './listener.ts';
import { namespaceSetups } from './namespaces.ts';
import { openFilesWarning } from './open-files.ts';
import { Readiness } from './readiness.ts';
import { sharedUsersWarnings } from './shared-users.ts';
import { ServiceStack } from './stack.ts';
import { loadTls } from './tls.ts';
import { isSocketPath } from './unix-socket.ts';
import { loadUsers, type SourceOf, saveUsers } from './users.ts';

/** What a server needs beside its configuration. */
export interface ServerParts {
  readonly log: LeveledLog;
  readonly version: string;
  readonly clock?: Clock;
  /** 0 (inclusive) to 1. */
  readonly random?: () => number;
  /** Where the value at a path of the configuration came from: for start-up errors. */
  readonly sourceOf?: SourceOf;
}

/** A server that is not started yet. Nothing is opened, bound or read before `start`. */
export function createServer(config: Config, parts: ServerParts): Server {
  return new Server(config, {
    clock: systemClock,
    random: Math.random,
    sourceOf: () => null,
    ...parts,
  });
}

/** A configuration as parts that work together: engines, broker, HTTP. */
export class Server implements Service {
  /** Resolves, once, when an engine cannot keep its promises any more: stop, and say why. */
  readonly failed: Promise<Error>;
  readonly #config: Config;
  readonly #parts: Required<ServerParts>;
  readonly #stack = new ServiceStack();
  readonly #readiness: Readiness;
  readonly #fail: (fault: Error) => void;
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

  /** Base address of the HTTP interface; `unix:` and a path for a Unix socket. @throws Error before `start` has resolved */
  get url(): string {
    if (this.#running === null) throw new Error('The server is not started.');
    const { host } = this.#config.http;
    if (isSocketPath(host)) return `unix:${host}`;
    return urlOf(this.#config.http.tls === undefined ? 'http' : 'https', this.#running.http.address);
  }

  /** Addresses of the front ends besides HTTP, by name. @throws Error before `start` has resolved */
  get otherUrls(): Readonly<Record<string, string>> {
    if (this.#running === null) throw new Error('The server is not started.');
    return this.#running.frontEnds.urls();
  }

  /** Set after a first start: to be shown once, then forgotten. */
  get newAdministrator(): NewAdministrator | null {
    return this.#newAdministrator;
  }

  /**
   * Resolves when requests are answered.
   * @throws ConfigError where something that the configuration names cannot be used
   */
  start(): Promise<void> {
    this.#starting ??= this.#start();
    return this.#starting;
  }

  /**
   * Lets no request in that would wait, ends those that do, and tells `/readyz`. Everything else goes on, though
   * each answer over HTTP ends its connection.
   */
  drain(): void {
    this.#readiness.drain();
    // The answers to those that wait are to end their connections, too.
    this.#running?.http.drain();
    this.#running?.broker.drain();
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  /**
   * Takes users and the certificate from a configuration that was read again. All or nothing.
   * @throws ConfigError
   */
  async reload(config: Config): Promise<void> {
    const { log, sourceOf } = this.#parts;
    if (this.#running === null) return;
    const { accounts, created, warnings } = await loadUsers(config, sourceOf);
    const tls = await loadTls(config, 'http', sourceOf);
    const useTls = await this.#running.frontEnds.readTls(config);
    if (created !== null) throw noUsersLeft();
    const { authenticator, broker, exchanges, frontEnds } = this.#running;
    const renewed = authenticator.replaceAccounts(accounts);
    frontEnds.renewUsers((user) => authenticator.renew(user));
    // Those of sessions that ended are gone from their lines by now: these wait over HTTP.
    broker.endWaiting((owner, namespace) => {
      const user = renewed(owner);
      return user === null ? loginLost() : refusal(user, 'read', namespace);
    });
    await exchanges.stopUnowned();
    if (tls.material !== null) this.#running.http.reloadTls(tls.material);
    useTls();
    for (const warning of [...warnings, ...tls.warnings]) log.warn({}, warning);
    log.info({ event: 'reload', users: accounts.size }, 'users and certificate were read again');
    const options = changedOptions(this.#config, config);
    if (options.length > 0) {
      log.warn({ event: 'reload', options }, `${options.join(', ')} changed as well and need a restart`);
    }
  }

  async #start(): Promise<void> {
    this.#refuseIfStopping();
    const { log, sourceOf } = this.#parts;
    const config = this.#config;
    checkDataDir(config, sourceOf);
    const tls = await loadTls(config, 'http', sourceOf);
    const options = httpOptions(config, tls.material, sourceOf);
    const users = await loadUsers(config, sourceOf);
    const warnings = [
      ...dataDirWarnings(config),
      ...users.warnings,
      ...tls.warnings,
      ...sharedUsersWarnings(config),
    ];
    const openFiles = openFilesWarning(config);
    if (openFiles !== null) warnings.push(openFiles);
    for (const warning of warnings) log.warn({}, warning);
    const engines = await this.#startEngines();
    const namespaces = namespaceSetups(config, engines, log);
    const node = { host: hostname(), pid: process.pid, version: this.#parts.version };
    const broker = new Broker({ ...this.#parts, node, namespaces, waiting: config.waiting });
    await this.#stack.start(startableBroker(broker, sourceOf));
    this.#refuseIfStopping();
    const known = new KnownLogins(join(config.dataDir, DATA_FILES.logins), this.#parts.clock, log);
    await this.#stack.start(known);
    const authenticator = new PasswordAuthenticator({ ...this.#parts, accounts: users.accounts, known });
    const exchanges = await this.#startExchanges(broker, (name) => authenticator.userNamed(name));
    const frontEnds = await FrontEnds.load(config, { ...this.#parts, broker, authenticator });
    const fronts = { authenticator, frontEnds };
    const disks = disksOf(config, engines);
    const { clock, version } = this.#parts;
    const backups = new Backups({ config, engines, clock, version });
    const http = this.#makeHttp({ broker, exchanges, disks, backups }, fronts, options);
    await this.#stack.start(listening(http, 'http', config, sourceOf));
    this.#refuseIfStopping();
    await this.#stack.start(frontEnds);
    this.#refuseIfStopping();
    if (users.created !== null) await saveUsers(config, [users.created.definition], sourceOf);
    this.#newAdministrator = users.created;
    this.#running = { broker, exchanges, http, ...fronts };
    this.#readiness.open();
    log.info({ event: 'start', pid: process.pid, url: this.url, ...frontEnds.urls() }, 'listening');
  }

  async #startEngines(): Promise<EngineSet> {
    const { clock, log, sourceOf } = this.#parts;
    const { namespaces, dataDir, dedup } = this.#config;
    const dedupWindowMs = dedup.window * 1000;
    const sources: EngineSources = { namespaces, dataDir, dedupWindowMs, clock, log, sourceOf };
    const engines = await loadEngines(sources);
    const all = engines.all();
    await this.#stack.startAll(all.map((engine) => startable(engine, engines.pathOf(engine), sources)));
    this.#refuseIfStopping();
    for (const engine of all) {
      this.#readiness.watch(maskUrl(engine.url), engine);
      void engine.failed.then((fault) => this.#fail(fault));
    }
    return engines;
  }

  async #startExchanges(broker: Broker, owners: FindOwner): Promise<Exchanges> {
    const { clock, random, log, sourceOf } = this.#parts;
    const { selectors, maxHops, maxCopies } = this.#config;
    const sandbox = makeSandbox({ clock });
    const configured = configuredExchanges(this.#config, sourceOf);
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
      owners,
    });
    if (selectors === 'on') await this.#stack.start(sandbox);
    await this.#stack.start(startableExchanges(exchanges, configured, sourceOf));
    this.#refuseIfStopping();
    return exchanges;
  }

  #makeHttp(
    { broker, exchanges, disks, backups }: Served,
    { authenticator, frontEnds }: Fronts,
    options: HttpOptions,
  ): HttpServer {
    const { clock, log, version } = this.#parts;
    const metrics = new Metrics({
      broker,
      clock,
      exchanges,
      disks,
      version,
      perQueue: this.#config.metrics.perQueue,
      requestTimes: () => http.requestTimes,
      logins: () => ({ ...authenticator.counts }),
      sessions: () => frontEnds.counts(),
    });
    const http = new HttpServer({
      broker,
      exchanges,
      authenticator,
      options,
      log,
      clock,
      version,
      metricsText: (viewer) => metrics.text(viewer),
      ready: () => this.#readiness.report(),
      backUp: (name) => backups.make(name),
    });
    return http;
  }

  async #stop(): Promise<void> {
    this.drain();
    // A start that is under way sees that it should stop at its next step.
    await this.#starting?.catch(() => {});
    this.drain();
    await this.#stack.stop();
  }

  #refuseIfStopping(): void {
    if (this.#stopping !== null) throw new Error('The server was stopped before it had started.');
  }
}

/** What HTTP serves. */
interface Served {
  readonly broker: Broker;
  readonly exchanges: Exchanges;
  readonly disks: readonly DiskSource[];
  readonly backups: Backups;
}

/** What all front ends share, and those besides HTTP. */
interface Fronts {
  readonly authenticator: PasswordAuthenticator;
  readonly frontEnds: FrontEnds;
}

/** The parts that are talked to after the start. */
interface Running extends Fronts {
  readonly broker: Broker;
  readonly exchanges: Exchanges;
  readonly http: HttpServer;
}

function noUsersLeft(): ConfigError {
  const problem = 'names no users, and there are none in users.json';
  return new ConfigError([{ source: null, path: 'http.users', problem, remedy: 'Name one, or restart' }]);
}
