import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as delay } from 'node:timers/promises';
import { drain } from '../support/drain.ts';
import { History, type Operation } from '../support/history.ts';
import { checkHistory, describeViolations, type Verdict } from '../support/history-check.ts';
import { type Random, seededRandom } from '../support/random.ts';
import { Gate, Load } from '../support/recorded-load.ts';
import { ServerProcess } from '../support/server-process.ts';

export interface CrashOptions {
  readonly kills: number;
  readonly seed: number;
  /** Called after every kill. */
  readonly onKill?: (done: number) => void;
}

export interface CrashReport {
  readonly kills: number;
  /** Kills before the server was ready. */
  readonly killsDuringStart: number;
  /** The longest time from a start to readiness after a kill. */
  readonly slowestStartMs: number;
  readonly verdict: Verdict;
  /** The number of database files that passed `integrity_check`. */
  readonly soundFiles: number;
  /** The violations found, one line each; empty if the run passed. */
  readonly faults: readonly string[];
  readonly operations: readonly Operation[];
}

const KILL_AFTER_MS = { least: 50, most: 1500 };
const KILLS_DURING_START = 0.2;
const SQLITE_MAGIC = 'SQLite format 3\u0000';

/**
 * Repeatedly kills the real server under load and restarts it on the same data, then drains it and checks the recorded
 * history. See reliability F1.
 */
export async function runCrash(options: CrashOptions): Promise<CrashReport> {
  await using server = await ServerProcess.create({ config: crashConfig() });
  const run = new CrashRun(server, options);
  return await run.run();
}

function crashConfig(): Record<string, unknown> {
  return {
    http: { users: { test1: 'test1' } },
    namespaces: {
      N: { url: 'sqlite:N.db' },
      events: { url: 'sqlite:events.db', variant: 'stream', groups: ['a', 'b'] },
    },
  };
}

class CrashRun {
  readonly #server: ServerProcess;
  readonly #options: CrashOptions;
  readonly #random: Random;
  readonly #history = new History();
  readonly #gate = new Gate();
  readonly #faults: string[] = [];
  #killsDuringStart = 0;
  #startMs: number[] = [];

  constructor(server: ServerProcess, options: CrashOptions) {
    this.#server = server;
    this.#options = options;
    this.#random = seededRandom(options.seed);
  }

  async run(): Promise<CrashReport> {
    const { kills, onKill } = this.#options;
    const url = (): string => this.#server.url;
    // The kills have their own random stream, so that their moments do not depend on the load's timing.
    const random = seededRandom(this.#random.between(0, 2 ** 31));
    const load = new Load({ urls: [url], gate: this.#gate, history: this.#history, random });
    load.start();
    for (let kill = 1; kill <= kills; kill++) {
      if (kill > 1 && this.#random.chance(KILLS_DURING_START)) await this.#killDuringStart();
      else await this.#killUnderLoad();
      onKill?.(kill);
    }
    await this.#startServer();
    this.#gate.open();
    await load.stop();
    this.#faults.push(...(await drain(this.#server.url, this.#history)));
    const { code, signal } = await this.#server.stop();
    if (code !== 0) this.#faults.push(`stop: the server exited with code ${code}, signal ${signal}`);
    const soundFiles = await this.#checkFiles();
    const { operations } = this.#history;
    const verdict = checkHistory(operations, { fifo: true });
    // A run without load proves nothing.
    if (verdict.counts.inserts.ok === 0) this.#faults.push('load: no insert was acknowledged');
    if (verdict.counts.deliveries === 0) this.#faults.push('load: nothing was delivered');
    return {
      kills,
      killsDuringStart: this.#killsDuringStart,
      slowestStartMs: Math.max(...this.#startMs),
      verdict,
      soundFiles,
      faults: [...this.#faults, ...describeViolations(verdict)],
      operations,
    };
  }

  async #startServer(): Promise<void> {
    const from = performance.now();
    await this.#server.start();
    this.#startMs.push(Math.round(performance.now() - from));
  }

  async #killUnderLoad(): Promise<void> {
    await this.#startServer();
    this.#gate.open();
    await delay(this.#random.between(KILL_AFTER_MS.least, KILL_AFTER_MS.most));
    this.#gate.close();
    await this.#kill();
  }

  async #killDuringStart(): Promise<void> {
    this.#server.launch();
    await delay(this.#random.between(0, this.#startMs.at(-1) ?? 0));
    await this.#kill();
    this.#killsDuringStart++;
  }

  async #kill(): Promise<void> {
    const [client, queue] = ['chaos', ''];
    const start = { client, queue, seq: this.#history.nextSeq(client), invokedAt: performance.now() };
    const invokedWallAt = Date.now();
    await this.#server.kill();
    const end = { endedAt: performance.now(), endedWallAt: Date.now(), outcome: 'ok' as const };
    this.#history.record({ kind: 'crash', ...start, invokedWallAt, ...end });
  }

  /** Returns the number of intact database files. */
  async #checkFiles(): Promise<number> {
    let sound = 0;
    for (const name of await readdir(this.#server.dataDir)) {
      const file = path.join(this.#server.dataDir, name);
      const start = (await readFile(file)).subarray(0, SQLITE_MAGIC.length).toString('latin1');
      if (start !== SQLITE_MAGIC) continue;
      const integrity = integrityOf(file);
      if (integrity === 'ok') sound++;
      else this.#faults.push(`integrity: ${name}: ${integrity}`);
    }
    if (sound === 0) this.#faults.push(`integrity: no database file was found in ${this.#server.dataDir}`);
    return sound;
  }
}

function integrityOf(file: string): string {
  const database = new DatabaseSync(file, { readOnly: true });
  try {
    const rows = database.prepare('PRAGMA integrity_check').all();
    return rows.map((row) => String(row.integrity_check)).join('; ');
  } finally {
    database.close();
  }
}

/** A one-line summary of the run. */
export function summaryOf(report: CrashReport, seed: number): string {
  const { verdict, faults } = report;
  const { inserts, takes, settles, deliveries } = verdict.counts;
  const facts = [
    `kills=${report.kills} (${report.killsDuringStart} during start)`,
    `acked=${inserts.ok} delivered=${deliveries}`,
    `lost=${verdict.lost.length} duplicated=${verdict.duplicated.length} changed=${verdict.unexpected.length}`,
    `early=${verdict.early.length} tries=${verdict.wrongTries.length} order=${verdict.outOfOrder.length}`,
    `recovered=${verdict.recovered.length} maybePopped=${verdict.maybePopped.length} overtaken=${verdict.overtaken.length}`,
    `unknown=${inserts.unknown}+${takes.unknown}+${settles.unknown} (insert+take+settle)`,
    `files=${report.soundFiles} sound, slowest start ${report.slowestStartMs} ms`,
    `faults=${faults.length} seed=${seed}`,
  ];
  return `crash: ${facts.join(', ')}`;
}
