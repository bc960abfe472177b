import { computed, effect, signal } from '@preact/signals';
import { BASE } from '../api.ts';
import { refresh } from '../preferences.ts';
import { hasEnded, onUserChange, resume, session } from '../session.ts';
import { after, browserNow, every, nextFrame, now, SILENCE_MS } from '../timers.ts';
import { addSample, type DepthSample, isAtRest } from './series.ts';

export interface QueueNamed {
  readonly ns: string;
  readonly queue: string;
}

export interface QueuePicture extends QueueNamed {
  readonly size: number;
  readonly schedSize: number;
  readonly resvSize: number;
  readonly totalSize: number;
  readonly next_mature_t: string | null;
  readonly paused: boolean;
  readonly stats: Readonly<Record<'put' | 'get' | 'reserve' | 'commit' | 'rollback' | 'deadletter', number>>;
}

export interface ExchangePicture {
  readonly id: string;
  readonly src: { readonly q: string; readonly ns: string };
  readonly dst: readonly { readonly q: string; readonly ns: string; readonly hidden?: true }[];
  readonly stopped: boolean | null;
  readonly lastError: string | null;
  readonly stats: {
    readonly no_route: number;
    readonly too_many_hops: number;
    readonly put_back: number;
    readonly dst?: readonly { readonly matched: number; readonly skipped: number; readonly failed: number }[];
  };
}

export interface NodePicture {
  readonly id: string;
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  readonly startedAt: string;
  readonly isSelf: boolean;
  readonly namespaces: readonly string[];
  readonly conflicts: readonly {
    readonly namespace: string;
    readonly option: string;
    readonly here: string;
    readonly there: string;
  }[];
}

/** A queue; of `migrate`, which is about namespaces, without `queue`. */
export interface OperationPlace {
  readonly ns: string;
  readonly queue?: string;
}

export interface OperationPicture {
  readonly id: string;
  readonly action: string;
  readonly source: OperationPlace;
  readonly to?: OperationPlace | null;
  readonly dryRun: boolean;
  readonly state: 'running' | 'done' | 'cancelled' | 'failed';
  readonly seen: number;
  readonly matched: number;
  readonly changed: number;
  readonly failed: number;
  readonly estimate: number;
  readonly by: string;
  readonly startedAt: string;
  readonly endedAt: string | null;
  readonly error: string | null;
}

export interface AlarmPicture {
  readonly alarm: string;
  readonly since: string;
  readonly engine?: string;
  readonly namespaces?: readonly string[];
  readonly detail?: string;
  readonly ns?: string;
  readonly queue?: string;
  readonly totalSize?: number;
}

/** `paused`: by choice; `resting`: the tab is hidden; `lost`: the connection is gone and will be tried again. */
export type StreamState = 'connecting' | 'live' | 'lost' | 'paused' | 'resting';

/** What holds now, by name. The maps are changed in place; code that shows them reads `version` as well. */
export const queues = new Map<string, QueuePicture>();
export const exchanges = new Map<string, ExchangePicture>();
export const nodes = new Map<string, NodePicture>();
export const operations = new Map<string, OperationPicture>();
export const alarms = new Map<string, AlarmPicture>();
/** Of queues that changed while the console listened. */
export const samples = new Map<string, DepthSample[]>();

/** Increases with each change that is to be shown. */
export const version = signal(0);
export const connection = signal<StreamState>('connecting');
/** Since when the stream is followed without a gap: in between, counts have changed at moments that are not known. */
export let followedSince = now();
/** Increases when a connection is to be made that the browser would not make. */
const attempt = signal(0);
/** Whether everything that holds has arrived once. */
export const isComplete = signal(false);
/** The moment, for relative times; it stands still while nothing is refreshed. */
export const clock = signal(now());

const isHidden = signal(document.hidden);
const isDue = signal(false);
/** A console that is opened while refreshing is paused reads once what holds. */
const isPaused = computed(() => refresh.value === 'paused' && isComplete.value);
const wanted = computed(
  () => Boolean(session.value) && !hasEnded.value && isDue.value && !isPaused.value && !isHidden.value,
);
const intervalMs = computed(() =>
  refresh.value === 'live' || refresh.value === 'paused' ? 0 : Number(refresh.value) * 1000,
);

