import assert from 'node:assert/strict';
import { copyFileSync, existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { MessageChannel } from 'node:worker_threads';
import type { Engine } from '../../src/engine/engine.ts';
import { open } from '../../src/engines/sqlite/index.ts';
import { TestThread } from '../../src/engines/sqlite/settings.ts';
import { serve } from '../../src/engines/sqlite/worker/serve.ts';
import type { EventLog } from '../../src/util/log.ts';
import type {
  CrashMoment,
  DurableTestEngine,
  EngineUnderTest,
  OpenTestEngine,
  TestEngine,
} from '../engines.ts';
import { FakeClock } from '../support/clock.ts';
import { Faults } from './sqlite-faults.ts';

const DAY_MS = 24 * 3600 * 1000;
const FILE = 'test.db';

/** Creates a folder in the system's temporary folder. */
export function temporaryFolder(): string {
  return mkdtempSync(join(tmpdir(), 'quayside-sqlite-'));
}

export const SILENT: EventLog = { info: () => {}, warn: () => {} };

interface SqliteSetUp extends OpenTestEngine {
  readonly url: string;
  readonly folder: string;
  readonly clock: FakeClock;
  readonly settings: Readonly<Record<string, unknown>>;
}

export const SQLITE = durable('sqlite', {});
export const NORMAL_SQLITE = durable('sqlite, durability normal', { durability: 'normal' });

/**
 * Runs the store in this thread: starting one takes a tenth of a second of processor time, and many tests open an
 * engine each. The model of files uses the real thread, and so do the contract of files in `npm run test:long` and
 * tests that block it halfway. Messages between the two are copied here, too, by the same kind of port.
 */
export const inThisThread = (): TestThread =>
  new TestThread((data) => {
    const { port1, port2 } = new MessageChannel();
    serve(port2, data);
    return {
      postMessage: (message, transfer = []) => port1.postMessage(message, transfer),
      on: (event: string, listener: (...args: never[]) => void) =>
        port1.on(event === 'exit' ? 'close' : event, listener as () => void),
    };
  }, new FakeClock());

const inMemory = () => ({
  url: 'sqlite::memory:',
  folder: tmpdir(),
  settings: { testThread: inThisThread() },
});

export const MEMORY_SQLITE: EngineUnderTest = {
  name: 'sqlite::memory:',
  type: 'sqlite',
  open: async (options) => openOnce({ ...options, ...inMemory(), clock: new FakeClock() }),
  openDurable: null,
};

function durable(name: string, settings: Readonly<Record<string, unknown>>): EngineUnderTest {
  const file = (options: OpenTestEngine) => ({
    ...options,
    url: `sqlite:${FILE}`,
    folder: temporaryFolder(),
    clock: new FakeClock(),
  });
  const openDurable = (options: OpenTestEngine): Promise<DurableTestEngine> =>
    openFile({ ...file(options), settings });
  const openInThisThread = async (options: OpenTestEngine): Promise<TestEngine> => {
    const setUp = { ...file(options), settings: { ...settings, testThread: inThisThread() } };
    return openOnce(setUp, () => rmSync(setUp.folder, { recursive: true }));
  };
  return {
    name,
    type: 'sqlite',
    open: process.env.CONTRACT === 'whole' ? openDurable : openInThisThread,
    openDurable,
  };
}

/** Starts an in-memory engine that shares a clock with others. */
export async function openMemory(options: OpenTestEngine, clock: FakeClock): Promise<Engine> {
  const engine = open(engineOptions({ ...options, ...inMemory(), clock }));
  await engine.start();
  return engine;
}

async function openOnce(setUp: SqliteSetUp, onClosed = (): void => {}): Promise<TestEngine> {
  const { clock } = setUp;
  const engine = open(engineOptions(setUp));
  await engine.start();
  return {
    engine,
    clock,
    now: () => clock.now(),
    passTime: async (ms) => clock.advance(ms),
    close: async () => {
      await closeSound(engine, clock);
      onClosed();
    },
  };
}

async function openFile(setUp: SqliteSetUp): Promise<DurableTestEngine> {
  const { folder, clock } = setUp;
  const faults = new Faults();
  const opened = await openOnce(
    { ...setUp, settings: { ...setUp.settings, testThread: faults.thread } },
    () => rmSync(folder, { recursive: true }),
  );
  const { engine } = opened;
  return {
    ...opened,
    lateSweepMs: 0,
    crash: async (moment, calls) => {
      await killed(engine, faults, moment, folder, calls);
      clock.advance(1);
      return openFile(setUp);
    },
  };
}

/**
 * Simulates `kill -9`: blocks the worker at the given moment and copies the files, since everything that it wrote so
 * far is in the kernel's hands. Then stops the worker and restores the copies.
 */
async function killed(
  engine: Engine,
  faults: Faults,
  moment: CrashMoment,
  folder: string,
  calls: () => void,
): Promise<void> {
  const frozen = faults.freeze(moment === 'before-commit' ? 'commit' : 'committed');
  calls();
  await frozen;
  const database = join(folder, FILE);
  const files = [database, `${database}-wal`].filter((file) => existsSync(file));
  for (const file of files) copyFileSync(file, `${file}.left`);
  faults.release();
  await engine.stop();
  rmSync(`${database}-wal`, { force: true });
  for (const file of files) copyFileSync(`${file}.left`, file);
}

async function closeSound(engine: Engine, clock: FakeClock): Promise<void> {
  let brokeDown: Error | null = null;
  void engine.failed.then((error) => {
    brokeDown = error;
  });
  await engine.stop();
  assert.equal(brokeDown, null, 'the engine failed during the test');
  assert.equal(clock.pending, 0, 'a stopped engine leaves no timer');
}

function engineOptions({ url, folder, clock, namespaces, dedupWindowMs, settings }: SqliteSetUp) {
  return {
    url,
    dataDir: folder,
    namespaces,
    clock,
    dedupWindowMs: dedupWindowMs ?? DAY_MS,
    settings,
    log: SILENT,
  };
}
