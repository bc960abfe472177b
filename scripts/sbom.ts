/**
 * `npm run sbom -- [FILE]`: writes the bill of materials (CycloneDX, JSON) of the run-time dependencies, including
 * optional drivers and the pinned Node, generated from the lock file. Needs no network. Without FILE it is written to
 * standard output.
 */
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));

const MAX_OUTPUT_BYTES = 2 ** 26;

interface Component {
  readonly 'bom-ref': string;
  readonly name: string;
  readonly version: string;
  readonly purl: string;
}

export interface BillOfMaterials {
  readonly bomFormat: string;
  readonly metadata: { readonly component: Component };
  readonly components: readonly Component[];
  readonly dependencies: readonly { readonly ref: string; readonly dependsOn: readonly string[] }[];
}

interface LockFile {
  readonly packages: Readonly<Record<string, { readonly version: string; readonly dev?: boolean }>>;
}

/**
 * The output of `npm sbom`, without packages that are only needed for development. Its own `--omit dev` also drops
 * packages that are needed for both, such as `yaml`.
 */
export function billOfMaterials(): BillOfMaterials {
  const args = ['sbom', '--sbom-format', 'cyclonedx', '--package-lock-only'];
  const all = JSON.parse(
    execFileSync('npm', args, {
      cwd: ROOT,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
      maxBuffer: MAX_OUTPUT_BYTES,
    }),
  ) as BillOfMaterials;
  const needed = neededPackages();
  const components = all.components.filter(({ 'bom-ref': ref }) => needed.has(ref));
  const named = new Set(components.map(({ 'bom-ref': ref }) => ref));
  const missing = [...needed].filter((ref) => !named.has(ref));
  if (missing.length > 0) throw new Error(`npm sbom does not name ${missing.join(', ')}.`);
  const { component } = all.metadata;
  const kept = new Set([...needed, component['bom-ref']]);
  return {
    ...all,
    // npm uses the name of the folder as the component's name.
    metadata: { ...all.metadata, component: { ...component, name: 'quayside' } },
    components,
    dependencies: all.dependencies
      .filter(({ ref }) => kept.has(ref))
      .map(({ ref, dependsOn }) => ({ ref, dependsOn: dependsOn.filter((other) => kept.has(other)) })),
  };
}

/** The packages of the lock file that are needed at run time, as `name@version`. */
function neededPackages(): Set<string> {
  const { packages } = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8')) as LockFile;
  const needed = Object.entries(packages).filter(([path, { dev }]) => path !== '' && dev !== true);
  return new Set(needed.map(([path, { version }]) => `${path.split('node_modules/').at(-1)}@${version}`));
}

if (import.meta.main) {
  const text = `${JSON.stringify(billOfMaterials(), null, 2)}\n`;
  const [, , file] = process.argv;
  if (file === undefined) process.stdout.write(text);
  else writeFileSync(file, text);
}
