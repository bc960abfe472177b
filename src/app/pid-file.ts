import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Config } from '../config/options.ts';
import { makeFolder, PRIVATE_MODE } from '../util/files.ts';

const PID_FILE = 'quayside.pid';

/** A pid file that was written. */
export interface PidFile {
  readonly path: string;
  /** Removes it, unless another server has written its own since. */
  remove(): void;
}

/**
 * Writes the process's id into `dataDir`, so that it can be signalled: npm forwards SIGTERM and SIGINT, but not SIGHUP.
 * The server that starts last owns the file. One that a crash left is replaced, even if another process has its number
 * by now: a file that names the wrong process would let an operator signal that one.
 * @throws Error of the system if the file cannot be written
 */
export function writePidFile(dataDir: string, warn: (message: string) => void): PidFile {
  makeFolder(dataDir);
  const path = join(dataDir, PID_FILE);
  const before = readPid(path);
  const draft = `${path}.${process.pid}.tmp`;
  try {
    writeFileSync(draft, `${process.pid}\n`, { mode: PRIVATE_MODE, flag: 'wx' });
    renameSync(draft, path);
  } catch (error) {
    rmSync(draft, { force: true });
    throw error;
  }
  if (before !== null && before !== process.pid && isAlive(before)) {
    warn(
      `${path} named process ${before}, which is alive, and now names process ${process.pid}: if both are servers, signal ${before} by its number`,
    );
  }
  return {
    path,
    remove: () => {
      if (readPid(path) === process.pid) rmSync(path, { force: true });
    },
  };
}

/** The process of the server that uses a `dataDir`; null if there is none, as far as the file knows. */
export function serverProcess({ dataDir }: Config): number | null {
  const pid = readPid(join(dataDir, PID_FILE));
  return pid !== null && isAlive(pid) ? pid : null;
}

/** Null if there is no such file, or none that holds a process's id. */
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
