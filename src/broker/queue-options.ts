import type { QueueRule } from '../engine/queue-policy.ts';
import type { QueueOptions, RetryDelay } from '../engine/storage.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { textFingerprint } from '../model/fingerprint.ts';
import { atMember, parse, wrongMember } from '../model/members.ts';
import { DEAD_LETTER_QUEUE, type QueueKey } from '../model/names.ts';
import { type OptionName, type OptionsRecord, RETRY_DEFAULTS, ShownOptions } from '../model/records.ts';
import { toMs } from '../util/clock.ts';
import { bySpecificity, ruleFor } from '../util/name-pattern.ts';
import { quote } from '../util/quote.ts';
import { requireCapability, requireExpiry } from './capabilities.ts';
import type { Namespace } from './namespace.ts';

/**
 * The options that a queue, or a rule for queues, sets itself. Null turns an option off, whatever less specific options
 * say. The engine applies those in `QueueOptions`.
 */
export interface OwnOptions extends QueueOptions {
  /** The lease of a reserve that names none. */
  readonly leaseMs?: number;
  /** The time to live of elements inserted without one. */
  readonly ttlMs?: number | null;
  /** Inserts are rejected while the queue holds this many elements; null: unlimited. */
  readonly maxElements?: number | null;
}

/** The effective options of a queue. */
export type QueueSettings = Required<OwnOptions>;

/** The names of the options, in the configuration file as well as in JSON. */
const NAMES: readonly OptionName[] = ['lease', 'deadLetter', 'retryDelay', 'retention', 'ttl', 'maxElements'];

/**
 * The options of a namespace's queues. Options stored for a queue override those of the rule for its name, which
 * override the namespace's.
 */
export class QueueOptionsTable {
  readonly #defaults: QueueSettings;
  /** The most specific first. */
  readonly #rules: readonly QueueRule<OwnOptions>[];
  readonly #stored = new Map<string, OwnOptions>();
  #deadLetterQueues: readonly string[] | null = null;
  /** Changes with the stored options. Handles cache their settings by it. */
  version = 0;

  constructor(defaults: QueueSettings, rules: readonly QueueRule<OwnOptions>[]) {
    this.#defaults = defaults;
    this.#rules = bySpecificity(rules);
  }

