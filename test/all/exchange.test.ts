import { runTogether } from '../support/together.ts';

await runTogether('exchange/**/*.test.ts');
