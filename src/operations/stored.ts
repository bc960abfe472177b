import type { JsonValue } from '../engine/definitions.ts';
import type { DeliveryState, ElementId } from '../model/element.ts';
import { textOfBytes } from '../util/byte-text.ts';
import type { Action, OperationRequest } from './request.ts';

// What is stored of an operation: one definition for what it is and how it ended, which every node follows, and one for
// how far it came, which only the node that runs it writes, with each page. That one is deleted at the end.

export const OPERATION_STATES = ['running', 'done', 'cancelled', 'failed'] as const;
export type OperationState = (typeof OPERATION_STATES)[number];

/**
 * The engine's clock is known to a few milliseconds. An operation is about what was inserted until so long after its
 * start; what it stores in its own source comes later than that.
 */
export const BOUND_MS = 20;

/** What an operation did so far. */
interface OperationCounters {
  /** Elements that were looked at. */
  readonly seen: number;
  /** Those of them that it is about. */
  readonly matched: number;
  readonly changed: number;
  /** Those that match and cannot be changed. */
  readonly failed: number;
}

export const ZERO: OperationCounters = { seen: 0, matched: 0, changed: 0, failed: 0 };

/** A matching element, without its body. */
export interface ElementSample {
  readonly id: ElementId;
  readonly state: DeliveryState;
  /** ISO 8601, as all moments here. */
  readonly mature: string;
  readonly insertedAt: string;
  readonly tries: number;
  readonly reason: string | null;
  readonly bytes: number;
  readonly contentType: string | null;
  /** As far as they fit into 1 KiB. */
  readonly headers: Readonly<Record<string, string>>;
}

/** An operation as its definition holds it. */
export interface StoredOperation {
  readonly request: OperationRequest;
  /** The user who requested it. */
  readonly by: string;
  /** Whether that user may see no bodies of the source, and so no selector of theirs may. */
  readonly hidesBodies: boolean;
  /** ms since 1970, by the clock of the node that took the request. */
  readonly startedAt: number;
  /** The same by the engine's clock: only elements that were inserted until then are changed. */
  readonly bound: number;
  /** Elements in the states that it looks at, when it started. */
  readonly estimate: number;
  /** Somebody wants it to end. */
  readonly isCancelled: boolean;
  /** Null while it runs. */
  readonly end: OperationEnd | null;
}

/** What went wrong lately. */
export interface OperationError {
  /** Why it failed, or why the last element could not be changed; null: nothing went wrong. */
  readonly error: string | null;
  /** Whether its selector threw that: then it may quote a body. Not given: an earlier version stored it, and it may. */
  readonly isThrown?: boolean;
}

export interface OperationEnd extends OperationError {
  readonly state: Exclude<OperationState, 'running'>;
  readonly at: number;
  readonly counters: OperationCounters;
  readonly samples: readonly ElementSample[];
}

/**
 * Where the next page begins: which of the states that are looked at, one after the other, and the cursor of its
 * search.
 */
export interface PageCursor {
  readonly part: number;
  readonly after: string | null;
}

/** How far an operation came, and who runs it. */
export interface OperationProgress extends OperationError {
  /** The node; null: it stopped, and another may take over at once. */
  readonly node: string | null;
  readonly counters: OperationCounters;
  readonly samples: readonly ElementSample[];
  /** Null: every page was looked at. */
  readonly cursor: PageCursor | null;
  /** Elements that are being changed. */
  readonly pending: readonly PendingElement[] | null;
}

/** With the end of its lease, which sets a reservation apart from a later one; null: it waits. */
export type PendingElement = readonly [id: ElementId, until: number | null];

export function operationValue(operation: StoredOperation): JsonValue {
  return operation as unknown as JsonValue;
}

/** Only this service writes these definitions. */
export function toOperation(value: JsonValue): StoredOperation {
  return value as unknown as StoredOperation;
}

export function progressValue(progress: OperationProgress): JsonValue {
  return progress as unknown as JsonValue;
}

export function toProgress(value: JsonValue): OperationProgress {
  return value as unknown as OperationProgress;
}

