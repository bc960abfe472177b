import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { copyFile, cp, mkdir, readdir, readFile, realpath, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { insert, pop, type Started, start } from '../support/started.ts';
import { type DebianArchive, debianArchive, unpack } from './debian-root.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const AUTHORITIES = '/etc/ssl/certs/ca-certificates.crt';
const ENVIRONMENT = { ...process.env, QUAYSIDE_HTTP__PORT: '0' };
const run = promisify(execFile);

/** The user id of a process. */
async function userOf(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/^Uid:\s+(\d+)/m.exec(status)?.[1]);
}

/**
 * Flags of buildah for a storage in this folder. Where the kernel cannot mount overlays, as in many containers, the
 * storage has plain folders: each image and each container is then a copy of the whole root.
 */
async function storageFlags(folder: string): Promise<string[]> {
  const flags = ['--root', join(folder, 'images'), '--runroot', join(folder, 'run')];
  const overlay = ['--storage-driver=overlay', ...flags];
  const isSupported = await run('buildah', [...overlay, 'info']).then(
    () => true,
    () => false,
  );
  if (isSupported) return overlay;
  await rm(join(folder, 'images'), { recursive: true, force: true });
  return ['--storage-driver=vfs', ...flags];
}

// The two suites run concurrently, because both mostly wait for files and the registry; the tests of each run in order.
describe('An installation', { concurrency: true }, () => {
  let debian: DebianArchive;
  before(async () => {
    debian = await debianArchive();
  });
  after(() => debian.remove());

  describe('from the Dockerfile', { concurrency: false }, () => {
    /** Runs buildah with its own storage, so that it does not see the machine's images. */
    let buildah: (...args: string[]) => Promise<{ stdout: string }>;
    let flags: string[];

    before(async () => {
      flags = await storageFlags(debian.folder);
      buildah = (...args) => run('buildah', [...flags, ...args], { maxBuffer: 1 << 26 });
      const context = join(debian.folder, 'base');
      await mkdir(context);
      const npm = dirname(dirname(await realpath((await run('sh', ['-c', 'command -v npm'])).stdout.trim())));
      await Promise.all([
        copyFile(debian.archive, join(context, 'debian.tar')),
        copyFile(process.execPath, join(context, 'node')),
        copyFile(AUTHORITIES, join(context, 'authorities.crt')),
        cp(npm, join(context, 'npm'), { recursive: true }),
      ]);
      // Stands in for the official Node image, so that no image registry is needed.
      const base = `FROM scratch
ADD debian.tar /
COPY node /usr/local/bin/node
COPY npm /usr/local/lib/node_modules/npm
COPY authorities.crt ${AUTHORITIES}
ENV NODE_EXTRA_CA_CERTS=${AUTHORITIES}
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm
`;
      await writeFile(join(context, 'Dockerfile'), base);
      const bud = ['bud', '--isolation=chroot', '--pull-never', '--layers=false'];
      await buildah(...bud, '-t', 'base', context);
      // The packages that `npm ci` of this tree has downloaded already.
      const cache = (await run('npm', ['config', 'get', 'cache'])).stdout.trim();
      await mkdir(cache, { recursive: true });
      const own = ['--format=docker', '--build-arg=BASE=localhost/base', `--volume=${cache}:/root/.npm`];
      await buildah(...bud, ...own, '-t', 'quayside', ROOT);
    });

    it('runs as an unprivileged user, passes its health check and keeps elements over a restart', async () => {
      await buildah('from', '--pull-never', '--name', 'one', 'localhost/quayside');
      const config = JSON.parse((await buildah('inspect', '--type=image', 'localhost/quayside')).stdout)
        .Docker.config;
      assert.equal(config.User, '10001:10001');
      assert.deepEqual(Object.keys(config.Volumes), ['/data']);
      const inside = [
        'run',
        '--isolation=chroot',
        '--user=10001:10001',
        '--env=QUAYSIDE_HTTP__PORT=0',
        'one',
        '--',
      ];
      const serve = () => start('buildah', [...flags, ...inside, ...config.Entrypoint]);
      let server = await serve();
      const login = { url: server.url, password: server.password ?? '' };
      try {
        await insert(login, 'first', '1');
        assert.equal(await userOf(server.pid), 10001);
        const health = config.Healthcheck.Test.slice(1).map((part: string) =>
          part.replace('http://127.0.0.1:3444', server.url),
        );
        await buildah(...inside, ...health);
      } finally {
        await server.stop();
      }
      server = await serve();
      try {
        assert.equal(await pop({ ...login, url: server.url }, 'first'), '1');
      } finally {
        await server.stop();
      }
    });
  });

  describe('from the Debian package', { concurrency: false }, () => {
    let root: string;
    const inside = (...args: string[]) => run('chroot', [root, ...args]);
    const serve = (): Promise<Started> =>
      start(
        'chroot',
        ['--userspec=quayside:quayside', root, 'quayside', '--config', '/etc/quayside/quayside.yaml'],
        {
          env: ENVIRONMENT,
        },
      );

    const install = async (revision: string): Promise<void> => {
      const name = (await readdir(root)).find((file) => file.includes(`-${revision}_`));
      await inside('dpkg', '--install', `/${name}`);
    };

    /**
     * Writes a built package under another revision. Only the archive member with the control files is replaced, because
     * a build takes most of a minute.
     */
    const revise = async (built: string, revision: string): Promise<void> => {
      const files = join(debian.folder, 'control');
      const replaced = join(debian.folder, 'control.tar');
      await run('dpkg-deb', ['--control', built, files]);
      const control = await readFile(join(files, 'control'), 'utf8');
      await writeFile(join(files, 'control'), control.replace(/^(Version: .*-).*$/m, `$1${revision}`));
      await run('tar', ['--owner=root:0', '--group=root:0', '-cf', replaced, '-C', files, '.']);
      const target = built.replace(/-\w+_(\w+\.deb)$/, `-${revision}_$1`);
      await copyFile(built, target);
      // dpkg requires the order debian-binary, control, data.
      await run('ar', ['rb', 'data.tar.gz', target, replaced]);
      await run('ar', ['d', target, 'control.tar.gz']);
    };

    before(async () => {
      root = join(debian.folder, 'root');
      await unpack(debian.archive, root);
      const { stdout } = await run(process.execPath, [join(ROOT, 'scripts/deb.ts'), root, '--level', '1']);
      for (const revision of ['2', '3']) await revise(stdout.trim(), revision);
      await install('1');
    });

    it('has a unit that systemd accepts without a warning and rates as little exposed', async () => {
      const unit = join(ROOT, 'ops/systemd/quayside.service');
      const { stdout } = await run('systemd-analyze', ['security', '--offline=true', '--threshold=20', unit]);
      assert.match(stdout, /exposure level/);
      // Verified outside of the minimal root, which has no systemd units that this one could refer to.
      const installed = await readFile(join(root, 'lib/systemd/system/quayside.service'), 'utf8');
      const checkable = join(debian.folder, 'quayside.service');
      await writeFile(checkable, installed.replace('/usr/bin/quayside', join(root, 'usr/bin/quayside')));
      const checked = await run('systemd-analyze', ['verify', checkable]);
      assert.equal(checked.stderr, '');
    });

    it('starts its service when it is installed again; at an upgrade, its configuration file may be gone, and only a running service is restarted', async () => {
      const systemctl = join(root, 'usr/bin/systemctl');
      const settings = join(root, 'etc/quayside/quayside.yaml');
      const calls = async (action: () => Promise<unknown>): Promise<string[]> => {
        await rm(join(root, 'calls'), { force: true });
        await action();
        const lines = (await readFile(join(root, 'calls'), 'utf8')).split('\n');
        return lines.filter((line) => line !== '' && line !== 'daemon-reload');
      };
      await mkdir(join(root, 'run/systemd/system'), { recursive: true });
      await writeFile(systemctl, '#!/bin/sh\necho "$@" >> /calls\n', { mode: 0o755 });
      assert.deepEqual(await calls(() => inside('dpkg', '--remove', 'quayside')), [
        'disable --now quayside.service',
      ]);
      assert.deepEqual(await calls(() => install('1')), ['enable --now quayside.service']);
      const content = await readFile(settings, 'utf8');
      await rm(settings);
      assert.deepEqual(await calls(() => install('2')), ['try-restart quayside.service']);
      await writeFile(settings, content);
      await rm(systemctl);
      await rm(join(root, 'run/systemd'), { recursive: true });
    });

    it('runs as its own user, keeps elements and settings over an upgrade, and keeps elements when it is purged', async () => {
      const settings = join(root, 'etc/quayside/quayside.yaml');
      let server = await serve();
      const login = { url: server.url, password: server.password ?? '' };
      try {
        await insert(login, 'first', '1');
        assert.notEqual(await userOf(server.pid), 0);
      } finally {
        await server.stop();
      }
      await writeFile(settings, `${await readFile(settings, 'utf8')}# mine\n`);
      await install('3');
      assert.match(await readFile(settings, 'utf8'), /# mine/);
      server = await serve();
      try {
        assert.equal(await pop({ ...login, url: server.url }, 'first'), '1');
        await insert({ ...login, url: server.url }, 'second', '2');
      } finally {
        await server.stop();
      }
      const data = await stat(join(root, 'var/lib/quayside'));
      assert.equal(data.mode & 0o777, 0o700);
      await inside('dpkg', '--purge', 'quayside');
      assert.deepEqual(
        await readdir(join(root, 'etc')).then((names) => names.filter((name) => name === 'quayside')),
        [],
      );
      assert.ok(!(await readdir(join(root, 'usr/lib'))).includes('quayside'));
      assert.ok((await readdir(join(root, 'var/lib/quayside'))).includes('N.db'));
    });
  });
});
