import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { MUTANTS } from '../mutants/mutants.ts';

const REPOSITORY = new URL('../../', import.meta.url);

/**
 * `npm run test:mutants` applies them only now and then: this test fails as soon as code that they change is edited.
 */
describe('Every planted bug', () => {
  for (const [part, mutants] of Object.entries(MUTANTS)) {
    it(`has exactly one place in the source: ${part}`, () => {
      for (const { name, edits } of mutants) {
        for (const { file, search } of edits) {
          const found = readFileSync(new URL(file, REPOSITORY), 'utf8').split(search).length - 1;
          assert.equal(found, 1, `${name}: ${search} occurs ${found} times in ${file}`);
        }
      }
    });
  }
});
