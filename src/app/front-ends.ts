import type { Authenticator, RenewUser } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { Config } from '../config/options.ts';
import type { SessionCounts } from '../metrics/session-families.ts';
import type { Clock } from '../util/clock.ts';
import type { FrontEndLog, TlsMaterial } from '../util/log.ts';
import type { Service } from '../util/service.ts';
import { listening } from './listener.ts';
import { type ListenerGroup, loadTls } from './tls.ts';
import type { SourceOf } from './users.ts';

/** A front end besides HTTP. */
export interface FrontEnd extends Service {
  readonly name: ListenerGroup;
  readonly counts: SessionCounts;
  /** As clients write it. @throws Error before `start` has resolved */
  url(): string;
  /** Uses another certificate for connections from now on. */
  reloadTls(tls: TlsMaterial): void;
  /** After a reload of the users: sessions continue under their new rights, or end. */
  renewUsers(renew: RenewUser): void;
}

export interface FrontEndParts {
  readonly broker: Broker;
  readonly authenticator: Authenticator;
  readonly log: FrontEndLog;
  readonly clock: Clock;
  readonly version: string;
  readonly sourceOf: SourceOf;
}

/** Loaded only if they are configured: the two are a fifth of the time that a start takes. */
const MAKERS = {
  stomp: async () => (await import('./stomp.ts')).makeStomp,
  amqp: async () => (await import('./amqp.ts')).makeAmqp,
};

/** The front ends that a configuration turns on besides HTTP, as one service. */
export class FrontEnds implements Service {
  readonly #config: Config;
  readonly #parts: FrontEndParts;
  readonly #all: readonly FrontEnd[];
  #stopping: Promise<void> | null = null;

  private constructor(config: Config, parts: FrontEndParts, all: readonly FrontEnd[]) {
    this.#config = config;
    this.#parts = parts;
    this.#all = all;
  }

  /** Reads what they need; nothing listens yet. @throws ConfigError */
  static async load(config: Config, parts: FrontEndParts): Promise<FrontEnds> {
    const { log, sourceOf } = parts;
    const all: FrontEnd[] = [];
    for (const name of ['stomp', 'amqp'] as const) {
      const tls = await loadTls(config, name, sourceOf);
      for (const warning of tls.warnings) log.warn({}, warning);
      const { port } = config[name];
      if (port === undefined) continue;
      const make = await MAKERS[name]();
      all.push(make(config, port, tls.material, parts));
    }
    return new FrontEnds(config, parts, all);
  }

  /** @throws ConfigError where an address cannot be had */
  async start(): Promise<void> {
    for (const one of this.#all) {
      await listening(one, one.name, this.#config, this.#parts.sourceOf).start();
    }
  }

  stop(): Promise<void> {
    this.#stopping ??= Promise.all(this.#all.map((one) => one.stop())).then(() => {});
    return this.#stopping;
  }

  /** Their addresses by name. @throws Error before `start` has resolved */
  urls(): Readonly<Record<string, string>> {
    return Object.fromEntries(this.#all.map((one) => [one.name, one.url()]));
  }

  counts(): ReadonlyMap<string, SessionCounts> {
    return new Map(this.#all.map(({ name, counts }) => [name, counts]));
  }

  renewUsers(renew: RenewUser): void {
    for (const one of this.#all) one.renewUsers(renew);
  }

  /** Reads the certificates that a configuration names; what is answered puts them to use. @throws ConfigError */
  async readTls(config: Config): Promise<() => void> {
    const { log, sourceOf } = this.#parts;
    const loaded = await Promise.all(
      this.#all.map(async (one) => ({ one, tls: await loadTls(config, one.name, sourceOf) })),
    );
    return () => {
      for (const { one, tls } of loaded) {
        if (tls.material !== null) one.reloadTls(tls.material);
        for (const warning of tls.warnings) log.warn({}, warning);
      }
    };
  }
}
