import { runTogether } from '../support/together.ts';

await runTogether('broker/**/*.test.ts');
