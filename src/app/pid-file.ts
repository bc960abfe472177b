import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { makeFolder } from '../util/make-folder.ts';
import { PRIVATE_MODE } from '../util/private-file.ts';

const FILE = 'quayside.pid';

/** A pid file that was written. */
export interface PidFile {
  readonly path: string;
  /** What an operator should know; null: nothing. */
  readonly warning: string | null;
  /** Removes it, unless another server has written its own since. */
  remove(): void;
}

/**
 * Writes the process's id into `dataDir`, so that it can be signalled: npm forwards SIGTERM and SIGINT, but not SIGHUP.
 * The server that starts last owns the file. One that a crash left is replaced, even if another process has its number by now:
 * a file that names the wrong process would let an operator signal a stranger.
 * @throws Error of the system where the file cannot be written
 */
export function writePidFile(dataDir: string): PidFile {
  makeFolder(dataDir);
  const path = join(dataDir, FILE);
  const before = readPid(path);
  const draft = `${path}.${process.pid}.tmp`;
  try {
    writeFileSync(draft, `${process.pid}\n`, { mode: PRIVATE_MODE, flag: 'wx' });
    renameSync(draft, path);
  } catch (error) {
    rmSync(draft, { force: true });
    throw error;
  }
  const isOther = before !== null && before !== process.pid && isAlive(before);
  return {
    path,
    warning: isOther
      ? `${path} named process ${before}, which is alive, and now names process ${process.pid}: if both are servers, signal ${before} by its number`
      : null,
    remove: () => {
      if (readPid(path) === process.pid) rmSync(path, { force: true });
    },
  };
}

/** Null if there is none, or none that is a process's id. */
function readPid(path: string): number | null {
  try {
    const pid = Number(readFileSync(path, 'utf8'));
    return Number.isSafeInteger(pid) && pid > 0 ? pid : null;
  } catch {
    return null;
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