/** An operation as its users see it: what was requested, how far it came, how it ended. Moments are ISO 8601. */
export interface OperationRecord extends OperationCounters {
  readonly id: string;
  readonly action: Action;
  readonly source: ShownPlace;
  readonly where: ShownWhere;
  /** Left out if the action has none; null if the user may not see its namespace. */
  readonly to?: ShownPlace | null;
  /** ms. */
  readonly delay?: number;
  readonly set?: { readonly headers: Readonly<Record<string, string | null>>; readonly tries: number | null };
  readonly limit: number | null;
  readonly rate: number | null;
  readonly dryRun: boolean;
  readonly state: OperationState;
  readonly estimate: number;
  readonly samples: readonly ElementSample[];
  readonly by: string;
  readonly startedAt: string;
  readonly endedAt: string | null;
  readonly error: string | null;
}

/** A queue; of `migrate`, which is about namespaces, without `queue`. */
interface ShownPlace {
  readonly ns: string;
  readonly queue?: string;
}

type ShownWhere = Readonly<Partial<Record<'state' | 'group' | 'selector', string>>> & {
  readonly ids?: readonly string[];
  readonly olderThan?: number;
};

/** Who reads a record: what they may not see is left out. */
export interface RecordViewer {
  maySee(namespace: string): boolean;
  may(right: 'browse', namespace: string): boolean;
  maySeeBodies(namespace: string): boolean;
}

/** Where the selector of an operation stands in its request. */
export const SELECTOR_PATH = 'where.selector';

/**
 * The error of an operation as far as the viewer may know what it names: a queue of its target, or what its selector
 * saw.
 */
function shownError(
  { error, isThrown = true }: OperationError,
  { request: { source, to }, hidesBodies }: Pick<StoredOperation, 'request' | 'hidesBodies'>,
  viewer: RecordViewer,
): string | null {
  // A selector saw what its user may see.
  const maySeeThrown = hidesBodies ? viewer.may('browse', source.ns) : viewer.maySeeBodies(source.ns);
  if (error === null || (isThrown && maySeeThrown)) return error;
  if (isThrown) {
    return `${SELECTOR_PATH} failed with an element. What it threw may quote the body, which you may not see.`;
  }
  if (to === null || viewer.maySee(to.ns)) return error;
  return 'It failed. The reason may name what is in a namespace that you may not see.';
}

/** @param progress of one that runs; null: none is known */
export function operationRecord(
  id: string,
  operation: StoredOperation,
  progress: Pick<OperationProgress, 'counters' | 'samples' | 'error' | 'isThrown'> | null,
  viewer: RecordViewer,
): OperationRecord {
  const { request, by, startedAt, estimate, end } = operation;
  const { action, source, to, delayMs, set, limit, rate, dryRun } = request;
  const soFar = end ?? progress;
  return {
    id,
    action,
    source: shownPlace(source),
    where: shownWhere(request),
    ...(to !== null && { to: viewer.maySee(to.ns) ? shownPlace(to) : null }),
    ...(delayMs !== null && { delay: delayMs }),
    ...(set !== null && { set: { headers: pairs(set.headers), tries: set.tries } }),
    limit,
    rate,
    dryRun,
    state: end?.state ?? 'running',
    ...(soFar?.counters ?? ZERO),
    estimate,
    samples: viewer.may('browse', source.ns) ? (soFar?.samples ?? []) : [],
    by,
    startedAt: new Date(startedAt).toISOString(),
    endedAt: end === null ? null : new Date(end.at).toISOString(),
    error: soFar === null ? null : shownError(soFar, operation, viewer),
  };
}

function shownPlace({ ns, queue }: OperationRequest['source']): ShownPlace {
  return queue === '' ? { ns } : { ns, queue };
}

function shownWhere({ where }: OperationRequest): ShownWhere {
  const { state, group, ids, selector, olderThanMs } = where;
  return {
    ...(state !== null && { state }),
    ...(group !== null && { group }),
    ...(ids !== null && { ids }),
    ...(selector !== null && { selector }),
    ...(olderThanMs !== null && { olderThan: olderThanMs / 1000 }),
  };
}

/** Headers that are kept as bytes, as the text that was requested. */
function pairs(flat: readonly (string | null)[]): Record<string, string | null> {
  const shown: [string, string | null][] = [];
  for (let at = 0; at + 1 < flat.length; at += 2) {
    const value = flat[at + 1] ?? null;
    shown.push([flat[at] ?? '', value === null ? null : (textOfBytes(value) ?? value)]);
  }
  return Object.fromEntries(shown);
}
