import { runTogether } from '../support/together.ts';

await runTogether('faults/*.test.ts');
