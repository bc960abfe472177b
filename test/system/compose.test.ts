import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { parse } from 'yaml';
import { Folder } from './program.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const SECRETS = {
  '/run/secrets/url': 'postgres://quayside:secret@postgres/quayside',
  '/run/secrets/admin': 'a long password',
};

interface Service {
  readonly environment?: Readonly<Record<string, string>>;
  readonly build?: string;
  readonly [option: string]: unknown;
}

/** The services of a file that run the server. */
async function serversOf(file: string): Promise<[string, Service][]> {
  const { services } = parse(await readFile(join(ROOT, file), 'utf8')) as {
    services: Record<string, Service>;
  };
  return Object.entries(services).filter(([, { build }]) => build !== undefined);
}

describe('The compose files', () => {
  let folder: Folder;
  before(async () => {
    folder = await Folder.create();
  });
  after(() => folder.dispose());

  for (const file of ['compose.yaml', 'compose.cluster.yaml']) {
    it(`${file} gives servers settings that they take, and no rights or place to write but /data`, async () => {
      const servers = await serversOf(file);
      assert.ok(servers.length > 0);
      const env: Record<string, string> = {};
      for (const [variable, value] of Object.entries(servers[0]?.[1].environment ?? {})) {
        const secret = Object.entries(SECRETS).find(([path]) => path === value);
        env[variable] =
          secret === undefined ? value : folder.file(await folder.write(`${variable}.txt`, secret[1]));
      }
      const program = await folder.run(['--print-config'], { env });
      assert.equal(program.code, 0, program.stderr);
      for (const [name, service] of servers) {
        assert.deepEqual(service.environment, servers[0]?.[1].environment, name);
        assert.deepEqual([service.read_only, service.cap_drop], [true, ['ALL']], name);
      }
    });
  }

  it('have a proxy whose settings HAProxy takes', async () => {
    await promisify(execFile)('haproxy', ['-c', '-f', join(ROOT, 'ops/compose/haproxy.cfg')]);
  });
});
