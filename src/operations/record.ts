import type { Action, OperationRequest } from './request.ts';
import {
  type ElementSample,
  type OperationCounters,
  type OperationProgress,
  type OperationState,
  type StoredOperation,
  ZERO,
} from './stored.ts';

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

interface RecordViewer {
  maySee(namespace: string): boolean;
  may(right: 'browse', namespace: string): boolean;
}

/** @param progress of one that runs; null: none is known */
export function operationRecord(
  id: string,
  { request, by, startedAt, estimate, end }: StoredOperation,
  progress: Pick<OperationProgress, 'counters' | 'samples' | 'error'> | null,
  viewer: RecordViewer,
): OperationRecord {
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
    error: soFar?.error ?? null,
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

function pairs(flat: readonly (string | null)[]): Record<string, string | null> {
  const shown: [string, string | null][] = [];
  for (let at = 0; at + 1 < flat.length; at += 2) shown.push([flat[at] ?? '', flat[at + 1] ?? null]);
  return Object.fromEntries(shown);
}
