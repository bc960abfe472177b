import { describe, it } from 'node:test';
import fc from 'fast-check';
import type { DurableTestEngine, EngineUnderTest, TestEngine } from '../engines.ts';
import { checkHistories } from '../support/histories.ts';
import { purge } from '../support/settle.ts';
import { Model } from './model.ts';
import { checkAll, drain } from './model-check.ts';
import { commandArbitraries } from './model-commands.ts';
import { DEDUP_WINDOW_MS, EVERY_QUEUE, MODEL_NAMESPACES, type World } from './model-world.ts';

/** Number of random histories per engine. `MODEL_RUNS=50000` takes a night. */
const RUNS = Number(process.env.MODEL_RUNS ?? 30);
/** The same for modes in which an engine runs the same code with other settings or on another topology. */
const RUNS_PER_MODE = Number(process.env.MODEL_RUNS ?? 8);
const ENGINES_IN_FULL = ['sqlite', 'redis', 'postgres'];
const HISTORY_LENGTH = 60;
/** Timeout of one history. On PostgreSQL, half a minute is not enough on a busy machine. */
const HISTORY_MS = 5 * 60_000;

/**
 * Compares the engine with the model after every step of random histories, including crashes if the engine is durable:
 * the invariants I1 to I6, I8, I10 and I12 (I7, I9 and I11 are the broker's).
 */
export function storageModel(name: string, { open, openDurable }: EngineUnderTest): void {
  const runs = ENGINES_IN_FULL.includes(name) ? RUNS : RUNS_PER_MODE;
  describe(`Storage model: ${name}`, () => {
    it(`agrees with the model in ${runs} random histories`, async () => {
      const runner = new HistoryRunner(openDurable ?? open);
      const options = { runs, maxCommands: HISTORY_LENGTH, timeoutMs: HISTORY_MS };
      await checkHistories(commandArbitraries(openDurable !== null), options, (commands) =>
        runner.run(commands),
      ).finally(() => runner.close());
    });
  });
}

type Open = EngineUnderTest['open'] | NonNullable<EngineUnderTest['openDurable']>;

/**
 * Runs histories on one engine, emptied before each, since opening one takes longer than a history. After a failure the
 * next history starts on a new engine, so that shrinking and replaying start from scratch.
 */
class HistoryRunner {
  readonly #open: Open;
  /** An idle engine for the next history. */
  #opened: TestEngine | DurableTestEngine | null = null;
  #isClosed = false;

  constructor(open: Open) {
    this.#open = open;
  }

  async run(commands: Iterable<fc.AsyncCommand<Model, World>>): Promise<void> {
    const opened = this.#opened ?? (await this.#open(OPTIONS));
    this.#opened = null;
    const world: World = { opened, refs: [], tokens: new Set(), popped: [], checks: 0 };
    let isReusable = false;
    try {
      await this.#runOn(commands, world);
      // A history that timed out may end while others run, or after all of them.
      isReusable = this.#opened === null && !this.#isClosed;
      if (isReusable) this.#opened = world.opened;
    } finally {
      if (!isReusable) await world.opened.close();
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#opened?.close();
  }

  async #runOn(commands: Iterable<fc.AsyncCommand<Model, World>>, world: World): Promise<void> {
    await emptyAll(world);
    const model = new Model(MODEL_NAMESPACES, DEDUP_WINDOW_MS, world.opened.now());
    await fc.asyncModelRun(
      () => ({ model, real: world }),
      commands as Iterable<fc.AsyncCommand<Model, World>>,
    );
    await drain(model, world);
    await checkAll(model, world);
  }
}

const OPTIONS = { namespaces: MODEL_NAMESPACES, dedupWindowMs: DEDUP_WINDOW_MS };

async function emptyAll({ opened }: World): Promise<void> {
  for (const queue of EVERY_QUEUE) await purge(opened.engine.storage, queue);
  await opened.engine.storage.declare(EVERY_QUEUE, null);
  await opened.passTime(DEDUP_WINDOW_MS + 1);
  await opened.engine.storage.sweep();
}
