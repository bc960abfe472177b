import { runTogether } from '../support/together.ts';

// Takes longest, so it starts with the first eight.
await runTogether('console/console.test.ts');
