import { runTogether } from '../support/together.ts';

await runTogether('system/sqlite-*.test.ts');
