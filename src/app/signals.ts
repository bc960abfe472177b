import type { Clock } from '../util/clock.ts';

export interface SignalHandlers {
  /** SIGTERM or SIGINT. */
  stop(signal: string): void;
  /** SIGTERM or SIGINT once more. */
  stopNow(signal: string): void;
  /** SIGHUP. */
  reload(): void;
}

/**
 * One Ctrl-C under `npm start` comes twice: from the terminal, which signals the whole group, and from npm,
 * which passes its own on. A second signal counts as another one after this long.
 */
const SAME_PRESS_MS = 300;

/** Follows the signals of this process. Answers a function that stops following. */
export function followSignals(clock: Clock, handlers: SignalHandlers): () => void {
  let firstAt: number | null = null;
  const onStop = (signal: string): void => {
    if (firstAt === null) {
      firstAt = clock.monotonic();
      handlers.stop(signal);
    } else if (clock.monotonic() - firstAt >= SAME_PRESS_MS) {
      handlers.stopNow(signal);
    }
  };
  const onReload = (): void => handlers.reload();
  process.on('SIGTERM', onStop).on('SIGINT', onStop).on('SIGHUP', onReload);
  return () => {
    process.off('SIGTERM', onStop).off('SIGINT', onStop).off('SIGHUP', onReload);
  };
}
