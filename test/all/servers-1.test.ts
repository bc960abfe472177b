import { runTogether } from '../support/together.ts';

// Starts before `session`, `stomp` and `unit`, which never wait: at the end, both cores are in use.
await runTogether('system/!(sqlite-*|python-sdk).test.ts', { part: 1, of: 6 });
