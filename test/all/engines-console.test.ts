import { runTogether } from '../support/together.ts';

await runTogether('console/engines.test.ts');
