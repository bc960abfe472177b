import type { Authenticator, User } from '../access/user.ts';
import type { QueueReading } from '../broker/activity.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { QueueFollower, QueueWatch } from '../broker/queue-watch.ts';
import { QuaysideError, shuttingDown } from '../model/errors.ts';
import { textFingerprint } from '../model/fingerprint.ts';
import { RIGHTS, type UserRights } from '../model/rights.ts';
import type { Clock } from '../util/clock.ts';
import { EarliestTimer } from '../util/earliest-timer.ts';
import type { Service } from '../util/service.ts';
import { UserLimit, type UserLimits } from '../util/user-limit.ts';
import { type CollectedParts, EventCollection } from './collection.ts';
import { type EventFilter, isWanted, queuePicture } from './pictures.ts';

/** Why a subscription ends. */
type EventEnd = 'shutting-down' | 'login-lost' | 'rights-changed' | 'login-expired';

/** Receives the events of one subscriber. */
export interface EventSink {
  /** Writes bytes; calls `onWritten` when the kernel has all of them. Until then, only `end` may be called. */
  write(bytes: Buffer, onWritten: () => void): void;
  /** Writes the last bytes. */
  end(bytes: Buffer): void;
}

/** A subscription, for the front end. */
export interface EventSubscription {
  /** Ends it, because the client has disconnected. */
  close(): void;
}

/** What a new subscriber gives. */
interface SubscribeRequest {
  readonly user: User;
  readonly filter: EventFilter;
  /** The id of the last event that the client has; null: none. */
  readonly lastEventId: string | null;
  readonly sink: EventSink;
}

/** Counts for the metrics. */
export interface EventCounts {
  subscribers: number;
  /** Bytes that were written to subscribers. */
  bytes: number;
}

interface PublisherParts extends CollectedParts {
  readonly watch: Pick<QueueWatch, 'follow'>;
  readonly clock: Clock;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  /** Limits of concurrent subscribers. */
  readonly limits: UserLimits;
}

/** Minimum time between two updates of a subscriber. */
const UPDATE_MS = 500;
/**
 * Subscribers that are written to in one turn of the event loop: a write takes tens of microseconds, and there may be
 * thousands of subscribers.
 */
const WRITES_PER_TURN = 50;
/** A turn ends earlier if it takes this long: finding what one queue's subscriber wants among 100,000 takes longer. */
const TURN_MS = 2;
/**
 * The next round of updates waits for this multiple of the time that the last one took: updates take at most a
 * twentieth of the main thread.
 */
const REST_FACTOR = 20;
/**
 * Maximum time without anything sent to a subscriber; then it is sent an `alive` event. This makes proxies keep the
 * connection, and clients can detect that it is lost.
 */
const BEAT_MS = 15_000;
/** How often subscribers are checked for `BEAT_MS`. */
const BEAT_CHECK_MS = 1_000;
/** Approximate size of one write, and therefore of the memory for a subscriber that does not read. */
const PIECE_BYTES = 24_576;
/** Maximum number of pieces cached for subscribers that reach the same version a moment later. */
const MAX_PIECES = 32;
/** How long changes are followed after the last subscriber has left, for clients that reconnect. */
const LINGER_MS = 10_000;
/** A subscription ends after an hour at most: the client's credentials are checked when it reconnects. */
const MAX_AGE_MS = 3_600_000;
/**
 * Minimum time that a client waits before it reconnects. It is up to twice as long, so that not all clients reconnect
 * at the same time.
 */
const RETRY_MS = 2_000;

/**
 * A comment, which keeps the connection open, as the specification of server-sent events suggests; and an event,
 * because browsers do not pass comments to pages.
 */
const BEAT = Buffer.from(':\nevent: alive\ndata: {}\n\n');
const COMPLETE = Buffer.from('event: complete\ndata: {}\n\n');

/**
 * Sends subscribers the changes on this node and on others. One collection serves all subscribers, and exists only
 * while there are any. Unsent changes are only in the journal, which has the latest picture of each thing. A subscriber
 * only has a version of the journal, and one write that the kernel has not accepted.
 */
