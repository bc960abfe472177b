import type { CancelTimer, Clock } from './clock.ts';

/**
 * Repeats work: first after `ms` ± half, then as long after each completion. The work must not reject.
 * Returns a function that stops the repetition; it does not interrupt work in progress.
 */
export function repeat(
  work: () => Promise<void>,
  ms: number,
  { clock, random }: { readonly clock: Clock; readonly random: () => number },
): () => void {
  let isStopped = false;
  let cancel: CancelTimer | null = null;
  const scheduleNext = (): void => {
    if (isStopped) return;
    // Jitter, so that nodes which started at the same moment drift apart.
    cancel = clock.after(ms * (0.5 + random()), () => void work().then(scheduleNext));
  };
  scheduleNext();
  return () => {
    isStopped = true;
    cancel?.();
  };
}
