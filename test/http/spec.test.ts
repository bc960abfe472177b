import { describe } from 'node:test';
import { MAIN_ENGINES_AND_CLUSTER } from '../engines.ts';
import { sharedHarness } from './harness.ts';
import { errorAndLimitRows } from './spec/errors-and-limits.ts';
import { operationRows } from './spec/operations.ts';
import { recordRows } from './spec/records.ts';
import { stateRows } from './spec/states.ts';

// Each row of the spec's queue tables, with each engine.
for (const engine of MAIN_ENGINES_AND_CLUSTER) {
  describe(`HTTP interface of the spec: ${engine.name}`, () => {
    const harness = sharedHarness({ engine });
    recordRows(harness);
    stateRows(harness);
    operationRows(harness);
    errorAndLimitRows(harness);
  });
}
