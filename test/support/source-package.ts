import { mkdir, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const SOURCE = fileURLToPath(new URL('../../src', import.meta.url));

/** Makes `quayside/client` known to programs in a folder, with its source in the place of what is built from it. */
export async function linkClient(folder: string): Promise<void> {
  const installed = join(folder, 'node_modules', 'quayside');
  await mkdir(installed, { recursive: true });
  await symlink(SOURCE, join(installed, 'src'));
  const manifest = { type: 'module', exports: { './client': './src/client/index.ts' } };
  await writeFile(join(installed, 'package.json'), JSON.stringify(manifest));
}
