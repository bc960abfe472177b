import type { Broker } from '../broker/broker.ts';
import type { Exchanges } from '../exchange/exchanges.ts';
import { brokerFamilies } from './broker-families.ts';
import { exchangeFamilies } from './exchange-families.ts';
import { exposition, type Family, type MaySee } from './family.ts';
import { processFamilies } from './process-families.ts';
import { queueFamilies } from './queue-families.ts';
import { type SessionCounts, sessionFamilies } from './session-families.ts';

export interface MetricsSources {
  readonly broker: Broker;
  readonly exchanges: Pick<Exchanges, 'overview'>;
  readonly version: string;
  /** Logins by how they ended. */
  readonly logins: () => Readonly<Record<string, number>>;
  /** Of each front end whose clients keep a session, by protocol. */
  readonly sessions: () => ReadonlyMap<string, SessionCounts>;
}

/**
 * The text of `/metrics`, made when it is asked for. Scrapes at the same time share what is collected, and each
 * shows what its viewer may see.
 */
export class Metrics {
  readonly #sources: MetricsSources;
  #collecting: Promise<readonly Family[]> | null = null;

  constructor(sources: MetricsSources) {
    this.#sources = sources;
  }

  async text(maySee: MaySee): Promise<string> {
    this.#collecting ??= this.#collect().finally(() => {
      this.#collecting = null;
    });
    return exposition(await this.#collecting, maySee);
  }

  async #collect(): Promise<readonly Family[]> {
    const { broker, exchanges, version, logins, sessions } = this.#sources;
    const queues = await queueFamilies(broker.namespaces());
    return [
      ...queues,
      ...brokerFamilies(broker),
      ...exchangeFamilies(exchanges),
      loginFamily(logins()),
      ...sessionFamilies(sessions()),
      ...processFamilies(version),
    ];
  }
}

function loginFamily(counts: Readonly<Record<string, number>>): Family {
  return {
    name: 'quayside_logins_total',
    help: 'Passwords that were checked, by how that ended; limited: turned away unchecked.',
    type: 'counter',
    samples: Object.entries(counts).map(([outcome, value]) => ({ labels: { outcome }, value })),
  };
}
