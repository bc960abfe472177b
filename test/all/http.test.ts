import { runTogether } from '../support/together.ts';

await runTogether('http/!(exchange*).test.ts');
