/**
 * `npm run docs:build [-- --outDir FOLDER]` builds the documentation site into `site/dist`; `npm run docs:dev` serves
 * it and reloads on changes. The first run installs VitePress from npm's cache or the registry; later runs need no
 * network.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { installTools } from './install-tools.ts';

const SITE = fileURLToPath(new URL('../site', import.meta.url));
const VITEPRESS = fileURLToPath(new URL('../site/node_modules/vitepress/bin/vitepress.js', import.meta.url));

await installTools(SITE);
const vitepress = spawn(process.execPath, [VITEPRESS, ...process.argv.slice(2)], {
  cwd: SITE,
  stdio: 'inherit',
});
[process.exitCode] = await once(vitepress, 'exit');
