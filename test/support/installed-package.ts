import { execFile } from 'node:child_process';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const run = promisify(execFile);

/** The package that `npm pack` creates from this tree, installed in an empty folder without optional packages. */
export class InstalledPackage {
  readonly folder: string;
  readonly tarball: string;
  /**
   * Environment for programs of the package: this Node comes first in PATH, as on a machine where it is the system's.
   */
  readonly env: NodeJS.ProcessEnv;

  private constructor(folder: string, tarball: string, env: NodeJS.ProcessEnv) {
    this.folder = folder;
    this.tarball = tarball;
    this.env = env;
  }

  static async create(): Promise<InstalledPackage> {
    const folder = await mkdtemp(join(tmpdir(), 'quayside-package-'));
    const env = { ...process.env, PATH: [dirname(process.execPath), process.env.PATH].join(delimiter) };
    try {
      // The commands of docs/get-started. Because of .npmrc, npm pack runs no scripts, so it does not build by itself.
      await run('npm', ['run', 'build'], { cwd: ROOT, env });
      await run('npm', ['pack', '--pack-destination', folder], { cwd: ROOT, env });
      const [name = ''] = await readdir(folder);
      const tarball = join(folder, name);
      await writeFile(join(folder, 'package.json'), '{ "type": "module" }');
      const flags = ['--omit=optional', '--prefer-offline', '--no-audit', '--no-fund'];
      await run('npm', ['install', ...flags, tarball], { cwd: folder, env });
      return new InstalledPackage(folder, tarball, env);
    } catch (error) {
      await rm(folder, { recursive: true, force: true });
      throw error;
    }
  }

  dispose(): Promise<void> {
    return rm(this.folder, { recursive: true, force: true });
  }
}
