import { closeSync, fsyncSync, openSync } from 'node:fs';

/** Makes names that were given in a folder durable; the files' own syncs do not. */
export function syncFolder(path: string): void {
  // Windows opens no folder; its names are durable with the files.
  if (process.platform === 'win32') return;
  const descriptor = openSync(path, 'r');
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}
