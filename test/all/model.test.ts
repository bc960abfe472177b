import { runTogether } from '../support/together.ts';

await runTogether('contract/model.test.ts');
