import { runTogether } from '../support/together.ts';

await runTogether('operations/**/*.test.ts');
