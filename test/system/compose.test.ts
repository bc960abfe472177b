import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { parse } from 'yaml';
import { Folder } from './program.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const SECRETS = {
  '/run/secrets/url': 'postgres://quayside:secret@postgres/quayside',
  '/run/secrets/console': 'a key of at least 32 characters, for sessions',
  '/run/secrets/admin': 'a long password',
};

interface Service {
  readonly environment?: Readonly<Record<string, string>>;
  readonly build?: string;
  readonly [option: string]: unknown;
}

/** The services of a compose file that run the server. */
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
    it(`${file} gives servers valid settings, no capabilities and a read-only root file system`, async () => {
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

  it("compose.cluster.yaml has nodes that accept each other's console sessions", async () => {
    for (const [name, { environment }] of await serversOf('compose.cluster.yaml'))
      assert.equal(environment?.QUAYSIDE_CONSOLE__SECRET_FILE, '/run/secrets/console', name);
  });

  it('compose.cluster.yaml starts with commands that create each secret, readable only by its owner', async () => {
    const text = await readFile(join(ROOT, 'compose.cluster.yaml'), 'utf8');
    const commands = text.split('\n').flatMap((line) => /^# {3}(.*)/.exec(line)?.[1] ?? []);
    const [chown, up] = commands.splice(-2);
    assert.match(`${chown}\n${up}`, /^sudo chown 10001 .*\ndocker compose .* up -d$/);
    const script = commands.join('\n').replace('npm start --silent -- hash-password', 'echo hash');
    assert.match(script, /echo hash/);
    await promisify(execFile)('sh', ['-ec', script], { cwd: folder.path });
    const { secrets } = parse(text) as { secrets: Record<string, { file: string }> };
    for (const [name, { file }] of Object.entries(secrets)) {
      const { mode, size } = await stat(folder.file(file));
      assert.deepEqual([mode & 0o777, size > 0], [0o600, true], name);
      assert.equal(chown?.includes(file.slice(2)), name !== 'postgres', name);
    }
  });

  it('have a proxy configuration that HAProxy accepts', async () => {
    await promisify(execFile)('haproxy', ['-c', '-f', join(ROOT, 'ops/compose/haproxy.cfg')]);
  });
});
