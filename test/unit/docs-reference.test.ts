import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { referencePages } from '../../scripts/reference.ts';

const DOCS = new URL('../../docs', import.meta.url);
/** A command in inline code, or on a line of a block. */
const CALL = /(?:`|^\$ |^)(?:npx quayside|quayside|npm start --) ([a-z-][^`|\n>]*)/gm;

describe('The pages of docs/reference that come from the code', () => {
  const pages = referencePages();

  for (const [file, text] of pages) {
    it(`${file} matches the code`, () => {
      const page = readFileSync(new URL(`../../docs/reference/${file}`, import.meta.url), 'utf8');
      assert.equal(page, text, 'run npm run docs:reference');
    });
  }

  it('commands.md has each command and option that another page names', () => {
    const sections = new Map(
      (pages.get('commands.md') ?? '')
        .split(/^## /m)
        .map((section) => [section.split('\n')[0] ?? '', section]),
    );
    const docs = readdirSync(DOCS, { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.md') && !name.startsWith('adr/'))
      .map((name) => `docs/${name}`);
    let named = 0;
    const unknown: string[] = [];
    for (const page of ['README.md', 'CONTRIBUTING.md', ...docs]) {
      const text = readFileSync(new URL(`../../${page}`, import.meta.url), 'utf8');
      for (const [call, rest = ''] of text.matchAll(CALL)) {
        const [first = '', second = ''] = rest.split(/\s+/);
        const section = sections.get(`${first} ${second}`) ?? sections.get(first) ?? '';
        const options = rest.match(/--[a-z][a-z-]*/g) ?? [];
        named += 1;
        // Accepted by every command, or by those of the server, even before the name of the command.
        const isKnown = (option: string): boolean =>
          ['--config', '--help'].includes(option) || section.includes(`\`${option}`);
        if (first.startsWith('--')) continue;
        if (section === '' || !options.every(isKnown)) unknown.push(`${page}: ${call}`);
      }
    }
    assert.deepEqual(unknown, []);
    assert.ok(named > 80, `${named}`);
  });

  it('errors.md explains each error', () => {
    const rows = (pages.get('errors.md') ?? '').split('\n').filter((line) => line.startsWith('| `'));
    assert.ok(rows.length > 40);
    for (const row of rows) assert.match(row, /\| [^|]{10,} \|$/);
  });
});
