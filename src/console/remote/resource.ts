import { type Signal, useSignal } from '@preact/signals';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { get, isTemporary, type RequestQuery } from '../api.ts';
import { refresh } from '../preferences.ts';
import { hasEnded } from '../session.ts';
import { every } from '../timers.ts';
import { awayEngines, delayStream } from './live.ts';

/** Data that a page reads from the server. The last value stays while the next one is being read. */
export interface Resource<T> {
  readonly value: T | null;
  readonly error: unknown;
  readonly isLoading: boolean;
  readonly reload: () => void;
}

type ResourceState<T> = Omit<Resource<T>, 'reload'>;

/** Calls `run` each time that the stream of events is connected, or an engine is available again after an outage. */
export function useReconnect(run: () => void): void {
  const { value: away } = awayEngines;
  const before = useRef(away);
  useEffect(() => {
    if (away !== null && away !== before.current) run();
    before.current = away;
  }, [away]);
}

/**
 * Reads when the page is shown, when `key` changes, and every `everyMs` if that is given, or at the chosen refresh
 * interval if it is longer; not while refreshing is paused. Aborts a read that is superseded.
 */
export function useResource<T>(
  key: string,
  read: (signal: AbortSignal) => Promise<T | null>,
  everyMs = 0,
): Resource<T> {
  const state: Signal<ResourceState<T>> = useSignal<ResourceState<T>>({
    value: null,
    error: null,
    isLoading: true,
  });
  const turn = useSignal(0);
  const chosen = refresh.value;
  // A layout effect, so that the request is sent before the browser paints the page without data.
  useLayoutEffect(() => {
    const abort = new AbortController();
    state.value = { ...state.peek(), isLoading: true };
    const reading = read(abort.signal).then(
      (value) => {
        if (!abort.signal.aborted) state.value = { value, error: null, isLoading: false };
      },
      (error: unknown) => {
        if (!abort.signal.aborted) state.value = { ...state.peek(), error, isLoading: false };
      },
    );
    delayStream(reading);
    return () => abort.abort();
  }, [key, turn.value]);
  // Read again after an outage: a resource without an interval would keep showing its error.
  useReconnect(() => {
    if (isTemporary(state.peek().error)) turn.value += 1;
  });
  // A layout effect, so that a chosen interval applies as soon as the page shows it.
  useLayoutEffect(() => {
    if (everyMs === 0 || chosen === 'paused') return undefined;
    const ms = chosen === 'live' ? everyMs : Math.max(everyMs, Number(chosen) * 1000);
    return every(ms, () => {
      if (!document.hidden && !hasEnded.peek() && !state.peek().isLoading) turn.value += 1;
    });
  }, [everyMs, chosen]);
  return {
    ...state.value,
    reload: () => {
      turn.value += 1;
    },
  };
}

/**
 * Reads a path of the HTTP interface, as {@link useResource} does.
 * @param where null, if the user may not read it: then the value stays null
 */
export function useGet<T>(
  where: string | null,
  { query = {}, everyMs = 0 }: { readonly query?: RequestQuery; readonly everyMs?: number } = {},
): Resource<T> {
  return useResource<T>(
    JSON.stringify([where, query]),
    (signal) => (where === null ? Promise.resolve(null) : get<T>(where, { query, signal })),
    everyMs,
  );
}
