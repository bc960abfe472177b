import { setTimeout as delay, setImmediate as turn } from 'node:timers/promises';

/** A condition that takes longer is considered lost; the test fails before the limit of the whole run. */
const PATIENCE_MS = 60_000;
/**
 * Conditions that only need the event loop hold after a few turns. Polling by turns alone would occupy a core until
 * then.
 */
const TURNS = 20;
const PAUSE_MS = 2;
/** A pause is a twentieth of what was waited so far: a wait of seconds would otherwise make a thousand checks. */
const PAUSE_SHARE = 0.05;
const MAX_PAUSE_MS = 25;

/**
 * Resolves when the condition holds; is rejected with its source text if it does not for a minute.
 * @param pauseMs least time between two checks; a longer one saves processor time if a check costs a server some
 */
export async function until(condition: () => boolean | Promise<boolean>, pauseMs = PAUSE_MS): Promise<void> {
  const start = performance.now();
  for (let looks = 1; !(await condition()); looks += 1) {
    const waited = performance.now() - start;
    if (waited > PATIENCE_MS) throw new Error(`Not reached within ${PATIENCE_MS} ms: ${condition}`);
    const pause = Math.max(pauseMs, Math.min(PAUSE_SHARE * waited, MAX_PAUSE_MS));
    await (looks < TURNS ? turn() : delay(pause));
  }
}
