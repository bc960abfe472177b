import { mkdirSync, statSync } from 'node:fs';
import { dirname } from 'node:path';

/** What only the owner of a folder may enter. */
const PRIVATE_FOLDER = 0o700;

/**
 * Makes a folder for its owner alone, and those above it that are missing. Node's own recursive `mkdir` never ends where the folder
 * above is there and `mkdir` answers ENOENT all the same, as below /proc.
 * @throws Error of the system where one cannot be made
 */
export function makeFolder(path: string): void {
  const parent = dirname(path);
  if (parent !== path && statSync(parent, { throwIfNoEntry: false }) === undefined) makeFolder(parent);
  try {
    mkdirSync(path, PRIVATE_FOLDER);
  } catch (error) {
    // Systems refuse in several ways what is there already.
    if (statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true) throw error;
  }
}