  settingsOf(name: string): QueueSettings {
    const stored = this.#stored.get(name);
    const rule = ruleFor(this.#rules, name);
    if (stored === undefined && rule === undefined) return this.#defaults;
    return { ...this.#defaults, ...rule?.options, ...stored };
  }

  /** The names of all dead-letter queues, each once. Cached until options change: every metrics scrape reads them. */
  get deadLetterQueues(): readonly string[] {
    this.#deadLetterQueues ??= this.#findDeadLetterQueues();
    return this.#deadLetterQueues;
  }

  #findDeadLetterQueues(): string[] {
    const all = [this.#defaults, ...this.#rules.map(({ options }) => options), ...this.#stored.values()];
    return [...new Set(all.flatMap(({ deadLetter }) => (deadLetter == null ? [] : [deadLetter.queue])))];
  }

  /** The names of the queues with stored options. */
  names(): Iterable<string> {
    return this.#stored.keys();
  }

  /** Notes the stored options of a queue; null: there are none any more. */
  note(name: string, stored: OwnOptions | null): void {
    if (stored === null) this.#stored.delete(name);
    else this.#stored.set(name, stored);
    this.version += 1;
    this.#deadLetterQueues = null;
  }

  /** The stored options of a queue as JSON; without members if it has none. */
  storedOf(name: string): ShownOptions {
    return showOptions(this.#stored.get(name) ?? {});
  }

  record(name: string): OptionsRecord {
    const stored = this.storedOf(name);
    const rule = ruleFor(this.#rules, name);
    const ruleOptions = showOptions(rule?.options ?? {});
    const settings = this.settingsOf(name);
    // Elements of a dead-letter queue stay there.
    const deadLetter = settings.deadLetter?.queue === name ? null : settings.deadLetter;
    const sourceOf = (option: OptionName): OptionsRecord['sources'][OptionName] =>
      stored[option] !== undefined ? 'stored' : ruleOptions[option] !== undefined ? 'pattern' : 'namespace';
    return {
      stored,
      pattern: rule?.pattern ?? null,
      effective: showOptions({ ...settings, deadLetter }) as OptionsRecord['effective'],
      sources: Object.fromEntries(
        NAMES.map((option) => [option, sourceOf(option)]),
      ) as OptionsRecord['sources'],
      version: versionOfOptions(this.#stored.get(name) ?? null),
    };
  }
}

/**
 * Parses options from JSON.
 * @throws QuaysideError `invalid-parameter` with the path of the member
 */
export function parseOptions(value: unknown): OwnOptions {
  return toOptions(parse(ShownOptions, value));
}

/**
 * Converts options to the units of the engines, and fills in the defaults of their members.
 * @throws QuaysideError `invalid-parameter` for a retry delay whose `max` is less than its `first`
 */
export function toOptions(options: ShownOptions): OwnOptions {
  const { lease, deadLetter, retryDelay, retention, ttl, maxElements } = options;
  return {
    ...(lease !== undefined && { leaseMs: milliseconds(lease) }),
    ...(deadLetter !== undefined && {
      deadLetter: deadLetter && {
        maxTries: deadLetter.maxTries,
        queue: deadLetter.queue ?? DEAD_LETTER_QUEUE,
      },
    }),
    ...(retryDelay !== undefined && { retryDelay: retryDelay && toRetryDelay(retryDelay) }),
    ...(retention !== undefined && { retentionMs: retention && milliseconds(retention) }),
    ...(ttl !== undefined && { ttlMs: ttl && milliseconds(ttl) }),
    ...(maxElements !== undefined && { maxElements }),
  };
}

/** @throws QuaysideError `invalid-parameter` if `max` is less than `first` */
function toRetryDelay(delay: NonNullable<ShownOptions['retryDelay']>): RetryDelay {
  const { first, factor, jitter } = { ...RETRY_DEFAULTS, ...delay };
  const { max = Math.max(RETRY_DEFAULTS.max, first) } = delay;
  if (max < first) throw wrongMember('retryDelay.max', max, `at least retryDelay.first, which is ${first}`);
  return { firstMs: milliseconds(first), factor, maxMs: milliseconds(max), jitter };
}

/** Converts seconds, at least to 1 ms. */
export function milliseconds(seconds: number): number {
  return Math.max(1, toMs(seconds));
}

/**
 * Checks options before they are stored for a queue.
 * @throws QuaysideError `invalid-parameter` if the queue would be its own dead-letter queue: an engine does not move an
 * element to the queue that it is in; `not-supported` if the namespace's queues cannot have one of these options
 */
export function checkOptions(namespace: Namespace, name: string, options: OwnOptions): void {
  checkDeadLetterQueue(name, options);
  const { leaseMs, deadLetter, retryDelay, retentionMs, ttlMs } = options;
  const supported = (option: OptionName, check: () => void): void =>
    atMember(option, check, `${option} cannot be set.`);
  if (leaseMs !== undefined) supported('lease', () => requireCapability(namespace, 'reserve'));
  if (deadLetter != null) supported('deadLetter', () => requireCapability(namespace, 'reserve'));
  if (retryDelay != null) supported('retryDelay', () => requireCapability(namespace, 'reserve'));
  if (retentionMs != null) supported('retention', () => requireCapability(namespace, 'tape'));
  if (ttlMs != null) supported('ttl', () => requireExpiry(namespace));
}

/** @throws QuaysideError `invalid-parameter` if a queue, or a pattern without `*`, names itself as dead-letter queue */
export function checkDeadLetterQueue(name: string, { deadLetter }: OwnOptions): void {
  if (deadLetter?.queue !== name) return;
  throw invalidParameter(
    'deadLetter.queue',
    `deadLetter.queue is ${quote(name)}, the queue itself. Name another queue, or give deadLetter: null for a queue without dead letters.`,
  );
}

/** Options as JSON, with members in a fixed order; the inverse of `parseOptions`. */
export function showOptions(options: OwnOptions): ShownOptions {
  const { leaseMs, deadLetter, retryDelay, retentionMs, ttlMs, maxElements } = options;
  return {
    ...(leaseMs !== undefined && { lease: leaseMs / 1000 }),
    ...(deadLetter !== undefined && { deadLetter: deadLetter && { ...deadLetter } }),
    ...(retryDelay !== undefined && { retryDelay: retryDelay && showRetryDelay(retryDelay) }),
    ...(retentionMs !== undefined && { retention: retentionMs && retentionMs / 1000 }),
    ...(ttlMs !== undefined && { ttl: ttlMs && ttlMs / 1000 }),
    ...(maxElements !== undefined && { maxElements }),
  };
}

/** A hash of the stored options, equal on every node. @param stored null: nothing is stored */
export function versionOfOptions(stored: OwnOptions | null): string {
  return textFingerprint(JSON.stringify(showOptions(stored ?? {})));
}

/** The error of a change whose If-Match names another version of the stored options. */
export function otherOptions({ name }: QueueKey): QuaysideError {
  return new QuaysideError(
    'precondition-failed',
    `The stored options of queue ${quote(name)} do not have the version that If-Match names. Read them again, and look at the difference.`,
  );
}

function showRetryDelay({
  firstMs,
  factor,
  maxMs,
  jitter,
}: RetryDelay): NonNullable<ShownOptions['retryDelay']> {
  return { first: firstMs / 1000, factor, max: maxMs / 1000, jitter };
}
