import { runTogether } from '../support/together.ts';

await runTogether('session/**/*.test.ts');
