import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { PAGES, sitePathOf } from '../../site/navigation.ts';

const run = promisify(execFile);
const ROOT = fileURLToPath(new URL('../..', import.meta.url));

describe('The documentation site', () => {
  let folder: string;
  let files: Set<string>;
  /** The HTML of each page by its file name. */
  const pages = new Map<string, string>();

  before(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'quayside-docs-'));
    await run(process.execPath, [path.join(ROOT, 'scripts/docs.ts'), 'build', '--outDir', folder]);
    files = new Set(await readdir(folder, { recursive: true }));
    for (const file of files) {
      if (file.endsWith('.html')) pages.set(file, await readFile(path.join(folder, file), 'utf8'));
    }
  });

  after(() => rm(folder, { recursive: true, force: true }));

  it('has every page and a 404 page', () => {
    const expected = PAGES.map((page) => sitePathOf(page).replace(/\.md$/, '.html'));
    assert.deepEqual([...pages.keys()].sort(), [...expected, '404.html'].sort());
  });

  it('has no broken link to a page, a heading or an image', () => {
    const broken: string[] = [];
    let anchors = 0;
    for (const [file, html] of pages) {
      for (const [, , target = ''] of html.matchAll(/\s(href|src)="([^"]*)"/g)) {
        if (/^(https?|mailto|data):/.test(target)) continue;
        const [address = '', anchor = ''] = decodeURIComponent(target).split('#');
        const linked = address === '' ? file : fileOf(address, file);
        if (!files.has(linked)) broken.push(`${file}: ${target}`);
        if (anchor === '') continue;
        anchors += 1;
        if (!pages.get(linked)?.includes(` id="${anchor}"`)) broken.push(`${file}: ${target}`);
      }
    }
    assert.ok(anchors > 500, `${anchors}`);
    assert.deepEqual(broken, []);
  });

  it('loads nothing from other sites, so that it works without a network', () => {
    for (const [file, html] of pages) {
      assert.doesNotMatch(html, /<(script|img|iframe)[^>]*\ssrc="(https?:)?\/\//, file);
      assert.doesNotMatch(html, /<link[^>]*\shref="(https?:)?\/\//, file);
    }
  });

  it('has a local search index with words of its pages', async () => {
    const index = [...files].find((file) => /@localSearchIndexroot\.[\w-]+\.js$/.test(file));
    assert.ok(index !== undefined);
    const text = await readFile(path.join(folder, index), 'utf8');
    for (const word of ['backoff', 'promtool', 'appendfsync', 'idempotency']) {
      assert.ok(text.toLowerCase().includes(word), word);
    }
  });
});

/** The file that is served for a link on a page. */
function fileOf(address: string, page: string): string {
  const { pathname } = new URL(address, `http://site/${page}`);
  const file = pathname.slice(1);
  return file === '' || file.endsWith('/') ? `${file}index.html` : file;
}
