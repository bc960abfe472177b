import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { referencePages } from '../../scripts/reference.ts';

describe('The pages of docs/reference that come from the code', () => {
  const pages = referencePages();

  for (const [file, text] of pages) {
    it(`${file} is as the code is`, () => {
      const page = readFileSync(new URL(`../../docs/reference/${file}`, import.meta.url), 'utf8');
      assert.equal(page, text, 'run npm run docs:reference');
    });
  }

  it('errors.md has what each error means', () => {
    const rows = (pages.get('errors.md') ?? '').split('\n').filter((line) => line.startsWith('| `'));
    assert.ok(rows.length > 40);
    for (const row of rows) assert.match(row, /\| [^|]{10,} \|$/);
  });
});
