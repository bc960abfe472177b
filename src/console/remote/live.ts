import { computed, effect, signal } from '@preact/signals';
import { useLayoutEffect } from 'preact/hooks';
import type {
  AlarmPicture,
  ExchangePicture,
  NodeRecord,
  OperationPicture,
  QueuePicture,
} from '../../model/records.ts';
import { BASE, type QueueNamed } from '../api.ts';
import { refresh } from '../preferences.ts';
import { hasEnded, onUserChange, resume, session } from '../session.ts';
import { after, browserNow, clock, every, nextFrame, now, SILENCE_MS } from '../timers.ts';

/** `paused`: by the user; `resting`: the tab is hidden; `lost`: the connection is lost and will be retried. */
export type StreamState = 'connecting' | 'live' | 'lost' | 'paused' | 'resting';

/** The latest state, by name. The maps are changed in place: components that show them must read `version`, too. */
export const queues = new Map<string, QueuePicture>();
export const exchanges = new Map<string, ExchangePicture>();
export const nodes = new Map<string, NodeRecord>();
/** All nodes that the page has seen: lists name some that have left. */
export const seenNodes = new Map<string, NodeRecord>();
export const operations = new Map<string, OperationPicture>();
export const alarms = new Map<string, AlarmPicture>();
/** Depth samples of queues that have changed since the stream started, by queue. */
export const samples = new Map<string, DepthSample[]>();

/** Whether an exchange was stopped, by a user or by an error. */
export function isStopped({ stopped, lastError }: Pick<ExchangePicture, 'stopped' | 'lastError'>): boolean {
  return stopped === true || lastError !== null;
}

/** Increases with each change to be shown. */
export const version = signal(0);
export const connection = signal<StreamState>('connecting');
/** Start of the uninterrupted stream. When counts changed before that is not known. */
let followedSince = now();
/** When the stream was last live; null while it is. Changes after that are not known either. */
let followedUntil: number | null = now();
/** From when until when the stream was live without interruption, by the browser's clock; null: it still is. */
let watched: { since: number; until: number | null } = { since: browserNow(), until: null };
/** Increases to open a new connection where the browser would not. */
const attempt = signal(0);
/** The engines that the server cannot reach, as text; null while the server itself cannot be reached. */
export const awayEngines = computed(() => {
  version.value;
  if (connection.value !== 'live') return null;
  const away = [...alarms.values()].filter(({ alarm }) => alarm === 'engine-unavailable');
  return JSON.stringify(away.map(({ engine }) => engine));
});
/** Whether the whole state has arrived once. */
export const isComplete = signal(false);

const isHidden = signal(document.hidden);
const mayStream = signal(false);
/** If the console is opened while refreshing is paused, it still reads the state once. */
const isPaused = computed(() => refresh.value === 'paused' && isComplete.value);
const isStreamWanted = computed(
  () => Boolean(session.value) && !hasEnded.value && mayStream.value && !isPaused.value && !isHidden.value,
);
const intervalMs = computed(() =>
  refresh.value === 'live' || refresh.value === 'paused' ? 0 : Number(refresh.value) * 1000,
);

const KINDS = ['queues', 'exchanges', 'nodes', 'operations', 'alarms'] as const;
type PictureKind = (typeof KINDS)[number];
type PictureMaps = Record<PictureKind, Map<string, object>>;
const MAPS = { queues, exchanges, nodes, operations, alarms } as unknown as PictureMaps;

/** Names contain no control characters, so the key is unique. */
export function keyOf({ ns, queue }: QueueNamed): string {
  return `${ns}\n${queue}`;
}

function keyIn(kind: PictureKind, one: Record<string, unknown>): string {
  if (kind === 'queues') return keyOf(one as unknown as QueueNamed);
  if (kind === 'alarms') return JSON.stringify([one.alarm, one.engine, one.ns, one.queue]);
  return String(one.id);
}

/** The stream starts at most this long after the sign-in, even if the page is still reading. */
const LATEST_MS = 1_000;
let firstReads = 0;

/**
 * Delays the stream until the first page has read its data: the stream starts with all queues, and 10,000 of them keep
 * server and browser busy for too long.
 */
export function delayStream(reading: Promise<unknown>): void {
  if (mayStream.peek()) return;
  firstReads += 1;
  const end = (): void => {
    firstReads -= 1;
    if (firstReads === 0) mayStream.value = true;
  };
  reading.then(end, end);
}

/** Notes a pause or resume by this page, in case the stream is not open. */
export function notePaused(of: QueueNamed, paused: boolean): void {
  const before = queues.get(keyOf(of));
  if (before === undefined) return;
  queues.set(keyOf(of), { ...before, paused });
  version.value += 1;
}

