import { runTogether } from '../support/together.ts';

await runTogether('client/**/*.test.ts');
