import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import { type GroupName, PLAIN_GROUP } from '../model/element.ts';
import type { SessionConsumerInfo } from '../model/records.ts';
import type { Right } from '../model/rights.ts';
import { toByteString } from '../util/byte-string.ts';
import type { ClientSession } from './client-session.ts';

/** What a consumer reads, validated. */
export interface ConsumerOptions {
  readonly queue: Queue;
  /** The group that it reads as; on a plain queue, {@link PLAIN_GROUP}. */
  readonly group: GroupName;
}

/** A consumer or link, which ends if its user loses the right that it needs. */
export interface RightHolder {
  readonly right: Right;
  /** Null if each message names its own; then the right is checked for each message. */
  readonly namespace: Namespace | null;
  /** Ends it with an error. No effect if it has ended. */
  fail(error: unknown): void;
}

/** Maximum elements of one take or page. */
export const MAX_TAKE = 256;
/** Assumed size of an element before the first one arrives. */
const FIRST_ESTIMATE_BYTES = 64 * 1024;
/** The elements of one take may exceed the writer's capacity by this factor, since their sizes vary. */
const TOLERANCE = 2;

/** Sends elements of a queue to the session's client while it has capacity. */
export abstract class SessionConsumer<Session extends ClientSession = ClientSession> implements RightHolder {
  readonly queue: Queue;
  readonly group: GroupName;
  /** Whether its last take failed for now; until the session fills it again, it takes nothing. */
  isRetrying = false;
  protected readonly session: Session;
  /** On a stream, `group` with one character per byte; else null. */
  protected readonly publicGroup: string | null;
  #isStopped = false;
  #estimateBytes = FIRST_ESTIMATE_BYTES;

  constructor(session: Session, { queue, group }: ConsumerOptions) {
    this.session = session;
    this.queue = queue;
    this.group = group;
    this.publicGroup = queue.namespace.isStream ? toByteString(group) : null;
    session.counts.subscriptions += 1;
    session.consumers.add(this);
  }

  abstract readonly right: Right;
  /** Ends it, or its session if the protocol cannot end a single consumer, with an error. No effect if it has ended. */
  abstract fail(error: unknown): void;
  /** Call when there may be capacity for more elements. */
  abstract fill(): void;
  /** Whether `fill` would request elements, at the same time as other consumers, if the writer had capacity. */
  abstract get canTake(): boolean;
  /** How many elements a take in progress requests for it; 0 while it only waits. */
  get taking(): number {
    return 0;
  }
  /** The consumer as listings show it. */
  abstract describe(): SessionConsumerInfo;
  /** How many more elements may be sent to the client now; may be negative. */
  protected abstract get free(): number;
  /** Stops taking, and returns outstanding elements to the queue. Called once. @returns as `stop` */
  protected abstract onStop(countTries: boolean): Promise<unknown>;

  get namespace(): Namespace {
    return this.queue.namespace;
  }

  get isStopped(): boolean {
    return this.#isStopped;
  }

  /**
   * Stops sending, and returns outstanding elements to the queue. No effect when repeated.
   * @param countTries whether a failed try is counted for each element that the client may have seen
   * @returns a promise that never rejects: it resolves with null when the engine has the elements back, else with the
   * error
   */
  async stop(countTries: boolean): Promise<unknown> {
    if (this.#isStopped) return null;
    this.#isStopped = true;
    this.session.counts.subscriptions -= 1;
    this.session.consumers.delete(this);
    this.session.passedOver.delete(this);
    return this.onStop(countTries);
  }

  protected describeAs(
    kind: SessionConsumerInfo['kind'],
    window: number | null,
    unacknowledged: number,
  ): SessionConsumerInfo {
    const group = this.group === PLAIN_GROUP ? null : this.group;
    return { ns: this.namespace.name, queue: this.queue.key.name, group, kind, window, unacknowledged };
  }

  /** How many elements fit into so many bytes by the size estimate, at least one. */
  protected fittingCount(bytes: number): number {
    return Math.max(1, Math.floor(bytes / this.#estimateBytes));
  }

  /** About how many bytes the take in progress brings. */
  get takingBytes(): number {
    return this.taking * this.#estimateBytes;
  }

  /** About how many bytes of one take are sent. If elements are much larger than estimated, the rest is not sent. */
  protected get maxBytes(): number {
    return this.session.writer.capacity * TOLERANCE;
  }

  /** Updates the size estimate: `count` elements had `bytes` in total. */
  protected updateSizeEstimate(bytes: number, count: number): void {
    this.#estimateBytes = Math.max(bytes / count, this.#estimateBytes / 4);
  }
}
