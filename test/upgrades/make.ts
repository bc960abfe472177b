/**
 * `node test/upgrades/make.ts` stores data written by this version in `test/upgrades/<version>/`, from which later
 * versions are tested to upgrade. Run once per release.
 */
import { existsSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { QueueClient } from '../support/http-client.ts';
import { ServerProcess } from '../support/server-process.ts';
import { keptConfig, storeContent } from './content.ts';
import { KEPT_STORES } from './stores.ts';

const PACKAGE = new URL('../../package.json', import.meta.url);
const { version } = JSON.parse(await readFile(PACKAGE, 'utf8')) as { version: string };
const folder = path.join(import.meta.dirname, version);
if (existsSync(folder)) {
  console.error(`${folder} already exists: data of a released version must not change.`);
  process.exit(1);
}
await mkdir(folder);
for (const store of KEPT_STORES) {
  await store.clear();
  const server = await ServerProcess.start({ config: keptConfig(await store.url()) });
  const client = new QueueClient({ url: server.url });
  try {
    const content = await storeContent(client);
    client.close();
    await server.stop();
    await store.keep(path.join(folder, store.file), server.dataDir);
    await writeFile(path.join(folder, `${store.engine}.json`), `${JSON.stringify(content, null, 2)}\n`);
  } finally {
    client.close();
    await server.dispose();
    await store.clear();
  }
  console.log(`${store.engine}: ${path.join(folder, store.file)}`);
}
// The Redis and PostgreSQL servers are children of this process and would keep it alive.
process.exit(0);
