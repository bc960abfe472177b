import type { Queue } from '../broker/queue.ts';
import type { Held } from './handout.ts';
import type { Work } from './work.ts';

export interface ReleaseHost {
  readonly work: Work;
  warn(error: unknown, message: string): void;
}

/**
 * Gives back what a client held and let go, at once; a failed try where `countSeen` is set and the client can
 * have seen it. Resolves when the engine has them, or has failed to; never throws, since leases end by themselves.
 */
export async function releaseHeld(
  queue: Queue,
  held: readonly Held<unknown>[],
  countSeen: boolean,
  host: ReleaseHost,
): Promise<void> {
  const items = held.map((one) =>
    queue.item(one, { kind: 'release', delayMs: 0, countTry: countSeen && one.isSeen }),
  );
  host.work.begin(items.length, 0);
  try {
    await queue.settleAll(items);
  } catch (error) {
    host.warn(error, 'elements of a client that let go could not be given back; their leases will end');
  } finally {
    host.work.end(items.length, 0);
  }
}
