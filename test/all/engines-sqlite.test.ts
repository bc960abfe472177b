import { runTogether } from '../support/together.ts';

// Mostly waits, so it starts early.
await runTogether('system/sqlite-*.test.ts');
