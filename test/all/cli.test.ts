import { runTogether } from '../support/together.ts';

await runTogether('cli/**/*.test.ts');
