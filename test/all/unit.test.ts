import { runTogether } from '../support/together.ts';

await runTogether('unit/**/*.test.ts');
