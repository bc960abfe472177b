import { stat, statfs } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { DiskUsage } from '../../engine/engine.ts';

/** Reads it on the main thread's side: a scrape of metrics does not wait for the thread that has the file. */
export async function diskUsage(file: string, minFreeBytes: number): Promise<DiskUsage> {
  const [database, log, disk] = await Promise.all([
    sizeOf(file),
    sizeOf(`${file}-wal`),
    statfs(dirname(file)),
  ]);
  return { fileBytes: database + log, freeBytes: disk.bavail * disk.bsize, minFreeBytes };
}

/** 0 for a file that does not exist: the log is removed by a clean stop. */
function sizeOf(file: string): Promise<number> {
  return stat(file).then(
    ({ size }) => size,
    () => 0,
  );
}
