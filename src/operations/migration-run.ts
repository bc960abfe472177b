import type { Broker } from '../broker/broker.ts';
import type { BrokerLog } from '../broker/ports.ts';
import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import { isPassing } from './run.ts';
import { type OperationEnd, type OperationProgress, type StoredOperation, ZERO } from './stored.ts';

interface MigrationRunOptions {
  readonly id: string;
  readonly operation: StoredOperation;
  readonly broker: Broker;
  readonly clock: Clock;
  readonly log: BrokerLog;
  /** Stores the end. @throws QuaysideError as `Definitions.put` */
  readonly storeEnd: (end: OperationEnd) => Promise<void>;
}

/** What the old engine has left is counted this often. */
const CHECK_MS = 1_000;
/** It must be empty for so long: calls that were made before the migration began settle within 5 s. */
const EMPTY_MS = 6_000;

/**
 * Moves a namespace to another engine: joins the two, and follows how consumers drain the old one. It ends when that is empty.
 *
 * Nothing but the count is to be stored on the way: a later start joins the engines again before this runs.
 */
export class MigrationRun {
  readonly #options: MigrationRunOptions;
  #progress: OperationProgress = {
    node: null,
    counters: ZERO,
    samples: [],
    error: null,
    cursor: null,
    pending: null,
  };
  /** On the monotonic clock, when the old engine was found empty; null: it was not. */
  #emptySince: number | null = null;
  /** Whether the last step failed, so that only the first failure of several is logged. */
  #isFailing = false;
  #isStopping = false;
  #wake: (() => void) | null = null;
  #running: Promise<void> | null = null;

  constructor(options: MigrationRunOptions) {
    this.#options = options;
  }

  get progress(): OperationProgress {
    return this.#progress;
  }

  /** Resolves when the migration has ended, or was left to a later start. Never rejects. */
  start(): Promise<void> {
    this.#running ??= this.#run();
    return this.#running;
  }

  /** A migration cannot be cancelled. */
  cancel(): void {}

  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#wake?.();
    await this.#running;
  }

  async #run(): Promise<void> {
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
      await this.#wait(CHECK_MS);
    }
  }

  /** Returns how the migration ended, null if it has not. @throws what passes */
  async #step(): Promise<OperationEnd['state'] | null> {
    const { broker, clock, operation } = this.#options;
    const { source, to } = operation.request;
    try {
      const migration = await broker.migrate(source.ns, to?.ns ?? '');
      this.#note(await migration.left());
    } catch (error) {
      // Once the engines are joined, they stay so.
      const isJoined = broker
        .namespaces()
        .some(({ name, migration }) => name === source.ns && migration !== null);
      if (isJoined || isPassing(error)) throw error;
      const message = error instanceof QuaysideError ? error.message : 'The server failed.';
      this.#progress = { ...this.#progress, error: message };
      return 'failed';
    }
    if (this.#emptySince === null) return null;
    return clock.monotonic() - this.#emptySince >= EMPTY_MS ? 'done' : null;
  }

  /** @param left elements of the old engine, which may be more again for a moment: what was popped may be returned */
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
    await storeEnd({ state, at: clock.now(), counters, samples, error });
  }

  /** Ends early if the node stops. */
  async #wait(ms: number): Promise<void> {
    if (this.#isStopping) return;
    let cancel: CancelTimer | null = null;
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
      cancel = this.#options.clock.after(ms, resolve);
    });
    this.#wake = null;
    (cancel as CancelTimer | null)?.();
  }
}
