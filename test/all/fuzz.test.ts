import { runTogether } from '../support/together.ts';

await runTogether('fuzz/*.test.ts');
