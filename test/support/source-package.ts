import { mkdir, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const SOURCE = fileURLToPath(new URL('../../src', import.meta.url));

/** Lets programs in a folder import `quayside/client`, from its source instead of the build. */
export async function linkClient(folder: string): Promise<void> {
  const installed = join(folder, 'node_modules', 'quayside');
  await mkdir(installed, { recursive: true });
  await symlink(SOURCE, join(installed, 'src'));
  const manifest = { type: 'module', exports: { './client': './src/client/index.ts' } };
  await writeFile(join(installed, 'package.json'), JSON.stringify(manifest));
}
