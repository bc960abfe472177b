import { unavailable } from '../../engine/calls.ts';
import type { QueueKey } from '../../model/names.ts';
import { Pause } from '../../util/pause.ts';
import { type Batchers, single } from './batcher.ts';
import type { RedisContext } from './context.ts';
import { parseQueueText, queueText } from './keys.ts';
import type { LibraryReply } from './reply.ts';
import { noNumberLeft } from './verbs/insert.ts';

/** How long a failed relay pauses: the first time, and at most. Each attempt reads the entries again. */
const FIRST_PAUSE_MS = 1_000;
const MAX_PAUSE_MS = 8_000;
const NUMBER_BYTES = 7;
const NO_NUMBER = Buffer.alloc(NUMBER_BYTES);
/** The head of an entry: its number and the run id of the server that wrote it. */
const MARK_BYTES = NUMBER_BYTES + 8;
const NO_MARK = Buffer.alloc(MARK_BYTES);
/** The result of a call whose entries must be read again: see `library/outbox.lua`. */
const OUTDATED = '?';
/** To apply or acknowledge again changes nothing. */
const REPEATABLE = { isRepeatable: true } as const;

interface ApplyCall {
  readonly tag: string;
  readonly windowMs: number;
  /** When the entries were read at the earliest, by the destination's clock. */
  readonly readAt: number;
  readonly entries: readonly Buffer[];
}

const APPLY = single<ApplyCall, undefined>(
  'apply',
  ({ tag, windowMs, readAt, entries }) => [tag, windowMs, readAt, entries.length, ...entries],
  ({ text }) => {
    if (text.length === 0) return undefined;
    return text.toString() === OUTDATED
      ? unavailable('The elements were read too long ago.')
      : noNumberLeft();
  },
  REPEATABLE,
);

const ACKNOWLEDGE = single<{ readonly to: string; readonly mark: Buffer }, undefined>(
  'acknowledge',
  ({ to, mark }) => [to, mark],
  () => undefined,
  REPEATABLE,
);

/**
 * Moves outbox entries to the queues that they are for: see `library/outbox.lua`. A relay for each source and
 * destination applies the oldest entries at the destination and makes the source delete them; the reply has those that
 * follow. After a failure, a later attempt of this node, or of one that sweeps, does the rest.
 *
 * Each step is a call of its own to the queue that it concerns. No batch waits for a relay, so queues that send to each
 * other cannot block each other; only callers wait, up to their deadlines.
 */
export class Outbox {
  readonly #context: Pick<RedisContext, 'clock' | 'log' | 'dedupWindowMs'>;
  readonly #batchers: Batchers;
  readonly #onArrival: (queue: QueueKey) => void;
  readonly #relays = new Map<string, Relay>();
  #isStopped = false;

  /** @param onArrival called when elements were stored in a queue, perhaps after their caller has stopped waiting */
  constructor(
    context: Pick<RedisContext, 'clock' | 'log' | 'dedupWindowMs'>,
    batchers: Batchers,
    onArrival: (queue: QueueKey) => void,
  ) {
    this.#context = context;
    this.#batchers = batchers;
    this.#onArrival = onArrival;
  }

