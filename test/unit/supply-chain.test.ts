import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const ROOT = new URL('../../', import.meta.url);
/** Maximum of direct dependencies of the service, without drivers of engines and the pinned Node. */
const MAX_DEPENDENCIES = 10;
/** Maximum of packages at run time, including transitive ones and the drivers. */
const MAX_PACKAGES = 55;
/** The kinds of dependencies in a package.json. */
const KINDS = ['dependencies', 'devDependencies', 'optionalDependencies'] as const;

type Manifest = Readonly<Partial<Record<(typeof KINDS)[number], Readonly<Record<string, string>>>>> & {
  readonly scripts?: Readonly<Record<string, string>>;
};

interface Locked {
  readonly version?: string;
  readonly resolved?: string;
  readonly integrity?: string;
  readonly dev?: boolean;
  readonly link?: boolean;
  readonly hasInstallScript?: boolean;
}

const json = async <T>(path: string): Promise<T> =>
  JSON.parse(await readFile(new URL(path, ROOT), 'utf8')) as T;
const manifest = await json<Manifest>('package.json');
const lock = await json<{ lockfileVersion: number; packages: Record<string, Locked> }>('package-lock.json');
const packages = Object.entries(lock.packages).filter(([path]) => path !== '');

describe('The supply chain', () => {
  it('has an exact version for each direct dependency, and the lock file has the same', async () => {
    const ofBench = await json<Manifest>('bench/reference/package.json');
    for (const kind of KINDS) {
      for (const [name, version] of Object.entries({ ...ofBench[kind], ...manifest[kind] })) {
        assert.match(version, /^\d+\.\d+\.\d+$/, name);
      }
      for (const [name, version] of Object.entries(manifest[kind] ?? {})) {
        assert.equal(lock.packages[`node_modules/${name}`]?.version, version, name);
      }
    }
  });

  it('locks each package by a hash, and takes all of them from the npm registry', () => {
    assert.equal(lock.lockfileVersion, 3);
    for (const [path, { integrity, resolved, link }] of packages) {
      assert.match(integrity ?? '', /^sha512-/, path);
      assert.notEqual(link, true, path);
      assert.match(resolved ?? 'https://registry.npmjs.org/', /^https:\/\/registry\.npmjs\.org\//, path);
    }
  });

  it('has no package with an install script, and would not run one', async () => {
    const scripted = packages.filter(([, { hasInstallScript }]) => hasInstallScript === true);
    assert.deepEqual(scripted, []);
    for (const [path, { dev }] of packages) {
      if (dev === true) continue;
      // Optional packages for other machines are not installed here.
      const installed = await json<Manifest>(`${path}/package.json`).catch(() => null);
      const scripts = Object.keys(installed?.scripts ?? {});
      assert.deepEqual(
        scripts.filter((name) => /^(pre|post)?install$/.test(name)),
        [],
        path,
      );
    }
    const npmrc = await readFile(new URL('.npmrc', ROOT), 'utf8');
    assert.match(npmrc, /^ignore-scripts=true$/m);
    assert.match(npmrc, /^min-release-age=7$/m);
  });

  it('is short, and each of its direct dependencies has a reason in the ADR about them', async () => {
    const runtime = Object.keys(manifest.dependencies ?? {});
    assert.ok(runtime.length <= MAX_DEPENDENCIES, runtime.join(', '));
    const needed = packages.filter(([, { dev }]) => dev !== true).map(([path]) => path);
    assert.ok(needed.length <= MAX_PACKAGES, `${needed.length} packages at run time`);
    const adr = await readFile(new URL('docs/adr/0002-dependencies.md', ROOT), 'utf8');
    for (const kind of KINDS) {
      for (const name of Object.keys(manifest[kind] ?? {})) assert.ok(adr.includes(`\`${name}\``), name);
    }
    const rows = [...adr.matchAll(/^\| `([^`]+)` \|/gm)].map(([, name]) => name);
    const served = [...runtime, ...Object.keys(manifest.optionalDependencies ?? {})];
    assert.deepEqual(
      rows.filter((name) => !served.includes(name ?? '')),
      [],
      'what the ADR lists is installed',
    );
  });
});

describe('npm run audit', () => {
  it('fails if there is an advisory about a package of the service', async () => {
    const advisory = {
      id: 1,
      url: 'https://example.org/1',
      title: 'planted',
      severity: 'high',
      vulnerable_versions: '<99',
    };
    const { code, output } = await auditAgainst((request, response) => {
      if (request.method === 'POST') response.end(JSON.stringify({ acorn: [advisory] }));
      else response.writeHead(404).end('{}');
    });
    assert.match(output, /^audit: acorn: high$/m);
    assert.equal(code, 1);
  });

  it('passes if there is none', async () => {
    const { code, output } = await auditAgainst((_, response) => response.end('{}'));
    assert.match(output, /^audit: no advisories$/m);
    assert.equal(code, 0);
  });

  it('reports a registry that does not support audits, and passes', async () => {
    const { code, output } = await auditAgainst((_, response) => response.writeHead(405).end());
    assert.match(output, /^audit: no result, the registry did not respond: .*405 Method Not Allowed/m);
    assert.equal(code, 0);
  });
});

/** Runs the audit against a registry that the test provides. */
async function auditAgainst(answer: RequestListener): Promise<{ code: number | null; output: string }> {
  const registry = createServer((request, response) => {
    request.resume();
    response.setHeader('content-type', 'application/json');
    request.on('end', () => answer(request, response));
  }).listen(0, '127.0.0.1');
  await once(registry, 'listening');
  const { port } = registry.address() as AddressInfo;
  try {
    const child = spawn(process.execPath, ['scripts/audit.ts'], {
      cwd: fileURLToPath(ROOT),
      env: { ...process.env, npm_config_registry: `http://127.0.0.1:${port}/` },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const [output, [code]] = await Promise.all([text(child.stdout), once(child, 'close')]);
    return { code, output };
  } finally {
    registry.closeAllConnections();
    registry.close();
  }
}
