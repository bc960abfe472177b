import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Engine, NamespacePolicy } from '../../src/engine/engine.ts';
import { open } from '../../src/engines/sqlite/index.ts';
import type { EventLog } from '../../src/util/log.ts';
import { FakeClock } from '../support/clock.ts';
import { inThisThread } from './sqlite.ts';

const DAY_MS = 24 * 3600 * 1000;

/** A warning that an engine logged. */
export interface Warning {
  readonly fields: object;
  readonly message: string;
}

/** A folder with one database that a test opens, closes and damages. */
export class SqliteFolder {
  readonly path: string;
  readonly clock = new FakeClock();
  readonly warnings: Warning[] = [];
  readonly #engines: Engine[] = [];

  /** @param path an existing folder, which is kept afterwards; default: a new one, which is removed */
  constructor(path?: string) {
    this.path = path ?? mkdtempSync(join(tmpdir(), 'quayside-sqlite-'));
    this.#isOwn = path === undefined;
  }

  readonly #isOwn: boolean;

  get file(): string {
    return join(this.path, 'test.db');
  }

  /** Creates an engine on the folder's database, not yet started. */
  engine(
    settings: Readonly<Record<string, unknown>> = {},
    namespaces: readonly NamespacePolicy[] = PLAIN,
    url = 'sqlite:test.db',
  ): Engine {
    const log: EventLog = {
      info: () => {},
      warn: (fields, message) => this.warnings.push({ fields, message }),
    };
    const engine = open({
      url,
      dataDir: this.path,
      namespaces,
      clock: this.clock,
      dedupWindowMs: DAY_MS,
      settings: { ballastBytes: 0, minFreeBytes: 0, testThread: inThisThread(), ...settings },
      log,
    });
    this.#engines.push(engine);
    return engine;
  }

  async started(
    settings: Readonly<Record<string, unknown>> = {},
    namespaces: readonly NamespacePolicy[] = PLAIN,
  ): Promise<Engine> {
    const engine = this.engine(settings, namespaces);
    await engine.start();
    return engine;
  }

  /** Stops every engine that was opened here and removes the folder. */
  async close(): Promise<void> {
    for (const engine of this.#engines) await engine.stop();
    if (this.#isOwn) rmSync(this.path, { recursive: true, force: true });
  }
}

const PLAIN: readonly NamespacePolicy[] = [
  { name: 'N', groups: null, deadLetter: { maxTries: 2, queue: '__deadletter__' }, retentionMs: null },
  { name: 'S', groups: ['default'], deadLetter: null, retentionMs: null },
];

export const QUEUE = { ns: 'N', name: 'orders' };

/** Runs a test with a new folder. */
export async function withFolder(test: (folder: SqliteFolder) => Promise<void>): Promise<void> {
  const folder = new SqliteFolder();
  try {
    await test(folder);
  } finally {
    await folder.close();
  }
}