const KINDS = ['queues', 'exchanges', 'nodes', 'operations', 'alarms'] as const;
type PictureKind = (typeof KINDS)[number];
const MAPS = { queues, exchanges, nodes, operations, alarms } as unknown as Record<
  PictureKind,
  Map<string, object>
>;

/** Names have no control characters. */
export function keyOf({ ns, queue }: QueueNamed): string {
  return `${ns}\n${queue}`;
}

function keyIn(kind: PictureKind, one: Record<string, unknown>): string {
  if (kind === 'queues') return keyOf(one as unknown as QueueNamed);
  if (kind === 'alarms') return JSON.stringify([one.alarm, one.engine, one.ns, one.queue]);
  return String(one.id);
}

/** The stream starts this long after the sign-in at the latest, whatever the page still reads. */
const LATEST_MS = 1_000;
let firstReads = 0;

/**
 * The stream starts when the first page has read its own data. It starts with all queues, and 10,000 of them keep the
 * server and the browser busy for longer than a page may take.
 */
export function beforeStream(reading: Promise<unknown>): void {
  if (isDue.peek()) return;
  firstReads += 1;
  const end = (): void => {
    firstReads -= 1;
    if (firstReads === 0) isDue.value = true;
  };
  reading.then(end, end);
}

/** Notes what this page has done itself, for when nothing else tells it. */
export function notePaused(of: QueueNamed, paused: boolean): void {
  const before = queues.get(keyOf(of));
  if (before === undefined) return;
  queues.set(keyOf(of), { ...before, paused });
  version.value += 1;
}

onUserChange(() => {
  for (const map of Object.values(MAPS)) map.clear();
  samples.clear();
  arriving = null;
  isComplete.value = false;
  version.value += 1;
  // The stream that is open is of the user before.
  attempt.value += 1;
});

/** A full picture that has not arrived whole: what was there before is shown until then. */
let arriving: Record<PictureKind, Map<string, object>> | null = null;
/** Whether what comes are changes from before the stream was there. */
let isCatchingUp = true;

let hasNews = false;
let isShowing = false;

function show(): void {
  if (!hasNews) return;
  hasNews = false;
  version.value += 1;
}

/**
 * Shows what is new with the next frame: one update of the server comes as many events, and pages go through all
 * queues.
 */
function showSoon(): void {
  if (isShowing) return;
  isShowing = true;
  nextFrame(() => {
    isShowing = false;
    show();
  });
}

function note(kind: PictureKind, pictures: readonly Record<string, unknown>[]): void {
  const map = (arriving ?? MAPS)[kind];
  const at = now();
  heardAt = browserNow();
  for (const one of pictures) {
    const key = keyIn(kind, one);
    if (one.gone === true) {
      map.delete(key);
      if (kind === 'queues') samples.delete(key);
      continue;
    }
    if (kind === 'queues') noteSample(key, at, one as unknown as QueuePicture);
    map.set(key, one);
  }
  if (arriving !== null) return;
  hasNews = true;
  if (isComplete.peek() && intervalMs.peek() === 0) showSoon();
}

function noteSample(key: string, at: number, picture: QueuePicture): void {
  let own = samples.get(key);
  // A queue at rest takes no memory here. When others changed before the stream was there is not known.
  if (own === undefined && isCatchingUp) return;
  if (own === undefined) {
    own = [];
    samples.set(key, own);
    const before = queues.get(key);
    if (before !== undefined) addSample(own, Math.max(at - 1000, followedSince), before);
  }
  addSample(own, at, picture);
}

/** Queues that are at rest again take no memory. */
function forgetOldSamples(): void {
  const at = now();
  for (const [key, own] of samples) {
    if (isAtRest(own, at)) samples.delete(key);
  }
}

