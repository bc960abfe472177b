import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { after, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { QueueClient } from '../support/http-client.ts';
import { ServerProcess } from '../support/server-process.ts';
import { checkContent, type KeptContent, keptConfig } from '../upgrades/content.ts';
import { KEPT_STORES } from '../upgrades/stores.ts';

const KEPT = fileURLToPath(new URL('../upgrades', import.meta.url));
const RELEASES = readdirSync(KEPT, { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .map(({ name }) => name);

describe('The data of a released version', () => {
  after(async () => {
    for (const store of KEPT_STORES) await store.clear();
  });

  it('includes release 0.1.0', () => {
    assert.ok(RELEASES.includes('0.1.0'));
  });

  for (const release of RELEASES) {
    for (const store of KEPT_STORES) {
      it(`can be used by this version: ${release} on ${store.engine}`, async () => {
        const content = JSON.parse(
          readFileSync(path.join(KEPT, release, `${store.engine}.json`), 'utf8'),
        ) as KeptContent;
        const server = await ServerProcess.create({ config: keptConfig(await store.url()) });
        const client = new QueueClient({ url: () => server.url });
        try {
          await store.bringBack(path.join(KEPT, release, store.file), server.dataDir);
          await server.start();
          await checkContent(client, content);
        } finally {
          client.close();
          await server.dispose();
        }
      });
    }
  }
});
