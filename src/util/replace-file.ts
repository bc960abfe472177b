import { randomBytes } from 'node:crypto';
import { type FileHandle, open, rename, rm, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { makeFolder } from './make-folder.ts';
import { PRIVATE_MODE } from './private-file.ts';

/**
 * Replaces a file, readable by its owner alone, as one step: a crash leaves the old one or the new one.
 * @throws Error of the system
 */
export async function replaceFile(path: string, content: string): Promise<void> {
  makeFolder(dirname(path));
  const draft = `${path}.${randomBytes(6).toString('hex')}.tmp`;
  try {
    const file = await open(draft, 'wx', PRIVATE_MODE);
    try {
      await leaveToOwner(file, path);
      await file.writeFile(content);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(draft, path);
  } catch (error) {
    await rm(draft, { force: true });
    throw error;
  }
}

/** What root writes is for the user that the server runs as. */
async function leaveToOwner(draft: FileHandle, path: string): Promise<void> {
  if (process.getuid?.() !== 0) return;
  const kept = await stat(path).catch(() => stat(dirname(path)));
  await draft.chown(kept.uid, kept.gid);
}
