import { runTogether } from '../support/together.ts';

// Takes longest, so it starts first.
await runTogether('console/console.test.ts');
