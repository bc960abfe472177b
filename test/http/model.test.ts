import { describe, it } from 'node:test';
import fc from 'fast-check';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import { MAIN_ENGINES } from '../engines.ts';
import { plain } from '../support/broker.ts';
import { Harness } from './harness.ts';
import { commands, HttpWorld } from './model-world.ts';

/** Without a network, histories are cheap. */
const RUNS = Number(process.env.MODEL_RUNS ?? 30);
const RUNS_ELSEWHERE = Number(process.env.MODEL_RUNS ?? 5);
const NAMESPACES = [
  plain('jobs', { deadLetter: { maxTries: 3, queue: 'dead' } }),
  plain('stream', { groups: ['g1', 'g2'] }),
];

/**
 * Runs the sequential model of the storage contract through the whole server, with consumers that wait, time out,
 * are cancelled or disconnect, and with queues that are paused.
 */
for (const engine of MAIN_ENGINES) {
  describe(`the HTTP interface: ${engine.name}`, () => {
    it('behaves like the sequential model in any history', async () => {
      await fc.assert(
        fc.asyncProperty(fc.commands(commands, { maxCommands: 50 }), async (history) => {
          const harness = await Harness.start({ engine, namespaces: NAMESPACES });
          const world = new HttpWorld(harness, NAMESPACES);
          try {
            await fc.asyncModelRun(() => ({ model: world, real: world }), history);
            await world.leaveAll();
          } finally {
            world.close();
            await harness.close();
          }
        }),
        { numRuns: engine === MEMORY_SQLITE ? RUNS : RUNS_ELSEWHERE },
      );
    });
  });
}
