import type { Broker } from '../broker/broker.ts';
import type { Migration } from '../broker/migration.ts';
import type { Exchanges } from '../exchange/exchanges.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import type { EventLog } from '../util/log.ts';
import { Pause } from '../util/pause.ts';
import { isTransient } from './run.ts';
import { NO_PROGRESS, type OperationEnd, type OperationProgress, type StoredOperation } from './stored.ts';

interface MigrationRunOptions {
  readonly id: string;
  readonly operation: StoredOperation;
  readonly broker: Broker;
  readonly exchanges: Pick<Exchanges, 'moveDefinitions'>;
  readonly clock: Clock;
  readonly log: EventLog;
  /** Stores the end. @throws QuaysideError as `Definitions.put` */
  readonly storeEnd: (end: OperationEnd) => Promise<void>;
}

/** How often the elements left in the old engine are counted. */
const CHECK_MS = 1_000;
/** How long the old engine must stay empty: calls made before the migration started settle within 5 s. */
const EMPTY_MS = 6_000;

/**
 * Moves a namespace to another engine: joins the two engines, and waits until consumers have drained the old one.
 *
 * It stores no progress: a later start joins the engines again and counts what is left.
 */
export class MigrationRun {
  readonly #options: MigrationRunOptions;
  #progress = NO_PROGRESS;
  /** Null until the engines are joined and the pause flags and options have been copied. */
  #migration: Migration | null = null;
  /** When the old engine was first found empty, on the monotonic clock; null while it has elements. */
  #emptySince: number | null = null;
  /** Whether the last step failed, so that only the first failure of several is logged. */
  #isFailing = false;
  #isStopping = false;
  readonly #pause: Pause;

  constructor(options: MigrationRunOptions) {
    this.#options = options;
    this.#pause = new Pause(options.clock);
  }

  get progress(): OperationProgress {
    return this.#progress;
  }

  /** Does nothing: a migration cannot be cancelled. */
  cancel(): void {}

  stop(): void {
    this.#isStopping = true;
    this.#pause.end();
  }

  /** Resolves when the migration has ended, or was stopped. Never rejects. */
  async run(): Promise<void> {
    const { log, id } = this.#options;
    while (!this.#isStopping) {
      try {
        const state = await this.#step();
        this.#isFailing = false;
        if (state !== null) {
          await this.#end(state);
          return;
        }
      } catch (error) {
        if (!this.#isFailing) log.warn({ err: error, operation: id }, 'a migration waits for an engine');
        this.#isFailing = true;
      }
      if (!this.#isStopping) await this.#pause.wait(CHECK_MS);
    }
  }

  /** Returns how the migration ended, or null if it continues. @throws any error after which the step is repeated */
  async #step(): Promise<OperationEnd['state'] | null> {
    const { broker, exchanges, clock, operation } = this.#options;
    const { source, to } = operation.request;
    try {
      this.#migration ??= await broker.migrate(source.ns, to?.ns ?? '');
      await exchanges.moveDefinitions(source.ns);
      this.#note(await this.#migration.left());
      if (this.#emptySince === null || clock.monotonic() - this.#emptySince < EMPTY_MS) return null;
      // Writes of pause flags and options may have failed in the new engine.
      await this.#migration.copyDefinitions();
      return 'done';
    } catch (error) {
      // Joined engines cannot be separated, so the migration continues. It fails if another one has joined others.
      const isJoined = broker
        .namespaces()
        .some(({ name, migration }) => name === source.ns && migration?.to === to?.ns);
      if (isJoined || isTransient(error)) throw error;
      const message = error instanceof QuaysideError ? error.message : 'The server failed.';
      this.#progress = { ...this.#progress, error: message };
      return 'failed';
    }
  }

  /** @param left elements in the old engine; may increase for a moment if a pop is returned undelivered */
  #note(left: number): void {
    const { clock, operation } = this.#options;
    this.#emptySince = left > 0 ? null : (this.#emptySince ?? clock.monotonic());
    const changed = Math.max(0, operation.estimate - left);
    this.#progress = {
      ...this.#progress,
      counters: { seen: operation.estimate, matched: operation.estimate, changed, failed: 0 },
    };
  }

  async #end(state: OperationEnd['state']): Promise<void> {
    const { clock, storeEnd } = this.#options;
    const { counters, samples, error } = this.#progress;
    await storeEnd({ state, at: clock.now(), counters, samples, error, isThrown: false });
  }
}
