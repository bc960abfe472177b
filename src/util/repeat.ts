import type { CancelTimer, Clock } from './clock.ts';

/**
 * Does work from time to time: `ms` ± half from now, and as long after each time that it ended. It must not reject.
 * Returns a function that ends this; work in progress ends on its own.
 */
export function repeat(
  work: () => Promise<void>,
  ms: number,
  { clock, random }: { readonly clock: Clock; readonly random: () => number },
): () => void {
  let isOver = false;
  let cancel: CancelTimer | null = null;
  const later = (): void => {
    if (isOver) return;
    // Nodes that started at the same moment drift apart.
    cancel = clock.after(ms * (0.5 + random()), () => void work().then(later));
  };
  later();
  return () => {
    isOver = true;
    cancel?.();
  };
}
