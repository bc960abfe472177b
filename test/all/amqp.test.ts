import { runTogether } from '../support/together.ts';

await runTogether('amqp/**/*.test.ts');
