import { runTogether } from '../support/together.ts';

await runTogether('system/!(sqlite-*|python-sdk).test.ts', { part: 2, of: 6 });
