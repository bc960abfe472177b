import type { Delivery as RheaDelivery, Sender } from 'rhea';
import type { ConsumerOrigin } from '../broker/consumer.ts';
import type { Namespace } from '../broker/namespace.ts';
import { needs } from '../broker/needs.ts';
import { FINISH, type Queue, type SettleAction } from '../broker/queue.ts';
import type { Delivery, GroupName } from '../model/element.ts';
import { LIMITS } from '../model/limits.ts';
import { Feed, type FeedHost } from '../session/feed.ts';
import { Held, Popped } from '../session/handout.ts';
import { LeaseKeeper } from '../session/lease-keeper.ts';
import { releaseHeld } from '../session/release-held.ts';
import { bytesOfText } from '../util/byte-text.ts';
import type { Clock } from '../util/clock.ts';
import { Carried } from './carried.ts';
import { REJECT_DELAY } from './limits.ts';
import { Link, type LinkHost } from './link.ts';
import { messageOf } from './message/to-message.ts';
import {
  channelOf,
  creditOf,
  hasRoom,
  mendSender,
  sendable,
  sendBytes,
  setSettling,
  settleAloud,
  settleSilently,
  unsent,
  writeDrained,
} from './rhea.ts';
import { answerSource, readSource, type SourceRequest } from './source.ts';

/** Elements of this settle mode are popped. */
const SETTLED = 1;

/** A reserved element that the client holds, by its delivery's id. */
class HeldDelivery extends Held<number> {
  readonly tries: number;

  constructor(key: number, delivery: Delivery, leasedAt: number) {
    super(key, delivery, leasedAt);
    this.tries = delivery.tries;
  }
}

/**
 * A link by which a client receives: a consumer of the queue that its source names, with its credit for the
 * window. Settled, it pops; else it reserves, and the client's outcomes settle.
 */
export class OutgoingLink extends Link implements FeedHost {
  readonly #sender: Sender;
  readonly #source: SourceRequest;
  readonly #namespace: Namespace;
  readonly #queue: Queue;
  readonly #leaseMs: number | null;
  readonly #shownGroup: string | null;
  readonly #feed: Feed;
  readonly #held = new Map<number, HeldDelivery>();
  readonly #leases: LeaseKeeper | null;
  #tags = 0;
  /** The most credit that the client has granted. */
  #window = 0;
  #isDraining = false;
  #isDrained = false;

