import type { EngineLog } from '../../engine/engine.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import type { QueueKey } from '../../model/names.ts';
import type { FlightReply } from './calls/flight.ts';
import type { Lanes } from './calls/lanes.ts';
import { ACCEPT, DELIVERED, KEEP, type Parcel, STRUCK } from './calls/parcels.ts';
import { DEADLINE_MS } from './client/executor.ts';
import { parseQueueText, queueText } from './keys.ts';

const AGAIN_MS = 1_000;
/** As many as one look at a queue answers at most (`library/sweep.lua`): there may be more. */
const MOST_SEEN = 20;
/** Done twice they are done once; what follows on them must not be undone by a failover. */
const WRITING = { kind: 'free', writes: true } as const;

/** What the relay needs of whoever looks after queues. */
export interface RelayHost {
  /** Looks for entries of the queue that are still there, and hands them to `deliver`. */
  lookAgain(source: QueueKey): Promise<unknown>;
  /** Elements came to a queue although nobody waits for their call any more. */
  onLateArrival(target: QueueKey): void;
}

type Seen = Pick<FlightReply, 'parcels' | 'writes' | 'deadlineAt'>;

/**
 * Brings the outbox entries of a queue (parcels, in the library) to the queues that they are for. Applied at the
 * destination, deleted at the source, then no longer remembered at the destination than others may still bring
 * them, in this order: whatever breaks in between, what remains is done by a later try, of this node or of whoever
 * sweeps.
 *
 * Each step is a call of its own of the queue that it touches. No batch waits for one, so queues that send to
 * each other cannot block each other; only callers wait, up to their deadlines.
 */
export class OutboxRelay {
  readonly #lanes: Lanes;
  readonly #clock: Clock;
  readonly #log: EngineLog;
  readonly #windowMs: number;
  readonly #host: RelayHost;
  /** Sources with entries that could not be delivered, by their texts. */
  readonly #behind = new Map<string, CancelTimer>();
  #stopped = false;

  constructor(parts: { lanes: Lanes; clock: Clock; log: EngineLog; dedupWindowMs: number }, host: RelayHost) {
    this.#lanes = parts.lanes;
    this.#clock = parts.clock;
    this.#log = parts.log;
    this.#windowMs = parts.dedupWindowMs;
    this.#host = host;
  }

  /** Resolves when the entries are in their queues, or the attempt is given up for now. Never rejects. */
  async deliver(source: QueueKey, { parcels, writes, deadlineAt }: Seen): Promise<void> {
    const kept = writes ? Promise.resolve() : this.#keep(source, parcels);
    const results = await Promise.allSettled(
      parcels.map((parcel) =>
        kept.then(() => {
          this.#checkAge(deadlineAt);
          return this.#deliverOne(source, parcel);
        }),
      ),
    );
    if (this.#stopped) return;
    if (this.#clock.monotonic() >= deadlineAt) this.#noteLate(parcels, results);
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) {
      this.#log.warn(
        { queue: source, err: failed.reason },
        'elements could not be brought to their queue yet',
      );
      this.#tryAgain(source);
    } else if (parcels.length >= MOST_SEEN) {
      this.#lookAgain(source);
    }
  }

  stop(): void {
    this.#stopped = true;
    for (const cancel of this.#behind.values()) cancel();
    this.#behind.clear();
  }

  /**
   * The destination counts on nobody bringing an entry long after its look at the source: this process may have
   * been frozen since.
   */
  #checkAge(deadlineAt: number): void {
    if (this.#clock.monotonic() <= deadlineAt + DEADLINE_MS) return;
    throw new Error('it is too long ago that the entry was seen');
  }

  #noteLate(parcels: readonly Parcel[], results: readonly PromiseSettledResult<void>[]): void {
    const arrived = parcels.filter((_, i) => results[i]?.status === 'fulfilled');
    for (const text of new Set(arrived.map(({ to }) => to))) this.#host.onLateArrival(parseQueueText(text));
  }

  /** Before an entry is brought anywhere, a failover must not be able to undo the step that made it. */
  async #keep(source: QueueKey, parcels: readonly Parcel[]): Promise<void> {
    await this.#lanes.call(source, KEEP, Buffer.concat(parcels.map(({ id }) => id)), WRITING);
  }

  async #deliverOne(source: QueueKey, parcel: Parcel): Promise<void> {
    const target = parseQueueText(parcel.to);
    const call = { parcel, windowMs: this.#windowMs };
    const bytes = parcel.packed.length;
    const accepted = await this.#lanes.call(target, ACCEPT, call, { ...WRITING, makes: true, bytes });
    if (!accepted) throw new Error(`${parcel.to} has as many consumer groups as fit`);
    // Nobody waits for the rest: done late, or twice, it changes nothing.
    this.#lanes
      .call(source, DELIVERED, parcel.id, { ...WRITING, join: 'delivered' })
      .then(() => this.#lanes.call(target, STRUCK, parcel.id, { kind: 'free', join: 'struck' }))
      .catch(() => this.#tryAgain(source));
  }

  #tryAgain(source: QueueKey): void {
    const text = queueText(source);
    if (this.#stopped || this.#behind.has(text)) return;
    const cancel = this.#clock.after(AGAIN_MS, () => {
      this.#behind.delete(text);
      this.#lookAgain(source);
    });
    this.#behind.set(text, cancel);
  }

  #lookAgain(source: QueueKey): void {
    this.#host.lookAgain(source).catch(() => this.#tryAgain(source));
  }
}
