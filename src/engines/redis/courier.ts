import type { EngineLog } from '../../engine/engine.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import type { QueueKey } from '../../model/names.ts';
import type { FlightReply } from './calls/flight.ts';
import type { Lane } from './calls/lane.ts';
import type { Lanes } from './calls/lanes.ts';
import { ACCEPT, DELIVERED, KEEP, type Parcel, STRUCK } from './calls/parcels.ts';
import { DEADLINE_MS } from './client/commands.ts';
import { parseQueueText } from './keys.ts';

const AGAIN_MS = 1_000;
/** Done twice they are done once; what follows on them must not be undone by a failover. */
const WRITING = { kind: 'free', writes: true } as const;

/**
 * Brings parcels from the slot in which they were written to the queue that they are for. Taken in, struck
 * out at the source, then no longer remembered at the destination than others may still bring them, in this
 * order: whatever breaks in between, what remains is done by a later try, of this node or of whoever sweeps.
 */
export class Courier {
  readonly #lanes: Lanes;
  readonly #clock: Clock;
  readonly #log: EngineLog;
  readonly #windowMs: number;
  readonly #sweepAgain: (queue: QueueKey) => Promise<unknown>;
  /** Sources whose parcels could not be delivered. */
  readonly #behind = new Map<Lane, CancelTimer>();

  /** @param sweepAgain looks for parcels in the queue that are due, and hands them to `deliver` */
  constructor(
    parts: { lanes: Lanes; clock: Clock; log: EngineLog; dedupWindowMs: number },
    sweepAgain: (queue: QueueKey) => Promise<unknown>,
  ) {
    this.#lanes = parts.lanes;
    this.#clock = parts.clock;
    this.#log = parts.log;
    this.#windowMs = parts.dedupWindowMs;
    this.#sweepAgain = sweepAgain;
  }

  /**
   * Resolves when the parcels are in their queues, or the try was given up for now. Never rejects.
   * @param held lanes that the caller holds: their calls are made in its flights, not behind it
   */
  async deliver(
    source: Lane,
    { parcels, writes, deadlineAt }: Pick<FlightReply, 'parcels' | 'writes' | 'deadlineAt'>,
    held: readonly Lane[],
  ): Promise<void> {
    const kept = writes ? Promise.resolve() : this.#keep(source, parcels);
    const results = await Promise.allSettled(
      parcels.map((parcel) =>
        kept.then(() => {
          this.#checkAge(deadlineAt);
          return this.#deliverOne(source, parcel, held);
        }),
      ),
    );
    const failed = results.find((result) => result.status === 'rejected');
    if (failed === undefined) return;
    this.#log.warn(
      { queue: source.queue, err: failed.reason },
      'elements could not be brought to their queue yet',
    );
    this.#tryAgain(source);
  }

  /**
   * The destination counts on nobody bringing a parcel long after its look at the source: this process may have
   * been frozen since.
   */
  #checkAge(deadlineAt: number): void {
    if (this.#clock.monotonic() <= deadlineAt + DEADLINE_MS) return;
    throw new Error('it is too long ago that the parcel was seen');
  }

  stop(): void {
    for (const cancel of this.#behind.values()) cancel();
    this.#behind.clear();
  }

  /** Before a parcel is brought anywhere, a failover must not be able to undo the step that made it. */
  async #keep(source: Lane, parcels: readonly Parcel[]): Promise<void> {
    const ids = Buffer.concat(parcels.map(({ id }) => id));
    await this.#lanes.flyHeld(source, KEEP, ids, WRITING);
  }

  async #deliverOne(source: Lane, parcel: Parcel, held: readonly Lane[]): Promise<void> {
    const target = this.#lanes.get(parseQueueText(parcel.to));
    const call = { parcel, windowMs: this.#windowMs };
    const traits = { ...WRITING, makes: true };
    const accepted = held.includes(target)
      ? await this.#lanes.flyHeld(target, ACCEPT, call, traits)
      : await this.#lanes.call(target.queue, ACCEPT, call, traits);
    if (!accepted) throw new Error(`${parcel.to} has as many consumer groups as fit`);
    // Nobody waits for the rest: done late, or twice, it changes nothing.
    this.#lanes
      .call(source.queue, DELIVERED, parcel.id, { ...WRITING, join: 'delivered' })
      .then(() => this.#lanes.call(target.queue, STRUCK, parcel.id, { kind: 'free', join: 'struck' }))
      .catch(() => this.#tryAgain(source));
  }

  #tryAgain(source: Lane): void {
    if (this.#behind.has(source)) return;
    const cancel = this.#clock.after(AGAIN_MS, () => {
      this.#behind.delete(source);
      this.#sweepAgain(source.queue).catch(() => this.#tryAgain(source));
    });
    this.#behind.set(source, cancel);
  }
}
