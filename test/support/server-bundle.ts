import assert from 'node:assert/strict';
import { once } from 'node:events';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'vite';
import { spawnOwned } from './owned-process.ts';
import { cacheOfBundle, SQLITE_CALLER } from './server-command.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
/** The programs and threads, named as their modules expect them next to the main program. */
const PROGRAMS = {
  main: 'src/main.ts',
  'worker/main': 'src/engines/sqlite/worker/main.ts',
  'thread/worker': 'src/sandbox/thread/worker.ts',
  'yaml-thread': 'src/config/yaml-thread.ts',
  // Not of the server: tests start it some thirty times, to kill it.
  [SQLITE_CALLER]: 'test/engines/sqlite-caller.ts',
};
/**
 * Packages that are not bundled: the drivers of Redis and PostgreSQL, since a server may lack them, and those that the
 * sandbox's thread loads, since QuickJS expects its WebAssembly next to its own module.
 */
const NOT_BUNDLED = ['acorn', 'ioredis', 'pg', 'quickjs-wasi'];
/** What every start of the server loads is one file. */
const START = { name: 'start', test: /\/src\/app\/serve\.ts$/, includeDependenciesRecursively: true };

export interface Bundle {
  /** The caller removes it. */
  readonly folder: string;
  readonly program: string;
}

/**
 * Bundles the server of this tree, including its threads, in a new folder: a start from its 300 modules takes a third
 * more processor time, and a run starts several hundred servers. Each program has its own bundle, in which a start loads
 * few files, and those with the packages: with some fifty files of shared modules, and with the packages of packages
 * outside, a start takes another fifth more.
 */
export async function bundleServer(): Promise<Bundle> {
  const folder = mkdtempSync(join(tmpdir(), 'quayside-bundle-'));
  // At the same depth below the folder as `src/http` below the project: the console is located relative to it.
  const modules = join(folder, 'server', 'bundle');
  mkdirSync(join(folder, 'dist'));
  symlinkSync(join(ROOT, 'dist', 'console'), join(folder, 'dist', 'console'));
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
  cpSync(join(ROOT, 'package.json'), join(folder, 'server', 'package.json'));
  cpSync(join(ROOT, 'src', 'engines', 'redis', 'library'), join(modules, 'library'), { recursive: true });
  const { NODE_ENV } = process.env;
  for (const [name, source] of Object.entries(PROGRAMS)) {
    await build({
      root: ROOT,
      configFile: false,
      publicDir: false,
      logLevel: 'warn',
      ssr: { noExternal: true, external: NOT_BUNDLED },
      build: {
        ssr: true,
        outDir: modules,
        emptyOutDir: false,
        minify: false,
        target: 'node24',
        rolldownOptions: {
          input: { [name]: join(ROOT, source) },
          // Names of classes and functions are read at run time.
          output: {
            entryFileNames: '[name].js',
            chunkFileNames: '[name]-[hash].js',
            keepNames: true,
            ...(name === 'main' && { codeSplitting: { groups: [START] } }),
          },
        },
      },
    });
  }
  // Vite sets it to `production` for this process, which all tests would inherit: npm would then omit packages.
  if (NODE_ENV === undefined) delete process.env.NODE_ENV;
  return { folder, program: join(modules, 'main.js') };
}

/**
 * Starts the server once with these namespaces and stops it, which fills the compile cache: a killed server writes
 * nothing there, and most of the servers that a run starts first are killed.
 */
export async function warmBundle({ folder, program }: Bundle, urls: readonly string[]): Promise<void> {
  const dataDir = join(folder, 'data');
  const namespaces = Object.fromEntries(urls.map((url, i) => [`N${i}`, { url }]));
  const http = { host: '127.0.0.1', port: 0, users: { test1: 'test1' } };
  const config = { http, stomp: { port: 0 }, amqp: { port: 0 }, namespaces, dataDir };
  writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
  const server = spawnOwned(process.execPath, [program, '--config', join(folder, 'config.json')], {
    env: { ...process.env, NODE_COMPILE_CACHE: cacheOfBundle(program) },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  server.stderr.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  server.stdout.once('data', () => server.kill('SIGTERM'));
  const [code] = await once(server, 'close');
  assert.equal(code, 0, `The bundled server did not start and stop:\n${output}`);
  rmSync(dataDir, { recursive: true });
}
