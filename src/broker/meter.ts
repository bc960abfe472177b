import type { SettleItem, SettleOutcome } from '../engine/storage.ts';
import type { ElementId, GroupName } from '../model/element.ts';
import { type ErrorCode, QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';
import { Histogram } from '../util/histogram.ts';
import { quote } from '../util/quote.ts';

/** The operations of front ends on queues, as metrics name them. */
export const OPERATIONS = [
  'insert',
  'get',
  'reserve',
  'commit',
  'rollback',
  'extend',
  'remove',
  'pause',
  'resume',
  'cancel',
] as const;
export type MeteredOperation = (typeof OPERATIONS)[number];

type Outcome = 'ok' | ErrorCode;

const ENGINE_ERRORS = ['storage-unavailable', 'outcome-unknown', 'internal'] as const;
const TAKE_ERRORS = [
  ...ENGINE_ERRORS,
  'pop-timeout',
  'pop-cancelled',
  'too-many-consumers',
  'invalid-parameter',
  'shutting-down',
  'unauthorized',
  'forbidden',
] as const;
const SETTLE_ERRORS = [
  ...ENGINE_ERRORS,
  'element-not-found',
  'not-reserved',
  'lease-lost',
  'token-required',
] as const;

/**
 * The expected errors of each operation. Their counters start at 0, so that a rate includes the first error; other
 * errors are counted from their first occurrence.
 */
const ERRORS: Readonly<Record<MeteredOperation, readonly ErrorCode[]>> = {
  insert: [
    ...ENGINE_ERRORS,
    'storage-full',
    'namespace-full',
    'queue-full',
    'too-many-groups',
    'idempotency-mismatch',
  ],
  get: TAKE_ERRORS,
  reserve: TAKE_ERRORS,
  commit: [...SETTLE_ERRORS, 'storage-full', 'namespace-full', 'queue-full', 'too-many-groups'],
  rollback: SETTLE_ERRORS,
  extend: SETTLE_ERRORS,
  remove: [...ENGINE_ERRORS, 'element-not-found', 'element-reserved'],
  pause: ENGINE_ERRORS,
  resume: ENGINE_ERRORS,
  cancel: [],
};

/** The metric of a take: a reserve if it has a lease, else a get. */
export function takeOperation(leaseMs: number | null): MeteredOperation {
  return leaseMs === null ? 'get' : 'reserve';
}

/** The metric of a settlement; the action `dead-letter` counts as a rollback. */
function settleOperation({ action, from }: SettleItem): MeteredOperation {
  if (action.kind === 'finish') return from === 'waiting' ? 'remove' : 'commit';
  return action.kind === 'extend' ? 'extend' : 'rollback';
}

/** Upper bounds of the storage time histogram, in seconds. */
export const STORAGE_TIME_BUCKETS_S = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5] as const;

/** The outcomes and times of one operation. */
interface OperationCounts {
  ok: number;
  readonly errors: Map<ErrorCode, number>;
  readonly storage: Histogram;
}

/**
 * Counts what was done in one namespace on this node. Plain increments on the request path; the metrics page reads the
 * numbers when it is requested.
 */
export class Meter {
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #counts = Object.fromEntries(OPERATIONS.map((name) => [name, noCounts(name)])) as Record<
    MeteredOperation,
    OperationCounts
  >;

  constructor(clock: Pick<Clock, 'monotonic'>) {
    this.#clock = clock;
  }

  count(operation: MeteredOperation, outcome: Outcome, times = 1): void {
    const counts = this.#counts[operation];
    if (outcome === 'ok') counts.ok += times;
    else counts.errors.set(outcome, (counts.errors.get(outcome) ?? 0) + times);
  }

  /** Counts an operation that ended in an error. */
  countError(operation: MeteredOperation, error: unknown): void {
    this.count(operation, error instanceof QuaysideError ? error.code : 'internal');
  }