  /** @throws QuaysideError what the source, or the right to read there, lacks */
  constructor(host: LinkHost, sender: Sender) {
    const source = readSource(sender);
    const isPop = sender.snd_settle_mode === SETTLED;
    const { namespace, queue } = host.destinations.find(source.address, 'read');
    if (!isPop) needs(namespace, 'reserve');
    // Refused now if the namespace has no groups, not with the first credit.
    if (source.group !== null) queue.groups([source.group]);
    super(host, sender);
    this.#sender = sender;
    this.#source = source;
    this.#namespace = namespace;
    this.#queue = queue;
    this.#leaseMs = isPop ? null : (source.leaseMs ?? namespace.leaseMs);
    this.#shownGroup = namespace.isStream ? bytesOfText(this.group) : null;
    this.#feed = new Feed({ namespace, queue, group: source.group, leaseMs: this.#leaseMs }, this);
    this.#leases =
      this.#leaseMs === null || source.leaseMs !== null
        ? null
        : new LeaseKeeper(queue, this.#leaseMs, host, this.#held);
    host.counts.subscriptions += 1;
    mendSender(sender);
    setSettling(sender, isPop);
    answerSource(sender, source);
    this.#listen();
  }

  /** The group that it reads as; on a plain queue the one without a name. */
  get group(): GroupName {
    return this.#source.group ?? this.#namespace.defaultGroup;
  }

  get clock(): Clock {
    return this.host.clock;
  }

  get owner(): string {
    return this.host.owner;
  }

  get from(): ConsumerOrigin {
    return this.host.from;
  }

  get window(): number {
    return this.#window;
  }

  get free(): number {
    return sendable(this.#sender);
  }

  /** All credit is used: the client may have no more to give before that. */
  get worthwhile(): number {
    return 1;
  }

  get room(): number {
    return this.host.guard.room;
  }

  override checkRight(): void {
    this.host.destinations.find(this.#source.address, 'read');
  }

  override fill(): void {
    if (this.isOver) return;
    if (this.#isDrained) this.#tellDrained();
    else if (this.#isDraining) this.#feed.drain(() => this.#tellDrained());
    else this.#feed.fill();
  }

  ended(reason: unknown): void {
    this.fail(reason);
  }

  handOut(delivery: Delivery): number {
    // Another link of the session may have filled what they share, since this one joined the line.
    if (!hasRoom(this.#sender)) {
      this.#queue.returnUndelivered(delivery);
      return delivery.body.byteLength;
    }
    const bytes = messageOf(delivery, this.#shownGroup);
    this.host.counts.messages += 1;
    const popped = delivery.lease === null ? new Popped(this.#queue, delivery, () => {}) : null;
    const carried = new Carried();
    const sent = sendBytes(this.#sender, bytes, this.#nextTag(), () => carried.lost());
    carried.ride(sent, popped ?? this.#hold(sent.id, delivery));
    this.host.guard.carry(channelOf(this.#sender), sent.id, carried);
    return bytes.length;
  }

  /** The engine has settled what the client gave an outcome. */
  settled(delivery: RheaDelivery): void {
    if (!delivery.remote_settled && !this.isOver) settleAloud(delivery);
  }

  protected override letGo(countSeen: boolean): void {
    const { counts } = this.host;
    counts.subscriptions -= 1;
    counts.window -= this.#window;
    this.#feed.stop();
    this.#leases?.stop();
    const held = [...this.#held.values()];
    for (const one of held) this.#release(one);
    if (held.length > 0) void releaseHeld(this.#queue, held, countSeen, this.host);
  }

  #listen(): void {
    const { host } = this;
    const sender = this.#sender;
    const over = host.heard(() => this.stop(true));
    sender.on('sender_close', over);
    sender.on('sender_error', over);
    sender.on(
      'sender_flow',
      host.heard(() => this.#flow()),
    );
    sender.on(
      'sender_draining',
      host.heard(() => {
        this.#isDraining = true;
      }),
    );
    sender.on(
      'accepted',
      host.heard(({ delivery }) => this.#accepted(delivery)),
    );
    sender.on(
      'rejected',
      host.heard(({ delivery }) => this.#rejected(delivery)),
    );
    sender.on(
      'released',
      host.heard(({ delivery }) => this.#back(delivery, false)),
    );
    sender.on(
      'modified',
      host.heard(({ delivery }) => this.#modified(delivery)),
    );
    sender.on(
      'settled',
      host.heard(({ delivery }) => this.#forgotten(delivery)),
    );
  }

  #flow(): void {
    this.#isDraining = false;
    this.#isDrained = false;
    const credit = creditOf(this.#sender);
    if (credit > this.#window) {
      this.host.counts.window += credit - this.#window;
      this.#window = credit;
    }
    this.#feed.endDrain();
    // The client took credit back: what comes for it now would be too much.
    if (this.#feed.asked > this.free) this.#feed.rest();
    this.host.roomIn(this.session);
  }

  /** Behind all that is handed out already. */
  #tellDrained(): void {
    if (this.isOver || (!this.#isDraining && !this.#isDrained)) return;
    this.#isDraining = false;
    this.#isDrained = true;
    if (unsent(this.#sender) > 0) {
      setImmediate(() => {
        if (this.#isDrained && unsent(this.#sender) === 0) this.#tellDrained();
      });
      return;
    }
    this.#isDrained = false;
    writeDrained(this.#sender);
  }

  #accepted(delivery: RheaDelivery | undefined): void {
    const held = this.#take(delivery);
    if (held !== null) this.#settle(held, FINISH);
  }

  #rejected(delivery: RheaDelivery | undefined): void {
    const held = this.#take(delivery);
    if (held === null) return;
    const reason = reasonOf((delivery?.remote_state as { error?: unknown } | undefined)?.error);
    this.#settle(held, { kind: 'release', delayMs: delayAfter(held.one.tries), countTry: true, reason });
  }

  #back(delivery: RheaDelivery | undefined, countTry: boolean): void {
    const held = this.#take(delivery);
    if (held !== null) this.#settle(held, { kind: 'release', delayMs: 0, countTry });
  }

  #modified(delivery: RheaDelivery | undefined): void {
    const { delivery_failed: failed = false, undeliverable_here: isHopeless = false } =
      (delivery?.remote_state ?? {}) as { delivery_failed?: boolean; undeliverable_here?: boolean };
    if (isHopeless !== true) {
      this.#back(delivery, failed === true);
      return;
    }
    const held = this.#take(delivery);
    if (held === null) return;
    if (this.#namespace.deadLetterQueue === null) {
      // Somebody else may do better, but not at once: it could be this one again.
      this.#settle(held, { kind: 'release', delayMs: delayAfter(held.one.tries), countTry: failed === true });
    } else {
      this.#settle(held, { kind: 'dead-letter', countTry: failed === true, reason: null });
    }
  }

  #settle({ one, ticket }: Taken, action: SettleAction): void {
    this.host.settling.settle(this.#queue, [one], action, ticket);
  }

  /** The client knows it no longer; without an outcome it was a failed try. */
  #forgotten(delivery: RheaDelivery | undefined): void {
    if (delivery === undefined) return;
    settleSilently(delivery);
    this.#back(delivery, true);
    this.host.roomIn(this.session);
  }

  /** What a client gives an outcome, it holds no longer. Null where it has given one before. */
  #take(delivery: RheaDelivery | undefined): Taken | null {
    const one = delivery === undefined ? undefined : this.#held.get(delivery.id);
    if (delivery === undefined || one === undefined) return null;
    this.#release(one);
    this.host.planTurn();
    return { one, ticket: { link: this, delivery } };
  }

  #hold(id: number, delivery: Delivery): HeldDelivery {
    const held = new HeldDelivery(id, delivery, this.clock.monotonic());
    this.#held.set(id, held);
    this.host.counts.unacknowledged += 1;
    this.#leases?.watch();
    return held;
  }

  #release({ key }: HeldDelivery): void {
    if (this.#held.delete(key)) this.host.counts.unacknowledged -= 1;
  }

  #nextTag(): Buffer {
    const tag = Buffer.allocUnsafe(4);
    tag.writeUInt32BE(this.#tags);
    this.#tags = (this.#tags + 1) % 2 ** 32;
    return tag;
  }
}

/** The error of a `rejected` outcome as the reason of a failed try; the engine cuts what is too long. */
function reasonOf(error: unknown): string | null {
  const { condition, description } = (error ?? {}) as { condition?: unknown; description?: unknown };
  const parts = [condition, description].filter((part) => typeof part === 'string' && part !== '');
  return parts.length === 0 ? null : parts.join(': ');
}

interface Taken {
  readonly one: HeldDelivery;
  readonly ticket: { readonly link: OutgoingLink; readonly delivery: RheaDelivery };
}

/** How long a rejected element stays away, ms (decisions, "AMQP 1.0"). */
export function delayAfter(tries: number): number {
  const { c2, c1, c0 } = REJECT_DELAY;
  return Math.min(LIMITS.delayMs, (tries * tries * c2 + tries * c1 + c0) * 1000);
}
