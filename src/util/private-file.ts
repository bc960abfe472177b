import { closeSync, constants, openSync, statSync } from 'node:fs';

/** What only the owner of a file may read. */
export const PRIVATE_MODE = 0o600;

/** Opens a file for writing, made or emptied. Follows no link: others who may write to the folder could choose its target. */
export function openPrivateFile(path: string): number {
  const { O_WRONLY, O_CREAT, O_TRUNC, O_NOFOLLOW = 0 } = constants;
  return openSync(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, PRIVATE_MODE);
}

/** Makes an empty file that only its owner may read. One that is there, or whose folder is missing, stays as it is. */
export function createPrivateFile(path: string): void {
  try {
    closeSync(openSync(path, 'wx', PRIVATE_MODE));
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EEXIST' && code !== 'ENOENT') throw error;
  }
}

/** The mode of a file that others than its owner may read or write, such as `0644`; null if only its owner may. */
export function widerMode(path: string): string | null {
  // Windows has other rights, which Node does not show.
  if (process.platform === 'win32') return null;
  const mode = (statSync(path, { throwIfNoEntry: false })?.mode ?? 0) & 0o777;
  return (mode & 0o077) === 0 ? null : `0${mode.toString(8)}`;
}
