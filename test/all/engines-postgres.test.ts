import { runTogether } from '../support/together.ts';

await runTogether('engines/*.postgres.test.ts');
