import { runTogether } from '../support/together.ts';

await runTogether('cluster/!(cluster|failover).test.ts');
