import { runTogether } from '../support/together.ts';

await runTogether('stomp/**/*.test.ts');
