import { closeSync, ftruncateSync, openSync, readdirSync, readFileSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { compileLibrary } from './compile-library.ts';

const SOURCE = new URL('./power-loss.c', import.meta.url);
/** Length of a record's header: size before, offset, length of the old bytes. */
const RECORD_BYTES = 24;

/** Compiles the library that records unsynced writes. Returns the environment that loads it into a process. */
export function powerLossEnvironment(folder: string): Readonly<Record<string, string>> {
  return { LD_PRELOAD: compileLibrary(SOURCE, folder) };
}

/** Undoes every unsynced write of the folder's databases, the last one first. */
export function losePower(folder: string): void {
  for (const name of readdirSync(folder).filter((file) => file.endsWith('.undo'))) {
    const undo = join(folder, name);
    takeBack(undo.slice(0, -'.undo'.length), readFileSync(undo));
    rmSync(undo);
  }
}

function takeBack(file: string, records: Buffer): void {
  const starts: number[] = [];
  let end = 0;
  for (let at = 0; at + RECORD_BYTES <= records.length; at = end) {
    end = at + RECORD_BYTES + Number(records.readBigInt64LE(at + 16));
    // The kill truncated this record; it precedes its write, so that was never made.
    if (end > records.length) break;
    starts.push(at);
  }
  const descriptor = openSync(file, 'r+');
  for (const at of starts.reverse()) {
    const [size, offset, length] = [0, 8, 16].map((field) => Number(records.readBigInt64LE(at + field)));
    writeSync(descriptor, records, at + RECORD_BYTES, length, offset);
    ftruncateSync(descriptor, size);
  }
  closeSync(descriptor);
}
