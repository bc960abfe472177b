import { runTogether } from '../support/together.ts';

await runTogether('console/connection.test.ts');
