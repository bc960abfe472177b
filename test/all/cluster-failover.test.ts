import { runTogether } from '../support/together.ts';

await runTogether('cluster/failover.test.ts');
