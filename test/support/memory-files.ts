/**
 * `--test-global-setup` of the tests that clone the project, install packages and build images: it moves their temporary
 * files to memory, if the machine has enough.
 */
import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { memoryDiskOf } from './memory-disk.ts';

/** These tests need less than 4 GiB; `npm test` may need as much at the same time. */
const NEEDED_BYTES = 8 * 2 ** 30;

export function globalSetup(): void {
  moveTemporaryFiles(memoryDiskOf(NEEDED_BYTES));
}

/** Makes the temporary folder of this process, and of those that it starts, one on this file system; null: none. */
export function moveTemporaryFiles(disk: string | null): void {
  if (disk === null) return;
  const folder = mkdtempSync(join(disk, 'quayside-run-'));
  // PostgreSQL runs as another user, which reads certificates of tests, and mmdebstrap downloads as another one.
  chmodSync(folder, 0o755);
  process.env.TMPDIR = folder;
  process.once('exit', () => rmSync(folder, { recursive: true, force: true, maxRetries: 5 }));
}
