import type { Right } from '../access/user.ts';
import type { SessionConsumerInfo } from '../broker/consumer.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import { type GroupName, PLAIN_GROUP } from '../model/element.ts';
import { bytesOfText } from '../util/byte-text.ts';
import type { ClientSession } from './client-session.ts';

/** What a consumer reads, checked. */
export interface ConsumerOptions {
  readonly namespace: Namespace;
  readonly queue: Queue;
  /** As given; null: the namespace's default. */
  readonly group: GroupName | null;
}

/** What its user needs a right for, as long as it is open. */
export interface RightHolder {
  readonly right: Right;
  /** Null: each of its frames names one. */
  readonly namespace: Namespace | null;
  /** Ends it with an error. Harmless if it is over. */
  fail(error: unknown): void;
}

/** Elements of one take or page. */
export const MAX_TAKE = 256;
/** The size that an element is assumed to have before the first has come. */
const FIRST_ESTIMATE_BYTES = 64 * 1024;
/** Elements of one take may have this many times the bytes that there was capacity for: few takes are all alike. */
const TOLERANCE = 2;

/** Sends elements of a queue to the session's client, for as long as there is room. */
export abstract class SessionConsumer<Session extends ClientSession = ClientSession> implements RightHolder {
  readonly namespace: Namespace;
  readonly queue: Queue;
  /** The group that it reads as; on a plain queue the one without a name. */
  readonly group: GroupName;
  protected readonly session: Session;
  /** On a stream: the group that it reads as, in bytes; else null. */
  protected readonly publicGroup: string | null;
  #isStopped = false;
  #estimateBytes = FIRST_ESTIMATE_BYTES;

  /** @throws QuaysideError `invalid-parameter` if a group is given and the namespace has none */
  constructor(session: Session, { namespace, queue, group }: ConsumerOptions) {
    this.group = queue.groupOf(group);
    this.session = session;
    this.namespace = namespace;
    this.queue = queue;
    this.publicGroup = namespace.isStream ? bytesOfText(this.group) : null;
    session.counts.subscriptions += 1;
    session.consumers.add(this);
  }

  abstract readonly right: Right;
  /** Ends it, if the protocol can end one consumer, else its session, with an error. Harmless if it is over. */
  abstract fail(error: unknown): void;
  /** There may be room for more. */
  abstract fill(): void;
  /** As listings show it. */
  abstract describe(): SessionConsumerInfo;
  /** How many elements the client may be sent now; 0 or less: none. */
  protected abstract get free(): number;
  /** Ends what it does, and returns what it holds. Called once. @returns as `stop` */
  protected abstract onStop(countTries: boolean): Promise<unknown>;

  get isStopped(): boolean {
    return this.#isStopped;
  }

  /**
   * Sends nothing more, and returns what it holds. Harmless when repeated.
   * @param countTries whether it is a failed try of each element that the client can have seen
   * @returns a promise that never rejects: it resolves with null when the engine has the elements, or with why it has
   * not
   */
  async stop(countTries: boolean): Promise<unknown> {
    if (this.#isStopped) return null;
    this.#isStopped = true;
    this.session.counts.subscriptions -= 1;
    this.session.consumers.delete(this);
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

  /** How many elements the client has capacity for, at least one. */
  protected get fitting(): number {
    return Math.max(1, Math.floor(this.session.writer.capacity / this.#estimateBytes));
  }

  /** Of one take so many bytes are sent, about. The rest is much larger than was estimated, and is not sent. */
  protected get maxBytes(): number {
    return this.session.writer.capacity * TOLERANCE;
  }

  /** So many elements had so many bytes. */
  protected learnSize(bytes: number, count: number): void {
    this.#estimateBytes = Math.max(bytes / count, this.#estimateBytes / 4);
  }
}
