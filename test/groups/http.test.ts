import { runTogether } from '../support/together.ts';

await runTogether('http/**/*.test.ts');
