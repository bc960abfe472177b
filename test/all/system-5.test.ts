import { runTogether } from '../support/together.ts';

await runTogether('system/!(sqlite-*|python-sdk).test.ts', { part: 5, of: 6 });
