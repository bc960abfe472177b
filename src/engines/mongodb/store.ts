import type { Collection, Db, MongoClient, TopologyDescription } from 'mongodb';
import type { EngineLog } from '../../engine/engine.ts';
import type { Clock } from '../../model/clock.ts';
import type { DefinitionDocument } from './definitions.ts';
import type { ElementDocument, QueueDocument } from './documents.ts';
import { describe, Lost } from './errors.ts';
import { prepareDatabase } from './schema.ts';
import { ServerTime } from './server-time.ts';
import type { Settings } from './settings.ts';
import type { SignalDocument } from './signaller.ts';
import type { StatsDocument } from './stats.ts';

/** A caller has its answer, or a clear no, within this time. */
export const ANSWER_WITHIN_MS = 4500;

/** After there has been no primary for this long, calls are refused at once. */
export const FAIL_FAST_AFTER_MS = 2000;
const NO_PRIMARY = 'There is no primary now.';

export interface Collections {
  readonly elements: Collection<ElementDocument>;
  readonly queues: Collection<QueueDocument>;
  readonly definitions: Collection<DefinitionDocument>;
  readonly stats: Collection<StatsDocument>;
  readonly signals: Collection<SignalDocument>;
}

/**
 * The connection to a replica set: the driver's client, and whether there is a primary now.
 *
 * States: new -> `start` -> up <-> away -> `stop` -> stopped.
 */
export class Store {
  readonly settings: Settings;
  readonly client: MongoClient;
  readonly db: Db;
  readonly collections: Collections;
  readonly time: ServerTime;
  readonly #clock: Clock;
  readonly #log: EngineLog;
  #awaySince: number | null = 0;
  /** Those who wait for a primary, or for the end. */
  readonly #waiting = new Set<() => void>();
  #isStarted = false;
  #isStopped = false;
  #onBack: () => void = () => {};

  constructor(settings: Settings, clock: Clock, log: EngineLog) {
    this.settings = settings;
    this.client = settings.client;
    this.db = this.client.db(settings.database);
    this.time = new ServerTime(this.db, clock, settings.givenTime);
    this.#clock = clock;
    this.#log = log;
    this.collections = {
      elements: this.db.collection('elements'),
      queues: this.db.collection('queues'),
      definitions: this.db.collection('definitions'),
      stats: this.db.collection('stats'),
      signals: this.db.collection('signals'),
    };
    this.client.on('topologyDescriptionChanged', ({ newDescription }) => this.#see(newDescription));
    // An emitter's `error` without a listener would end the process.
    this.client.on('error', () => {});
  }

  /** Called whenever there is a primary again; not for the first one. */
  set onBack(listener: () => void) {
    this.#onBack = listener;
  }

  /** How long there has been no primary, ms; 0 while there is one. */
  get awayMs(): number {
    return this.#awaySince === null ? 0 : this.#clock.monotonic() - this.#awaySince;
  }

  get isUp(): boolean {
    return this.#awaySince === null && !this.#isStopped;
  }

  /**
   * Resolves as soon as there is a primary: an election takes less time than a caller has.
   * @throws Lost where none comes in time; nothing has been sent then
   */
  ready(): Promise<void> {
    const waitMs = FAIL_FAST_AFTER_MS - this.awayMs;
    if (this.isUp) return Promise.resolve();
    if (this.#isStopped || waitMs <= 0) return Promise.reject(new Lost(NO_PRIMARY));
    return new Promise((resolve, reject) => {
      const cancel = this.#clock.after(waitMs, () => {
        this.#waiting.delete(settle);
        reject(new Lost(NO_PRIMARY));
      });
      const settle = (): void => {
        cancel();
        if (this.isUp) resolve();
        else reject(new Lost(NO_PRIMARY));
      };
      this.#waiting.add(settle);
    });
  }

  /** Nothing has been sent where this throws. @throws Lost */
  assertUp(): void {
    if (!this.isUp) throw new Lost(NO_PRIMARY);
  }

  /** The answer of a call, or what `late` makes of it where none has come in time. */
  within<T>(call: Promise<T>, late: (fault: Lost) => Error): Promise<T> {
    return new Promise((resolve, reject) => {
      const cancel = this.#clock.after(ANSWER_WITHIN_MS, () => reject(late(new Lost('No answer in time.'))));
      call.then(resolve, reject).finally(cancel);
    });
  }

  /** Connects, checks the server and makes collections and indexes. @throws Error naming server and remedy */
  async start(): Promise<void> {
    const { shown, isEncrypted, isLocal } = this.settings;
    try {
      await this.client.connect();
      await prepareDatabase(this);
      this.time.saw(await this.time.read());
    } catch (fault) {
      await this.stop();
      const reason = describe(fault).message.replace(/[.\s]+$/, '');
      const remedy = reason.includes(';')
        ? ''
        : '; see that the replica set runs, and that hosts, user and password are right';
      throw new Error(`${shown}: ${reason}${remedy}`);
    }
    this.#isStarted = true;
    if (!isEncrypted && !isLocal) {
      this.#log.warn({ server: shown }, 'MongoDB is reached without TLS; add tls=true to the URL');
    }
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#release();
    await this.client.close(true);
  }

  #release(): void {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const settle of waiting) settle();
  }

  #see({ servers }: TopologyDescription): void {
    const hasPrimary = [...servers.values()].some(({ isWritable }) => isWritable);
    if (hasPrimary === (this.#awaySince === null) || this.#isStopped) return;
    this.#awaySince = hasPrimary ? null : this.#clock.monotonic();
    if (hasPrimary) this.#release();
    if (!this.#isStarted) return;
    const server = this.settings.shown;
    if (hasPrimary) {
      this.#log.info({ server }, 'MongoDB is back');
      this.#onBack();
    } else {
      this.#log.warn({ server }, 'MongoDB is away: there is no primary');
    }
  }
}
