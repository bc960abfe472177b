import { runTogether } from '../support/together.ts';

await runTogether('{architecture,unit/**/*}.test.ts');
