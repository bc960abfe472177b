import type { EngineLog } from '../../engine/engine.ts';
import type { QueueKey } from '../../model/names.ts';
import type { CancelTimer, Clock } from '../../util/clock.ts';
import type { Batchers, CallOptions } from './batcher.ts';
import { parseQueueText, queueText } from './keys.ts';
import { noNumberLeft } from './verbs/insert.ts';
import type { LibraryReply, Prefix, Verb } from './verbs/verb.ts';

const AGAIN_MS = 1_000;
const NUMBER_BYTES = 7;
/** Done twice they are done once; what follows on them must not be undone by a failover. */
const REPEATABLE: CallOptions = { isFree: true, waits: true };

interface ApplyCall {
  readonly tag: string;
  readonly windowMs: number;
  readonly entries: readonly Buffer[];
}

const APPLY: Verb<ApplyCall, undefined> = {
  name: 'apply',
  encode: ([call]) =>
    call === undefined ? [] : [call.tag, call.windowMs, call.entries.length, ...call.entries],
  decode: ({ text }) => [text.length === 0 ? undefined : noNumberLeft()],
};

const ACKNOWLEDGE: Verb<{ readonly to: string; readonly number: Buffer }, undefined> = {
  name: 'acknowledge',
  encode: ([call]) => (call === undefined ? [] : [call.to, call.number]),
  decode: () => [undefined],
};

const ENTRIES: Verb<undefined, undefined> = {
  name: 'entries',
  encode: () => [],
  decode: (_, calls) => calls.map(() => undefined),
};

interface OutboxParts {
  readonly batchers: Batchers;
  readonly clock: Clock;
  readonly log: EngineLog;
  readonly dedupWindowMs: number;
  /** Elements came to a queue; perhaps nobody waits for their call any more. */
  readonly onArrival: (queue: QueueKey) => void;
}

/**
 * Brings the outbox entries of queues to the queues that they are for: see `library/outbox.lua`. A relay for each source
 * and destination applies the oldest entries at the destination and has the source delete them; the reply to that has
 * those that follow. Whatever breaks in between, what remains is done by a later attempt, of this node or of one that sweeps.
 *
 * Each step is a call of its own of the queue that it concerns. No batch waits for one, so queues that send to
 * each other cannot block each other; only callers wait, up to their deadlines.
 */
export class Outbox {
  readonly #parts: OutboxParts;
  readonly #relays = new Map<string, Relay>();
  /** Sources whose entries are read again soon, by their names. */
  readonly #retries = new Map<string, CancelTimer>();
  #isStopped = false;

  constructor(parts: OutboxParts) {
    this.#parts = parts;
  }

  /**
   * Relays the entries that a reply has. Resolves when those that its outbox holds by now are applied; null: there are
   * none. @param isAwaited whether somebody waits for that
   */
  onReply(source: QueueKey, { tag, outbox }: LibraryReply, isAwaited: boolean): Promise<void> | null {
    const applied: Promise<void>[] = [];
    for (const prefix of outbox) {
      const key = keyOf(source, prefix.to);
      const relay = this.#relays.get(key) ?? { next: null, waiters: [], isRunning: false };
      if (prefix.entries.length === 0 && !relay.isRunning) {
        if (prefix.last.some((byte) => byte !== 0)) applied.push(this.relayAll(source));
        continue;
      }
      this.#relays.set(key, relay);
      if (prefix.entries.length > 0) relay.next = { tag, prefix };
      if (isAwaited) {
        applied.push(new Promise((resolve) => relay.waiters.push({ number: prefix.last, resolve })));
      }
      if (!relay.isRunning) void this.#run(source, key, relay);
    }
    return applied.length === 0 ? null : Promise.all(applied).then(() => {});
  }

  /** Relays what the outbox of a queue holds. Never rejects: what fails is tried again later. */
  async relayAll(source: QueueKey): Promise<void> {
    const options = { ...REPEATABLE, join: 'entries', moves: true };
    await this.#parts.batchers
      .call(source, ENTRIES, undefined, options)
      .catch(() => this.#retryLater(source));
  }

  stop(): void {
    this.#isStopped = true;
    for (const cancel of this.#retries.values()) cancel();
    this.#retries.clear();
  }

  /** Until the outbox has nothing more for the destination. Never rejects. */
  async #run(source: QueueKey, key: string, relay: Relay): Promise<void> {
    relay.isRunning = true;
    try {
      while (relay.next !== null) {
        const read: Read = relay.next;
        relay.next = null;
        await this.#apply(source, relay, read);
      }
      this.#relays.delete(key);
      settle(relay, null);
    } catch (error) {
      if (this.#isStopped) return;
      this.#parts.log.warn({ queue: source, err: error }, 'elements could not be brought to their queue yet');
      this.#retryLater(source);
    } finally {
      relay.isRunning = false;
    }
  }

  async #apply(source: QueueKey, relay: Relay, { tag, prefix }: Read): Promise<void> {
    const { batchers, dedupWindowMs, onArrival } = this.#parts;
    const { to, entries } = prefix;
    const target = parseQueueText(to);
    const bytes = entries.reduce((sum, { length }) => sum + length, 0);
    const options = { ...REPEATABLE, creates: true, stores: true, bytes };
    await batchers.call(target, APPLY, { tag, windowMs: dedupWindowMs, entries }, options);
    const number = entries.at(-1)?.subarray(0, NUMBER_BYTES) ?? Buffer.alloc(NUMBER_BYTES);
    onArrival(target);
    settle(relay, number);
    await batchers.call(source, ACKNOWLEDGE, { to, number }, REPEATABLE);
  }

  #retryLater(source: QueueKey): void {
    const text = queueText(source);
    if (this.#isStopped || this.#retries.has(text)) return;
    const cancel = this.#parts.clock.after(AGAIN_MS, () => {
      this.#retries.delete(text);
      void this.relayAll(source);
    });
    this.#retries.set(text, cancel);
  }
}

/** What a reply has of an outbox. */
interface Read {
  readonly tag: string;
  readonly prefix: Prefix;
}

interface Relay {
  /** What is to be applied next. */
  next: Read | null;
  waiters: { readonly number: Buffer; readonly resolve: () => void }[];
  isRunning: boolean;
}

function keyOf(source: QueueKey, to: string): string {
  return `${queueText(source)}\0${to}`;
}

/** Resolves those who wait for a number up to this one; null: all. */
function settle(relay: Relay, upTo: Buffer | null): void {
  const before = relay.waiters;
  const isApplied = ({ number }: { number: Buffer }): boolean =>
    upTo === null || Buffer.compare(number, upTo) <= 0;
  relay.waiters = before.filter((waiter) => !isApplied(waiter));
  for (const waiter of before) if (isApplied(waiter)) waiter.resolve();
}