  /**
   * Waits for a storage call, and then returns what `done` makes of its answer. Counts the time of the call and, if it
   * fails, its outcome. One promise, not an async function: this is on the path of every request.
   * @param startedAt when the call started, by the monotonic clock; defaults to now
   */
  observe<T, R>(
    operation: MeteredOperation,
    call: Promise<T>,
    done: (answer: T) => R,
    startedAt = this.#clock.monotonic(),
  ): Promise<R> {
    return call.then(
      (answer) => {
        this.observeSince(operation, startedAt);
        return done(answer);
      },
      (error: unknown) => {
        this.observeSince(operation, startedAt);
        this.countError(operation, error);
        throw error;
      },
    );
  }

  /** As `observe`, for one call with settlements of any kinds: each kind is observed once. */
  observeSettling<T, R>(
    items: readonly SettleItem[],
    settling: Promise<T>,
    done: (answer: T) => R,
  ): Promise<R> {
    const first = items[0] === undefined ? 'commit' : settleOperation(items[0]);
    const seen = [first];
    for (const item of items) {
      const operation = settleOperation(item);
      if (seen.includes(operation)) continue;
      seen.push(operation);
      this.observe(operation, settling, () => {}).catch(() => {});
    }
    return this.observe(first, settling, done);
  }

  /** Counts the outcome of settlements of one kind. */
  countSettled(item: SettleItem, outcome: SettleOutcome, times: number): void {
    this.count(settleOperation(item), isSettled(outcome) ? 'ok' : REJECTION_CODES[outcome], times);
  }

  /** Records the time of a storage call that started at `startedAt`, by the monotonic clock, and has ended. */
  observeSince(operation: MeteredOperation, startedAt: number): void {
    this.#counts[operation].storage.observe((this.#clock.monotonic() - startedAt) / 1000);
  }

  operations(): ReadonlyMap<MeteredOperation, ReadonlyMap<Outcome, number>> {
    return new Map(
      OPERATIONS.map((operation) => {
        const { ok, errors } = this.#counts[operation];
        return [operation, new Map<Outcome, number>([['ok', ok], ...errors])];
      }),
    );
  }

  storageTimes(): ReadonlyMap<MeteredOperation, Histogram> {
    return new Map(OPERATIONS.map((operation) => [operation, this.#counts[operation].storage]));
  }
}

function noCounts(operation: MeteredOperation): OperationCounts {
  return {
    ok: 0,
    errors: new Map(ERRORS[operation].map((code) => [code, 0])),
    storage: new Histogram(STORAGE_TIME_BUCKETS_S),
  };
}

/** Outcomes of settlements that did what was requested. */
type SettledOutcome = 'done' | 'dead-lettered';

/** Outcomes of settlements that changed nothing. */
export type RejectedOutcome = Exclude<SettleOutcome, SettledOutcome>;

export function isSettled(outcome: SettleOutcome): outcome is SettledOutcome {
  return outcome === 'done' || outcome === 'dead-lettered';
}

/** The error codes for clients and metrics. */
const REJECTION_CODES = {
  'lease-lost': 'lease-lost',
  'token-required': 'token-required',
  'not-reserved': 'not-reserved',
  'not-found': 'element-not-found',
  reserved: 'element-reserved',
} as const satisfies Record<RejectedOutcome, ErrorCode>;

/** The error of a rejected settlement. @param group where the element was searched; null on a plain queue */
export function rejectionOf(
  outcome: RejectedOutcome,
  { id, group }: { readonly id: ElementId; readonly group: GroupName | null },
  { name }: QueueKey,
): QuaysideError {
  return new QuaysideError(REJECTION_CODES[outcome], messageOf(outcome, id, group, name));
}

function messageOf(outcome: RejectedOutcome, id: ElementId, group: GroupName | null, queue: string): string {
  switch (outcome) {
    case 'lease-lost':
      return `The reservation of ${id} has ended, or the token is of an older one; reserve the element again.`;
    case 'token-required':
      return `Element ${id} is reserved by another user. Pass the token of the reservation.`;
    case 'not-reserved':
      return `Element ${id} is not reserved.`;
    case 'reserved':
      return `Element ${id} is reserved; commit it or roll it back.`;
    case 'not-found':
      return `There is no element ${id} in ${quote(queue)}${group === null ? '' : ` for group ${quote(group)}`}.`;
    default:
      return outcome satisfies never;
  }
}