export class EventPublisher implements Service, QueueFollower {
  readonly counts: EventCounts = { subscribers: 0, bytes: 0 };
  readonly #parts: PublisherParts;
  readonly #limit: UserLimit;
  readonly #subscribers = new Set<SubscriberState>();
  #collection: EventCollection | null = null;
  #collections = 0;
  readonly #flushTimer: EarliestTimer;
  #flushedAt = Number.NEGATIVE_INFINITY;
  /** Time that the main thread spent on subscribers since the last flush began. */
  #costMs = 0;
  /** Pieces by version and view, shared by all subscribers at that version. */
  readonly #pieces = new Map<string, Piece>();
  readonly #beatTimer: EarliestTimer;
  readonly #lingerTimer: EarliestTimer;
  #isClosed = false;

  constructor(parts: PublisherParts) {
    const { clock, limits } = parts;
    this.#parts = parts;
    this.#limit = new UserLimit(limits, tooManySubscribers);
    this.#flushTimer = new EarliestTimer(clock, () => {
      // Subscribers may have read and been sent more since the timer was set, which increases `#costMs`.
      if (clock.monotonic() < this.#flushableAt) this.#flushSoon();
      else this.#flush();
    });
    this.#beatTimer = new EarliestTimer(clock, () => {
      this.#beatSoon();
      const now = clock.monotonic();
      this.#forEach((subscriber) => this.#beat(subscriber, now));
    });
    this.#lingerTimer = new EarliestTimer(clock, () => {
      this.#stopFollowing();
      this.#collection = null;
    });
  }

  async start(): Promise<void> {}

  /** Ends all subscriptions, and accepts no further ones. */
  drain(): void {
    this.#isClosed = true;
    this.#limit.close(shuttingDown);
    for (const subscriber of [...this.#subscribers]) this.#end(subscriber, 'shutting-down');
  }

  async stop(): Promise<void> {
    this.drain();
    this.#stopFollowing();
    await this.#collection?.idle();
    this.#collection = null;
  }

  /**
   * Call this after users were reloaded or API tokens have ended. Ends subscriptions of users whose login or rights
   * have changed; their clients may reconnect.
   * @param users only the subscriptions of these users; null: of all
   */
  renewUsers(authenticator: Pick<Authenticator, 'renew'>, users: ReadonlySet<User> | null = null): void {
    for (const subscriber of [...this.#subscribers]) {
      if (users?.has(subscriber.user) === false) continue;
      const user = authenticator.renew(subscriber.user);
      if (user === null) this.#end(subscriber, 'login-lost');
      else if (this.#viewKey(user, subscriber.filter) !== subscriber.viewKey) {
        this.#end(subscriber, 'rights-changed');
      } else subscriber.user = user;
    }
  }

  /** @throws QuaysideError `too-many-subscribers`, `shutting-down` */
  subscribe({ user, filter, lastEventId, sink }: SubscribeRequest): EventSubscription {
    this.#limit.enter(user.name);
    this.#lingerTimer.cancel();
    const collection = this.#collection ?? this.#startCollection();
    const viewKey = this.#viewKey(user, filter);
    // Ids depend on the view: after a change of rights or filter, the client lacks some things and has others that it
    // may no longer see, so it has to start from the beginning.
    const idPrefix = `${collection.id}.${textFingerprint(viewKey)}-`;
    const version = collection.versionOf(lastEventId, idPrefix);
    const subscriber: SubscriberState = {
      user,
      filter,
      viewKey,
      idPrefix,
      sink,
      version: version ?? 0,
      isFull: version === null,
      hasStarted: false,
      isComplete: false,
      isWriting: false,
      openedAt: this.#parts.clock.monotonic(),
      wroteAt: 0,
    };
    this.#subscribers.add(subscriber);
    this.counts.subscribers += 1;
    this.#beatSoon();
    this.#writeNext(subscriber, collection);
    return { close: () => this.#remove(subscriber) };
  }

  onQueue(namespace: Namespace, name: string, reading: QueueReading): void {
    this.#collection?.journal.put(queuePicture(namespace, name, reading));
  }

  onGone(namespace: Namespace, name: string): void {
    this.#collection?.journal.remove({ kind: 'queues', key: JSON.stringify([namespace.name, name]) });
  }

  onRound(namespace: Namespace, isFilled: boolean): void {
    if (isFilled) this.#collection?.markRead(namespace);
    this.#flushSoon();
  }

  #startCollection(): EventCollection {
    this.#collections += 1;
    const { clock, random, watch } = this.#parts;
    const id = `${Math.floor(random() * 2 ** 40).toString(36)}.${this.#collections}`;
    const collection = new EventCollection(id, this.#parts, clock, () => this.#flushSoon());
    this.#collection = collection;
    collection.start();
    watch.follow(this);
    return collection;
  }

  /** Stops following changes, and the timers for updates. */
  #stopFollowing(): void {
    this.#lingerTimer.cancel();
    this.#flushTimer.cancel();
    if (this.#collection === null) return;
    this.#parts.watch.follow(null);
    this.#collection.stop();
  }

  #remove(subscriber: SubscriberState): void {
    if (!this.#subscribers.delete(subscriber)) return;
    this.counts.subscribers -= 1;
    this.#limit.exit(subscriber.user.name);
    if (this.#subscribers.size > 0) return;
    this.#beatTimer.cancel();
    if (!this.#isClosed) this.#lingerTimer.within(LINGER_MS);
  }

  #end(subscriber: SubscriberState, reason: EventEnd): void {
    this.#remove(subscriber);
    subscriber.sink.end(Buffer.from(`event: end\ndata: {"reason":"${reason}"}\n\n`));
  }

  /** Subscribers with the same key are sent the same bytes. */
  #viewKey(user: UserRights, { kinds, ns, queue }: EventFilter): string {
    const rights = this.#parts.namespaces.map(({ name }) => [
      user.maySee(name),
      user.maySeeBodies(name),
      ...RIGHTS.map((right) => user.may(right, name)),
    ]);
    return JSON.stringify([[...kinds].sort(), ns, queue, rights]);
  }

  #flushSoon(): void {
    if (this.#collection === null || this.#isClosed) return;
    // Nodes and exchanges are read and sent before the queues are. Complete the full picture now, not at the next
    // update.
    if (this.#collection.isDue) this.#flush();
    else this.#flushTimer.within(this.#flushableAt - this.#parts.clock.monotonic());
  }

  get #flushableAt(): number {
    return this.#flushedAt + Math.max(UPDATE_MS, REST_FACTOR * this.#costMs);
  }

  /**
   * Publishes the changes and writes to the subscribers, except those that still have to read; they get the changes
   * then.
   */
  #flush(): void {
    const collection = this.#collection;
    this.#flushTimer.cancel();
    if (collection === null) return;
    this.#flushedAt = this.#parts.clock.monotonic();
    this.#costMs = 0;
    collection.publish();
    this.#pieces.clear();
    this.#forEach((subscriber) => this.#writeNext(subscriber, collection));
  }

  /**
   * Calls `run` for all current subscribers, some in each turn of the event loop: other requests are served in between.
   */
  #forEach(run: (subscriber: SubscriberState) => void): void {
    const { clock } = this.#parts;
    const all = [...this.#subscribers];
    let at = 0;
    const runSome = (): void => {
      const end = at + WRITES_PER_TURN;
      const startedAt = clock.monotonic();
      for (; at < end && clock.monotonic() - startedAt < TURN_MS; at += 1) {
        const subscriber = all[at];
        if (subscriber === undefined) return;
        if (this.#subscribers.has(subscriber)) run(subscriber);
      }
      setImmediate(runSome);
    };
    runSome();
  }

  /** Writes the next piece that the subscriber lacks, unless the kernel has not accepted the previous one yet. */
  #writeNext(subscriber: SubscriberState, collection: EventCollection): void {
    if (subscriber.isWriting || !this.#subscribers.has(subscriber)) return;
    const { clock } = this.#parts;
    const startedAt = clock.monotonic();
    const bytes = this.#nextBytes(subscriber, collection);
    if (bytes === null) return;
    subscriber.isWriting = true;
    subscriber.wroteAt = startedAt;
    this.counts.bytes += bytes.length;
    subscriber.sink.write(bytes, () => {
      subscriber.isWriting = false;
      this.#writeNext(subscriber, collection);
    });
    this.#costMs += clock.monotonic() - startedAt;
  }

  #nextBytes(subscriber: SubscriberState, collection: EventCollection): Buffer | null {
    if (subscriber.version > 0 && !collection.journal.hasSince(subscriber.version)) {
      // The journal has forgotten that things are gone which the subscriber may still know of. Send it everything.
      subscriber.hasStarted = false;
      subscriber.isFull = true;
      subscriber.version = 0;
    }
    if (!subscriber.hasStarted) {
      subscriber.hasStarted = true;
      subscriber.isComplete = false;
      const retryMs = Math.round(RETRY_MS * (1 + this.#parts.random()));
      return Buffer.from(`retry: ${retryMs}\nevent: start\ndata: {"full":${subscriber.isFull}}\n\n`);
    }
    for (;;) {
      const piece = this.#pieceFor(subscriber, collection);
      if (piece === null) break;
      subscriber.version = piece.version;
      if (piece.bytes !== null) return piece.bytes;
    }
    if (subscriber.isComplete || !collection.isPublished) return null;
    subscriber.isComplete = true;
    subscriber.isFull = false;
    return COMPLETE;
  }

  /** The piece behind the subscriber's version; null if there is none. */
  #pieceFor(subscriber: SubscriberState, collection: EventCollection): Piece | null {
    const { viewKey, version } = subscriber;
    if (version >= collection.published) return null;
    const key = `${version} ${viewKey}`;
    let piece = this.#pieces.get(key);
    if (piece === undefined) {
      if (this.#pieces.size >= MAX_PIECES) this.#pieces.clear();
      piece = makePiece(collection, subscriber);
      this.#pieces.set(key, piece);
    }
    return piece;
  }

  #beatSoon(): void {
    this.#beatTimer.within(BEAT_CHECK_MS);
  }

  #beat(subscriber: SubscriberState, now: number): void {
    if (now - subscriber.openedAt >= MAX_AGE_MS) this.#end(subscriber, 'login-expired');
    else if (!subscriber.isWriting && now - subscriber.wroteAt >= BEAT_MS - BEAT_CHECK_MS) {
      subscriber.isWriting = true;
      subscriber.wroteAt = now;
      const collection = this.#collection;
      subscriber.sink.write(BEAT, () => {
        subscriber.isWriting = false;
        if (collection !== null) this.#writeNext(subscriber, collection);
      });
    }
  }
}

