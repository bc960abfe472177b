import type { Delivery as RheaDelivery, Sender } from 'rhea';
import type { Namespace } from '../broker/namespace.ts';
import { needs } from '../broker/needs.ts';
import { FINISH, type Queue, type SettleAction } from '../broker/queue.ts';
import type { Delivery } from '../model/element.ts';
import { LIMITS } from '../model/limits.ts';
import type { Outstanding, WriteObserver } from '../session/outstanding.ts';
import { type ConsumerOptions, PushConsumer } from '../session/push-consumer.ts';
import { bytesOfText } from '../util/byte-text.ts';
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

/** The consumer of a link by which a client receives. An element is known by its delivery's id. */
class LinkConsumer extends PushConsumer<number> {
  readonly #link: OutgoingLink;
  readonly #sender: Sender;

  constructor(link: OutgoingLink, sender: Sender, host: LinkHost, options: ConsumerOptions) {
    super(host, options);
    this.#link = link;
    this.#sender = sender;
  }

  override get free(): number {
    return sendable(this.#sender);
  }

  /** All credit is used: the client may have no more to give before that. */
  protected override get minTake(): number {
    return 1;
  }

  protected override send(delivery: Delivery): number {
    return this.#link.send(delivery);
  }

  protected override onEnded(reason: unknown): void {
    this.#link.fail(reason);
  }

  /** What the client gives an outcome is not outstanding any more. Undefined if it has given one before. */
  take(id: number): Outstanding<number> | undefined {
    const one = this.outstanding.get(id);
    if (one !== undefined) this.settle([one]);
    return one;
  }

  observe(id: number, delivery: Delivery): WriteObserver {
    return this.track(id, delivery);
  }
}

/**
 * A link by which a client receives: a consumer of the queue that its source names, with its credit for the
 * window. Settled, it pops; else it reserves, and the client's outcomes settle.
 */
export class OutgoingLink extends Link {
  readonly #sender: Sender;
  readonly #source: SourceRequest;
  readonly #namespace: Namespace;
  readonly #queue: Queue;
  readonly #publicGroup: string | null;
  readonly #consumer: LinkConsumer;
  #tags = 0;
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
    const { group, leaseMs } = source;
    this.#consumer = new LinkConsumer(this, sender, host, { namespace, queue, group, isPop, leaseMs });
    this.#publicGroup = namespace.isStream ? bytesOfText(this.#consumer.group) : null;
    mendSender(sender);
    setSettling(sender, isPop);
    answerSource(sender, source);
    this.#listen();
  }

  override checkRight(): void {
    this.host.destinations.find(this.#source.address, 'read');
  }

  override fill(): void {
    if (this.isOver) return;
    if (this.#isDrained) this.#tellDrained();
    else if (this.#isDraining) this.#consumer.drain(() => this.#tellDrained());
    else this.#consumer.fill();
  }

  send(delivery: Delivery): number {
    // Another link of the session may have filled what they share, since this one joined the wait queue.
    if (!hasRoom(this.#sender)) {
      this.#queue.returnUndelivered(delivery);
      return delivery.body.byteLength;
    }
    const bytes = messageOf(delivery, this.#publicGroup);
    const carried = new Carried();
    const sent = sendBytes(this.#sender, bytes, this.#nextTag(), () => carried.lost());
    carried.ride(sent, this.#consumer.observe(sent.id, delivery));
    this.host.guard.carry(channelOf(this.#sender), sent.id, carried);
    return bytes.length;
  }

  /** The engine has settled what the client gave an outcome. */
  settled(delivery: RheaDelivery): void {
    if (!delivery.remote_settled && !this.isOver) settleAloud(delivery);
  }

  protected override letGo(countSeen: boolean): void {
    void this.#consumer.stop(countSeen);
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
    if (credit > this.#consumer.window) this.#consumer.setWindow(credit);
    this.#consumer.endDrain();
    // The client took credit back: what comes for it now would be too much.
    if (this.#consumer.asked > this.#consumer.free) this.#consumer.leave();
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
    this.host.settling.add(this.#queue, [one], action, ticket);
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
    const one = delivery === undefined ? undefined : this.#consumer.take(delivery.id);
    if (delivery === undefined || one === undefined) return null;
    this.host.planTurn();
    return { one, ticket: { link: this, delivery } };
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
  readonly one: Outstanding<number>;
  readonly ticket: { readonly link: OutgoingLink; readonly delivery: RheaDelivery };
}

/** How long a rejected element stays away, ms (decisions, "AMQP 1.0"). */
export function delayAfter(tries: number): number {
  const { c2, c1, c0 } = REJECT_DELAY;
  return Math.min(LIMITS.delayMs, (tries * tries * c2 + tries * c1 + c0) * 1000);
}
