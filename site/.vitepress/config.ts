import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitepress';
import { anchorOf, titleOf } from '../headings.ts';
import { siteLinks } from '../links.ts';
import { PAGES, SECTIONS, sitePathOf } from '../navigation.ts';

const CONFIG = fileURLToPath(import.meta.url);
const ROOT = fileURLToPath(new URL('../..', import.meta.url));

export default defineConfig({
  title: 'Quayside',
  description: 'Named queues and exchanges over HTTP, STOMP and AMQP 1.0',
  lang: 'en',
  // Pages also stand outside of docs: CONTRIBUTING and CHANGELOG.
  srcDir: '..',
  srcExclude: ['!(docs)/**/*', 'README.md'],
  rewrites: Object.fromEntries(PAGES.map((page) => [page, sitePathOf(page)])),
  outDir: './dist',
  cacheDir: './node_modules/.vitepress',
  markdown: {
    anchor: { slugify: anchorOf },
    // The highlighter does not know these languages; their comments and strings look like those of others.
    languageAlias: { caddyfile: 'nginx', haproxy: 'nginx', stomp: 'http' },
    config: (md) => siteLinks(md, ROOT),
  },
  vite: {
    // The configuration at the root of the repository is that of the console.
    configFile: false,
    plugins: [
      {
        name: 'vue-of-the-site',
        enforce: 'pre',
        // A page becomes a module that imports vue, and stands outside of the folder in which vue is installed.
        resolveId(id, importer) {
          if (!/^vue($|\/)/.test(id) || !/\.md($|\?)/.test(importer ?? '')) return null;
          return this.resolve(id, CONFIG, { skipSelf: true });
        },
      },
    ],
  },
  themeConfig: {
    search: { provider: 'local' },
    outline: { level: [2, 3] },
    sidebar: SECTIONS.map(({ title, pages, isOpen = false }) => ({
      text: title,
      collapsed: !isOpen,
      items: pages.map((page) => ({
        text: titleOf(readFileSync(`${ROOT}${page}`, 'utf8')),
        link: `/${sitePathOf(page).replace(/(index)?\.md$/, '')}`,
      })),
    })),
  },
});