interface SubscriberState {
  user: User;
  readonly filter: EventFilter;
  readonly viewKey: string;
  /** Prefix of its event ids, shared by all subscribers with the same view. */
  readonly idPrefix: string;
  readonly sink: EventSink;
  /** Version of the journal up to which it has everything that it wants. */
  version: number;
  /** Whether it is being sent everything, not only changes. */
  isFull: boolean;
  hasStarted: boolean;
  /** Whether it was notified that it has everything. */
  isComplete: boolean;
  isWriting: boolean;
  readonly openedAt: number;
  wroteAt: number;
}

/** The events behind one version for one view, up to the published version. */
interface Piece {
  /** Null: none of them is wanted. */
  readonly bytes: Buffer | null;
  readonly version: number;
}

function makePiece(
  collection: EventCollection,
  { version: after, user: viewer, filter, idPrefix }: SubscriberState,
): Piece {
  const byKind = new Map<string, string[]>();
  let version = collection.published;
  let length = 0;
  for (const { picture, isGone, version: entryVersion } of collection.journal.between(
    after,
    collection.published,
  )) {
    if (!isWanted(picture, filter) || !picture.isFor(viewer)) continue;
    const text = isGone ? picture.goneJson(viewer) : picture.json(viewer);
    const pictures = byKind.get(picture.kind);
    if (pictures === undefined) byKind.set(picture.kind, [text]);
    else pictures.push(text);
    length += text.length;
    if (length < PIECE_BYTES) continue;
    version = entryVersion;
    break;
  }
  if (byKind.size === 0) return { bytes: null, version };
  const events = [...byKind].map(([kind, texts]) => `event: ${kind}\ndata: [${texts.join(',')}]\n`);
  // Only the last event has an id: a client that has not received it is sent the whole piece again.
  return { bytes: Buffer.from(`${events.join('\n')}id: ${idPrefix}${version}\n\n`), version };
}

function tooManySubscribers({ total, perUser }: UserLimits): QuaysideError {
  return new QuaysideError(
    'too-many-subscribers',
    `Too many clients are subscribed to events: at most ${total} on this node and ${perUser} of one user are allowed.`,
    { retryAfterMs: 5_000 },
  );
}