onUserChange(() => {
  for (const map of Object.values(MAPS)) map.clear();
  samples.clear();
  seenNodes.clear();
  snapshot = null;
  isComplete.value = false;
  version.value += 1;
  // Replace the stream, which belongs to the previous user.
  attempt.value += 1;
});

/** A full snapshot that is still arriving. The old state is shown until it is complete. */
let snapshot: PictureMaps | null = null;
/** Whether the events being received are older than the stream. */
let isCatchingUp = true;

let hasChanges = false;
let isFrameRequested = false;

function show(): void {
  if (!hasChanges) return;
  hasChanges = false;
  version.value += 1;
}

/** Shows changes in the next frame: a server's update is many events, and pages iterate over all queues. */
function publishSoon(): void {
  if (isFrameRequested) return;
  isFrameRequested = true;
  nextFrame(() => {
    isFrameRequested = false;
    show();
  });
}

function note(kind: PictureKind, pictures: readonly Record<string, unknown>[]): void {
  const map = (snapshot ?? MAPS)[kind];
  const at = now();
  lastActivityAt = browserNow();
  for (const one of pictures) {
    const key = keyIn(kind, one);
    if (one.gone === true) {
      map.delete(key);
      if (kind === 'queues') samples.delete(key);
      continue;
    }
    if (kind === 'queues') noteSample(key, at, one as unknown as QueuePicture);
    if (kind === 'nodes') seenNodes.set(key, one as unknown as NodeRecord);
    map.set(key, one);
  }
  if (snapshot !== null) return;
  hasChanges = true;
  if (isComplete.peek() && intervalMs.peek() === 0) publishSoon();
}

function noteSample(key: string, at: number, picture: QueuePicture): void {
  let ofQueue = samples.get(key);
  // Idle queues need no samples. When queues changed before the stream started is not known.
  if (ofQueue === undefined && isCatchingUp) return;
  if (ofQueue === undefined) {
    ofQueue = [];
    samples.set(key, ofQueue);
    const before = queues.get(key);
    if (before !== undefined) addSample(ofQueue, Math.max(at - 1000, followedSince), before);
  }
  addSample(ofQueue, at, picture);
}

/** Deletes the samples of queues that are idle again. */
function forgetOldSamples(): void {
  const at = now();
  for (const [key, ofQueue] of samples) {
    if (isAtRest(ofQueue, at)) samples.delete(key);
  }
}

function listen(): () => void {
  connection.value = 'connecting';
  lastActivityAt = browserNow();
  const source = new EventSource(new URL(`events?kinds=${KINDS.join(',')}`, BASE));
  let retry: (() => void) | null = null;
  source.addEventListener('start', ({ data }) => {
    const { full } = JSON.parse(data) as { full: boolean };
    // Otherwise the events may continue a snapshot whose stream broke.
    if (full) snapshot = Object.fromEntries(KINDS.map((kind) => [kind, new Map()])) as PictureMaps;
    isCatchingUp = true;
    followedSince = now();
    // The server's version or the user's rights may have changed.
    if (isComplete.peek()) void resume();
  });
  for (const kind of KINDS) {
    source.addEventListener(kind, ({ data }) => note(kind, JSON.parse(data as string)));
  }
  source.addEventListener('alive', () => {
    lastActivityAt = browserNow();
  });
  source.addEventListener('complete', () => {
    lastActivityAt = browserNow();
    if (snapshot !== null) {
      for (const kind of KINDS) {
        MAPS[kind].clear();
        for (const [key, picture] of snapshot[kind]) MAPS[kind].set(key, picture);
      }
      snapshot = null;
    }
    isCatchingUp = false;
    connection.value = 'live';
    isComplete.value = true;
    hasChanges = true;
    show();
  });
  source.addEventListener('error', () => {
    connection.value = 'lost';
    // Restart the timeout for the browser's next attempt.
    lastActivityAt = browserNow();
    if (source.readyState !== EventSource.CLOSED) return;
    // The browser does not reconnect after an error response, such as 401.
    retry = after(3_000, () => {
      void resume().then(() => {
        attempt.value += 1;
      });
    });
  });
  return () => {
    source.close();
    retry?.();
  };
}

const FORGET_EVERY_MS = 60_000;
/** Minimum interval between requests that keep the session alive. */
const MIN_KEEP_MS = 1_000;
/** When the connection last showed activity, by the browser's clock. */
let lastActivityAt = browserNow();

/** Whether the whole state has arrived, for pages that show only what the stream sends: it starts immediately. */
export function useWholeState(): boolean {
  useLayoutEffect(() => {
    mayStream.value = true;
  }, []);
  return isComplete.value;
}

