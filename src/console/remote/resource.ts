import { type Signal, useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { refresh } from '../preferences.ts';
import { every } from '../timers.ts';

/** What a page reads from the server: the last good answer stays while the next one is on its way. */
export interface Resource<T> {
  readonly value: T | null;
  readonly error: unknown;
  readonly isLoading: boolean;
  readonly reload: () => void;
}

interface ResourceState<T> {
  readonly value: T | null;
  readonly error: unknown;
  readonly isLoading: boolean;
}

/**
 * Reads when the page is shown and when `key` changes, and every `everyMs` if it is given and refreshing is on. A reading that is
 * overtaken is aborted.
 */
export function useResource<T>(
  key: string,
  read: (signal: AbortSignal) => Promise<T>,
  everyMs = 0,
): Resource<T> {
  const state: Signal<ResourceState<T>> = useSignal<ResourceState<T>>({
    value: null,
    error: null,
    isLoading: true,
  });
  const turn = useSignal(0);
  useEffect(() => {
    const abort = new AbortController();
    state.value = { ...state.peek(), isLoading: true };
    read(abort.signal).then(
      (value) => {
        if (!abort.signal.aborted) state.value = { value, error: null, isLoading: false };
      },
      (error: unknown) => {
        if (!abort.signal.aborted) state.value = { ...state.peek(), error, isLoading: false };
      },
    );
    return () => abort.abort();
  }, [key, turn.value]);
  useEffect(() => {
    if (everyMs === 0) return undefined;
    return every(everyMs, () => {
      if (refresh.peek() !== 'paused' && !document.hidden && !state.peek().isLoading) turn.value += 1;
    });
  }, [everyMs]);
  return {
    ...state.value,
    reload: () => {
      turn.value += 1;
    },
  };
}
