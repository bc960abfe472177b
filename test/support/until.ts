import { setTimeout as delay, setImmediate as turn } from 'node:timers/promises';

/** What takes longer does not come: the test says so, before a limit of the whole run does. */
const PATIENCE_MS = 60_000;
/**
 * What only needs the event loop to turn is there after a few turns. A loop of turns alone would take a whole core
 * until then.
 */
const TURNS = 20;
const PAUSE_MS = 2;

/** Resolves when the condition holds, or rejects with its text if it does not for a minute. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  const end = performance.now() + PATIENCE_MS;
  for (let looks = 1; !(await condition()); looks += 1) {
    if (performance.now() > end) throw new Error(`Not reached within ${PATIENCE_MS} ms: ${condition}`);
    await (looks < TURNS ? turn() : delay(PAUSE_MS));
  }
}