/** Follows the server's events until the page is closed. */
export function follow(): void {
  document.addEventListener('visibilitychange', () => {
    isHidden.value = document.hidden;
  });
  every(FORGET_EVERY_MS, forgetOldSamples);
  effect(() => {
    if (connection.value === 'live') {
      followedUntil = null;
      watched = { since: browserNow(), until: null };
    } else {
      followedUntil ??= now();
      watched.until ??= browserNow();
    }
  });
  effect(() => {
    attempt.value;
    if (isStreamWanted.value) return listen();
    connection.value = isHidden.value ? 'resting' : isPaused.value ? 'paused' : 'connecting';
    return undefined;
  });
  addEventListener('online', () => {
    attempt.value += 1;
  });
  effect(() => {
    // This covers a connection that is being opened, too: it may be dead already.
    if (!isStreamWanted.value) return undefined;
    return every(1_000, () => {
      // `Math.abs`, because the clock may have been set back.
      if (Math.abs(browserNow() - lastActivityAt) > SILENCE_MS) attempt.value += 1;
    });
  });
  effect(() => {
    const record = session.value;
    if (!record || !isStreamWanted.value) return undefined;
    // Keep the session alive: a page that shows only the stream sends no other requests.
    const leftMs = Date.parse(record.expiresAt) - now();
    return every(Math.max(MIN_KEEP_MS, leftMs / 2), () => void resume());
  });
  effect(() => {
    if (!session.value || mayStream.value) return undefined;
    return after(LATEST_MS, () => {
      mayStream.value = true;
    });
  });
  effect(() => {
    if (!isStreamWanted.value) return undefined;
    const ms = intervalMs.value;
    show();
    return every(ms === 0 ? 1_000 : ms, () => {
      clock.value = now();
      show();
    });
  });
}

/** Depth and counters of a queue at a moment. */
export interface DepthSample {
  readonly at: number;
  readonly size: number;
  readonly inserted: number;
  readonly taken: number;
}

/** Minimum time between samples. */
const SPACING_MS = 3_000;
/** How long samples are kept and shown. */
export const KEPT_MS = 300_000;
/** Time range over which rates are measured. */
const WINDOW_MS = 15_000;
/** How long the page follows the queues before it shows rates: the server reads changed queues twice a second. */
const MIN_WATCHED_MS = 1_000;

/** Adds a sample, and drops old ones. Two changes close together are one sample. */
function addSample(ofQueue: DepthSample[], at: number, { size, stats }: QueuePicture): void {
  const sample = { at, size, inserted: stats.put, taken: stats.get + stats.reserve };
  const before = ofQueue.at(-2);
  if (before !== undefined && at - before.at < SPACING_MS) ofQueue.pop();
  ofQueue.push(sample);
  // Keep one sample from before the visible range: it has the depth at its start.
  const old = ofQueue.findLastIndex((one) => one.at <= at - KEPT_MS);
  if (old > 0) ofQueue.splice(0, old);
}

/** Whether nothing changed in the visible range. */
function isAtRest(ofQueue: readonly DepthSample[], at: number): boolean {
  return (ofQueue.at(-1)?.at ?? 0) <= at - KEPT_MS;
}

/** How much the page knows of rates: none yet, those of a shorter time than they are measured over, or all of them. */
export function knownRates(): 'none' | 'some' | 'all' {
  const ms = (watched.until ?? browserNow()) - watched.since;
  return ms < MIN_WATCHED_MS ? 'none' : ms < WINDOW_MS ? 'some' : 'all';
}

/**
 * Returns inserts and takes of a queue per second, as far as this page has seen them: those at `at`, or when the stream
 * was last live.
 */
export function ratesOf(key: string, now: number): { in: number; out: number } {
  const at = Math.min(now, followedUntil ?? now);
  const known = samples.get(key);
  const last = known?.at(-1);
  if (known === undefined || last === undefined || last.at < followedSince) return { in: 0, out: 0 };
  const from = at - WINDOW_MS;
  const first =
    known.findLast((one) => one.at <= from && one.at >= followedSince) ??
    known.find((one) => one.at >= followedSince) ??
    last;
  const seconds = Math.max(1, (at - Math.max(first.at, from)) / 1000);
  // The counters restart at 0 if a queue is deleted.
  return {
    in: Math.max(0, last.inserted - first.inserted) / seconds,
    out: Math.max(0, last.taken - first.taken) / seconds,
  };
}

/** When the oldest ready element of a queue became ready, ISO 8601; null if none is ready. */
export function readySince({
  size,
  next_mature_t,
}: Pick<QueuePicture, 'size' | 'next_mature_t'>): string | null {
  return size === 0 ? null : next_mature_t;
}

/** How long the oldest ready element of a queue has been ready, in ms; null if none is ready. */
export function readyForMs(queue: Pick<QueuePicture, 'size' | 'next_mature_t'>, at: number): number | null {
  const since = readySince(queue);
  return since === null ? null : Math.max(0, at - Date.parse(since));
}