function listen(): () => void {
  connection.value = 'connecting';
  heardAt = browserNow();
  const source = new EventSource(new URL(`events?kinds=${KINDS.join(',')}`, BASE));
  let retry: (() => void) | null = null;
  source.addEventListener('start', ({ data }) => {
    const { full } = JSON.parse(data) as { full: boolean };
    // If not, what comes may continue a full picture whose stream broke.
    if (full) arriving = emptyMaps();
    isCatchingUp = true;
    followedSince = now();
    // The server, or the rights of the user, may be others than before.
    if (isComplete.peek()) void resume();
  });
  for (const kind of KINDS) {
    source.addEventListener(kind, ({ data }) => note(kind, JSON.parse(data as string)));
  }
  source.addEventListener('alive', () => {
    heardAt = browserNow();
  });
  source.addEventListener('complete', () => {
    heardAt = browserNow();
    if (arriving !== null) {
      for (const kind of KINDS) replace(MAPS[kind], arriving[kind]);
      arriving = null;
    }
    isCatchingUp = false;
    connection.value = 'live';
    isComplete.value = true;
    hasNews = true;
    show();
  });
  source.addEventListener('error', () => {
    connection.value = 'lost';
    // The attempt that the browser makes next may be silent for as long as this one.
    heardAt = browserNow();
    if (source.readyState !== EventSource.CLOSED) return;
    // The browser does not try again after an error response; 401 is the usual one.
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

function emptyMaps(): Record<PictureKind, Map<string, object>> {
  return {
    queues: new Map(),
    exchanges: new Map(),
    nodes: new Map(),
    operations: new Map(),
    alarms: new Map(),
  };
}

function replace<K, V>(map: Map<K, V>, others: ReadonlyMap<K, V>): void {
  map.clear();
  for (const [key, value] of others) map.set(key, value);
}

const FORGET_EVERY_MS = 60_000;
/** Between two requests that say that the session is in use, at least. */
const MIN_KEEP_MS = 1_000;
/** When the connection last showed that it is not dead, by the clock of the browser. */
let heardAt = browserNow();

/**
 * Follows the server until the page is closed.
 * @param isAtOnce whether the first page shows what the stream sends, and nothing else before it
 */
export function follow(isAtOnce: boolean): void {
  isDue.value = isAtOnce;
  document.addEventListener('visibilitychange', () => {
    isHidden.value = document.hidden;
  });
  every(FORGET_EVERY_MS, forgetOldSamples);
  effect(() => {
    // The first response says what time it is for the server.
    if (session.value) clock.value = now();
  });
  effect(() => {
    attempt.value;
    if (wanted.value) return listen();
    connection.value = isHidden.value ? 'resting' : isPaused.value ? 'paused' : 'connecting';
    return undefined;
  });
  addEventListener('online', () => {
    attempt.value += 1;
  });
  effect(() => {
    // Also of a connection that is being made: one that is dead by then would never become live.
    if (!wanted.value) return undefined;
    return every(1_000, () => {
      // A clock that was set back would hide the silence.
      if (Math.abs(browserNow() - heardAt) > SILENCE_MS) attempt.value += 1;
    });
  });
  effect(() => {
    const record = session.value;
    if (!record || !wanted.value) return undefined;
    // A page that shows only what the stream sends would make no request, and the session would end while somebody
    // watches.
    const leftMs = Date.parse(record.expiresAt) - now();
    return every(Math.max(MIN_KEEP_MS, leftMs / 2), () => void resume());
  });
  effect(() => {
    if (!session.value || isDue.value) return undefined;
    return after(LATEST_MS, () => {
      isDue.value = true;
    });
  });
  effect(() => {
    if (!wanted.value) return undefined;
    const ms = intervalMs.value;
    show();
    return every(ms === 0 ? 1_000 : ms, () => {
      clock.value = now();
      show();
    });
  });
}

/** Since when the oldest ready element of a queue has been ready; null if none is. */
export function readySince({
  size,
  next_mature_t,
}: Pick<QueuePicture, 'size' | 'next_mature_t'>): string | null {
  return size === 0 ? null : next_mature_t;
}

/** For how long the oldest ready element of a queue has been ready; null if none is. */
export function readyForMs(queue: Pick<QueuePicture, 'size' | 'next_mature_t'>, at: number): number | null {
  const since = readySince(queue);
  return since === null ? null : Math.max(0, at - Date.parse(since));
}
