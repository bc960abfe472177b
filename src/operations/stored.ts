import type { ElementId } from '../model/element.ts';
import type {
  ElementSample,
  OperationPlace,
  OperationRecord,
  OperationState,
  OperationWhere,
} from '../model/records.ts';
import type { UserRights } from '../model/rights.ts';
import { textOfByteString } from '../util/byte-string.ts';
import type { OperationRequest } from './request.ts';

// An operation is stored as two definitions. `operation` holds the request and its end, and all nodes follow it.
// `operation-progress` is written with each page, by the node that runs the operation only, and is deleted at the end.

/**
 * An operation changes elements that were inserted until this long after its start, because a node knows the engine's
 * clock to a few milliseconds only. Elements that it stores in its own source are inserted later.
 */
export const BOUND_MS = 20;

/** Counters of an operation; see `OperationRecord`. */
type OperationCounters = Pick<OperationRecord, 'seen' | 'matched' | 'changed' | 'failed'>;

export const ZERO: OperationCounters = { seen: 0, matched: 0, changed: 0, failed: 0 };

/** An operation as stored in its definition. */
export interface StoredOperation {
  readonly request: OperationRequest;
  /** The user who requested it. */
  readonly by: string;
  /** Whether that user may not see bodies of the source: their selector must not read them either. */
  readonly hidesBodies: boolean;
  /** ms since 1970, by the clock of the node that accepted the request. */
  readonly startedAt: number;
  /** ms since 1970, by the engine's clock: only elements inserted until then are changed. See {@link BOUND_MS}. */
  readonly bound: number;
  /** Number of elements in the searched states when the operation started. */
  readonly estimate: number;
  /** Whether a cancel was requested. */
  readonly isCancelled: boolean;
  /** Null while it runs. */
  readonly end: OperationEnd | null;
}

/** The last error of an operation. */
export interface OperationError {
  /** Why the operation failed, or why the last element could not be changed; null: no error. */
  readonly error: string | null;
  /** Whether the selector threw the error, which may then quote a body. Missing in earlier versions: assume true. */
  readonly isThrown?: boolean;
}

export interface OperationEnd extends OperationError {
  readonly state: Exclude<OperationState, 'running'>;
  readonly at: number;
  readonly counters: OperationCounters;
  readonly samples: readonly ElementSample[];
}

/** Where the next page starts: the index of the search (one per state, see `OperationPages`), and its cursor. */
export interface PageCursor {
  readonly part: number;
  readonly after: string | null;
}

/** The progress of an operation, and the node that runs it. */
export interface OperationProgress extends OperationError {
  /** The node that runs it; null: that node stopped, and another may take over immediately. */
  readonly node: string | null;
  readonly counters: OperationCounters;
  readonly samples: readonly ElementSample[];
  /** Null: there are no more pages. */
  readonly cursor: PageCursor | null;
  /** The elements of the page that is being changed; null: none. */
  readonly pending: readonly PendingElement[] | null;
}

/** The progress of an operation that has not started. */
export const NO_PROGRESS: OperationProgress = {
  node: null,
  counters: ZERO,
  samples: [],
  error: null,
  isThrown: false,
  cursor: null,
  pending: null,
};

/** An element, and the end of its lease, which distinguishes this reservation from a later one; null: not reserved. */
export type PendingElement = readonly [id: ElementId, until: number | null];

/** Not validated: only this service writes these definitions. */
export function toOperation(value: unknown): StoredOperation {
  return value as StoredOperation;
}

export function toProgress(value: unknown): OperationProgress {
  return value as OperationProgress;
}

/** The reader of a record. What they may not see is left out. */
export type RecordViewer = Omit<UserRights, 'name'>;

/** Path of the selector in the request. */
export const SELECTOR_PATH = 'where.selector';

/**
 * Returns the error of an operation, or a substitute if the viewer may not see what it names: a queue of the target, or
 * what the selector read.
 */
function shownError(
  { error, isThrown = true }: OperationError,
  { request: { source, to }, hidesBodies }: Pick<StoredOperation, 'request' | 'hidesBodies'>,
  viewer: RecordViewer,
): string | null {
  // The selector could read only what its user may see.
  const maySeeThrown = hidesBodies ? viewer.may('browse', source.ns) : viewer.maySeeBodies(source.ns);
  if (error === null || (isThrown && maySeeThrown)) return error;
  if (isThrown) {
    return `${SELECTOR_PATH} failed with an element. The error may quote the body, which you may not see.`;
  }
  if (to === null || viewer.maySee(to.ns)) return error;
  return 'The operation failed. The reason may name a queue of a namespace that you may not see.';
}

/** @param progress of a running operation; null if unknown */
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

function shownPlace({ ns, queue }: OperationRequest['source']): OperationPlace {
  return queue === '' ? { ns } : { ns, queue };
}

function shownWhere({ where }: OperationRequest): OperationWhere {
  const { state, group, ids, selector, olderThanMs } = where;
  return {
    ...(state !== null && { state }),
    ...(group !== null && { group }),
    ...(ids !== null && { ids }),
    ...(selector !== null && { selector }),
    ...(olderThanMs !== null && { olderThan: olderThanMs / 1000 }),
  };
}

/** Decodes stored headers to the strings that were requested. */
function pairs(flat: readonly (string | null)[]): Record<string, string | null> {
  const shown: [string, string | null][] = [];
  for (let at = 0; at + 1 < flat.length; at += 2) {
    const value = flat[at + 1] ?? null;
    shown.push([flat[at] ?? '', value && textOfByteString(value)]);
  }
  return Object.fromEntries(shown);
}
