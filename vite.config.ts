import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

/** A server to develop against, which the address of the development server stands in front of. */
const SERVER = process.env.QUAYSIDE_URL ?? 'http://127.0.0.1:3444';

/** The console: static files that work under any path. */
export default defineConfig({
  root: fileURLToPath(new URL('src/console', import.meta.url)),
  base: './',
  publicDir: false,
  build: {
    outDir: fileURLToPath(new URL('dist/console', import.meta.url)),
    emptyOutDir: true,
    // Browsers with `light-dark()`, popover and `<dialog>`.
    target: ['chrome125', 'firefox128', 'safari17.5'],
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: {
    proxy: Object.fromEntries(
      [
        // Also of `/queues`.
        '/q',
        '/x',
        '/events',
        '/history',
        '/operations',
        '/dead-letters',
        '/consumers',
        '/sessions',
        '/audit',
        '/tokens',
        '/engines',
        '/nodes',
        '/readyz',
        '/console/session',
      ].map((path) => [path, { target: SERVER }]),
    ),
  },
});
