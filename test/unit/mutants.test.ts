import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { MUTANTS } from '../mutants/mutants.ts';

const REPOSITORY = new URL('../../', import.meta.url);

/** They are tried by `npm run test:mutants`, which is run now and then: what they change must not move unseen. */
describe('Every planted bug', () => {
  for (const [part, mutants] of Object.entries(MUTANTS)) {
    it(`has its one place in the source: ${part}`, () => {
      for (const { name, edits } of mutants) {
        for (const { file, search } of edits) {
          const found = readFileSync(new URL(file, REPOSITORY), 'utf8').split(search).length - 1;
          assert.equal(found, 1, `${name}: ${search} stands ${found} times in ${file}`);
        }
      }
    });
  }
});
