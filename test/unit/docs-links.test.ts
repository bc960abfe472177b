import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { anchorOf } from '../../site/headings.ts';
import { PAGES as SITE_PAGES } from '../../site/navigation.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const PAGES = [
  ...readdirSync(ROOT).filter((name) => name.endsWith('.md')),
  ...readdirSync(path.join(ROOT, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => path.join('docs', name)),
];

describe('Links in README, CONTRIBUTING, CHANGELOG and docs', () => {
  it('lead to files and headings that exist', () => {
    const broken: string[] = [];
    let links = 0;
    for (const page of PAGES) {
      for (const [, target = ''] of prose(page).matchAll(/\]\(([^)\s]+)\)/g)) {
        if (/^[a-z]+:/.test(target)) continue;
        links += 1;
        const [file = '', anchor = null] = target.split('#');
        const linked = file === '' ? page : path.join(path.dirname(page), file);
        if (!existsSync(path.join(ROOT, linked)) || (anchor !== null && !headingsOf(linked).has(anchor)))
          broken.push(`${page}: ${target}`);
      }
    }
    assert.ok(links > 50);
    assert.deepEqual(broken, []);
  });

  it('reach every page of docs from docs/README.md', () => {
    const reached = new Set<string>();
    const visit = (page: string): void => {
      if (reached.has(page)) return;
      reached.add(page);
      for (const [, target = ''] of prose(page).matchAll(/\]\(([^)\s#]+\.md)(?:#[^)]*)?\)/g)) {
        if (!/^[a-z]+:/.test(target)) visit(path.join(path.dirname(page), target));
      }
    };
    visit('docs/README.md');
    assert.deepEqual(
      PAGES.filter((page) => page.startsWith('docs') && !reached.has(page)),
      [],
    );
  });
});

describe('Shell blocks in README and docs', () => {
  it('have no comments: an interactive zsh, the shell of macOS, passes them as arguments', () => {
    const commented = PAGES.flatMap((page) =>
      [...readFileSync(path.join(ROOT, page), 'utf8').matchAll(/^```sh\n(.*?)^```/gms)]
        .filter(([, text = '']) => /(^|\s)#/m.test(text))
        .map(([, text]) => `${page}: ${text}`),
    );
    assert.deepEqual(commented, []);
  });
});

describe('The navigation of the documentation site', () => {
  it('has every page of docs once, and no other', () => {
    const pages = PAGES.filter((page) => page.startsWith('docs'));
    const shown = SITE_PAGES.filter((page) => page.startsWith('docs'));
    assert.deepEqual([...shown].sort(), pages.sort(), 'a new page needs a line in site/navigation.ts');
  });
});

describe('The complaints on the page that compares consoles', () => {
  it('name tests of the console that exist', () => {
    const [, section = ''] = prose('docs/comparison-consoles.md').split(
      '## What people complain of elsewhere',
    );
    const titles = [...section.matchAll(/(?<!\*)\*([^*\n]+)\*(?!\*)/g)].map(([, title = '']) => title);
    const tests = readdirSync(path.join(ROOT, 'test/console'))
      .filter((name) => name.endsWith('.ts'))
      .map((name) => readFileSync(path.join(ROOT, 'test/console', name), 'utf8'))
      .join('\n');
    assert.ok(titles.length > 5);
    assert.deepEqual(
      titles.filter((title) => !tests.includes(`it('${title}'`)),
      [],
    );
  });
});

/** A page without its code blocks. */
function prose(page: string): string {
  return readFileSync(path.join(ROOT, page), 'utf8').replaceAll(/^```.*?^```$/gms, '');
}

/** The anchors of a page's headings, as GitHub makes them. */
function headingsOf(page: string): Set<string> {
  return new Set([...prose(page).matchAll(/^#+ (.*)$/gm)].map(([, heading = '']) => anchorOf(heading)));
}
