import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Config } from '../config/options.ts';
import { makeFolder, PRIVATE_MODE } from '../util/files.ts';

const PID_FILE = 'quayside.pid';

/** A pid file written by this process. */
export interface PidFile {
  readonly path: string;
  /** Removes the file, unless another server has overwritten it. */
  remove(): void;
}

/**
 * Writes the process id into `dataDir`, so that operators can send SIGHUP, which npm does not forward. The server that
 * starts last owns the file. A file left by a crash is overwritten even if its process id is in use again: otherwise an
 * operator might signal that unrelated process.
 * @throws the system's error if the file cannot be written
 */
export function writePidFile(dataDir: string, warn: (message: string) => void): PidFile {
  makeFolder(dataDir);
  const path = join(dataDir, PID_FILE);
  const previousPid = readPid(path);
  const temporaryPath = `${path}.${process.pid}.tmp`;
  try {
    writeFileSync(temporaryPath, `${process.pid}\n`, { mode: PRIVATE_MODE, flag: 'wx' });
    renameSync(temporaryPath, path);
  } catch (error) {
    rmSync(temporaryPath, { force: true });
    throw error;
  }
  if (previousPid !== null && previousPid !== process.pid && isAlive(previousPid)) {
    warn(
      `${path} named process ${previousPid}, which is alive, and now names process ${process.pid}: if both are servers, signal ${previousPid} by its number`,
    );
  }
  return {
    path,
    remove: () => {
      if (readPid(path) === process.pid) rmSync(path, { force: true });
    },
  };
}

/** The process id of the server that uses `dataDir` according to the pid file, or null. */
export function serverProcess({ dataDir }: Config): number | null {
  const pid = readPid(join(dataDir, PID_FILE));
  return pid !== null && isAlive(pid) ? pid : null;
}

/** The process id in the file; null if the file is missing or invalid. */
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