  /**
   * Relays the entries that a reply contains or announces. Resolves when all entries that are in the outbox now are
   * applied; null: there are none, or nobody waits.
   * @param sentAt when the call was sent, by the monotonic clock
   * @param awaitedUntil the deadline of those who wait, by the monotonic clock; null: nobody waits
   */
  onReply(
    source: QueueKey,
    { tag, outbox }: LibraryReply,
    sentAt: number,
    awaitedUntil: number | null,
  ): Promise<void> | null {
    const applied: Promise<void>[] = [];
    for (const prefix of outbox) {
      if (prefix.last.equals(NO_NUMBER)) continue;
      const key = `${queueText(source)}\0${prefix.to}`;
      const running = this.#relays.get(key);
      const { clock } = this.#context;
      const pause = new Pause(clock);
      const relay = running ?? { source, to: prefix.to, next: null, waiters: [], pause };
      const now = this.#batchers.context.registry.now(parseQueueText(prefix.to));
      const readAt = now - (clock.monotonic() - sentAt);
      if (prefix.entries.length > 0) relay.next = { tag, prefix, readAt };
      if (awaitedUntil !== null) applied.push(this.#applied(relay, prefix.last, awaitedUntil));
      if (running !== undefined) continue;
      this.#relays.set(key, relay);
      void this.#run(key, relay);
    }
    return applied.length === 0 ? null : Promise.all(applied).then(() => {});
  }

  stop(): void {
    this.#isStopped = true;
    for (const { pause } of this.#relays.values()) pause.end();
  }

  /** Relays entries until the outbox has none left for the destination. Never rejects: failed steps are tried again. */
  async #run(key: string, relay: Relay): Promise<void> {
    let mark: Buffer = NO_MARK;
    let pauseMs = FIRST_PAUSE_MS;
    while (!this.#isStopped) {
      try {
        if (relay.next !== null) {
          mark = await this.#apply(relay, relay.next);
          relay.next = null;
          pauseMs = FIRST_PAUSE_MS;
        }
        await this.#batchers.call(relay.source, ACKNOWLEDGE, { to: relay.to, mark });
        if (relay.next === null) break;
      } catch (error) {
        relay.next = null;
        if (this.#isStopped) return;
        this.#context.log.warn(
          { queue: relay.source, err: error },
          'elements could not be moved to their queue yet',
        );
        this.#dropLate(relay);
        await relay.pause.wait(pauseMs);
        pauseMs = Math.min(2 * pauseMs, MAX_PAUSE_MS);
      }
    }
    this.#relays.delete(key);
    for (const { onApplied } of relay.waiters) onApplied();
  }

  /** Applies entries at the destination. Returns the number and run id of the last one. */
  async #apply(
    { waiters, to }: Relay,
    { tag, prefix: { entries }, readAt }: RelayedEntries,
  ): Promise<Buffer> {
    const target = parseQueueText(to);
    const bytes = entries.reduce((sum, { length }) => sum + length, 0);
    const options = { creates: true, stores: true, bytes };
    const windowMs = this.#context.dedupWindowMs;
    await this.#batchers.call(target, APPLY, { tag, windowMs, readAt, entries }, options);
    const mark = entries.at(-1)?.subarray(0, MARK_BYTES) ?? NO_MARK;
    const number = mark.subarray(0, NUMBER_BYTES);
    this.#onArrival(target);
    for (const { onApplied } of takeWhile(waiters, (waiter) => Buffer.compare(waiter.number, number) <= 0)) {
      onApplied();
    }
    return mark;
  }

  /** Resolves when the destination has the entries up to this number, or never if the deadline passes before. */
  #applied(relay: Relay, number: Buffer, deadlineAt: number): Promise<void> {
    this.#dropLate(relay);
    return new Promise((resolve) => relay.waiters.push({ number, deadlineAt, onApplied: resolve }));
  }

  /** Removes waiters whose deadlines have passed: they keep settled calls in memory. */
  #dropLate({ waiters }: Relay): void {
    const now = this.#context.clock.monotonic();
    takeWhile(waiters, ({ deadlineAt }) => deadlineAt <= now);
  }
}

/** Entries from a reply of their source, and the tag of that. */
interface RelayedEntries {
  readonly tag: string;
  /** See `ApplyCall`. */
  readonly readAt: number;
  readonly prefix: LibraryReply['outbox'][number];
}

interface Relay {
  readonly source: QueueKey;
  /** The full name of the destination. */
  readonly to: string;
  /** The entries to apply next. */
  next: RelayedEntries | null;
  /** In the order of their numbers and deadlines. */
  readonly waiters: Waiter[];
  /** The wait after a failure. */
  readonly pause: Pause;
}

interface Waiter {
  readonly number: Buffer;
  readonly deadlineAt: number;
  readonly onApplied: () => void;
}

/** Removes the first waiters that satisfy a condition, and returns them. */
function takeWhile(waiters: Waiter[], condition: (waiter: Waiter) => boolean): Waiter[] {
  const end = waiters.findIndex((waiter) => !condition(waiter));
  return waiters.splice(0, end < 0 ? waiters.length : end);
}
