import { runTogether } from '../support/together.ts';

await runTogether('sandbox/**/*.test.ts');
