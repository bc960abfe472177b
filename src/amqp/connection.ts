import type { Socket } from 'node:net';
import type { Connection, EventContext, link as RheaLink, Session } from 'rhea';
import { loginLost, type RenewUser, type User } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { ConsumerOrigin } from '../broker/consumer.ts';
import { QuaysideError } from '../model/errors.ts';
import type { SessionCounts } from '../session/counts.ts';
import { Destinations } from '../session/destinations.ts';
import { InsertBatcher, type InsertHost } from '../session/insert-batcher.ts';
import { PendingWork } from '../session/pending-work.ts';
import type { PushConsumer } from '../session/push-consumer.ts';
import type { Arrival, ServedSession } from '../session/server.ts';
import { SettleBatcher, type SettleHost } from '../session/settle-batcher.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import { parseAddress } from './address.ts';
import { wireError } from './errors.ts';
import { Guard, type GuardOwner } from './guard/guard.ts';
import { AMQP_LIMITS } from './guard/limits.ts';
import type { Refusal } from './guard/refusal.ts';
import { IncomingLink } from './incoming-link.ts';
import { LINK_LIMITS } from './limits.ts';
import { type Link, type LinkHost, refuseAttach } from './link.ts';
import type { AmqpParts } from './options.ts';
import { OutgoingLink } from './outgoing-link.ts';
import { acceptConnection, mendSession } from './rhea.ts';
import type { HeldTicket, SentTicket } from './tickets.ts';

/** How long the end of a connection waits for what the engine was asked for before. */
const FINISH_MS = 2_000;
/** How long a client has to answer a `close`, before the connection is cut. */
const LINGER_MS = 2_000;

const ignore = (): void => {};

type State = 'new' | 'open' | 'finishing' | 'gone';

/**
 * One client: its links, and what the engine was asked for on its behalf. The guard stands before it, rhea knows
 * the protocol, this knows the broker.
 *
 * States, and who moves it:
 * - `new`: the guard has not said who it is. Left by `loggedIn`, or by the end.
 * - `open`: links come and go. Left by `end` and `gone`, and when the client closes.
 * - `finishing`: links are over, what the client held goes back. What the engine was asked for before is waited for
 *   and answered; then comes the `close`.
 * - `gone`: the connection is lost or closed. Reached from every state, and final.
 */
export class AmqpConnection
  implements ServedSession, GuardOwner, LinkHost, InsertHost<SentTicket>, SettleHost<HeldTicket>
{
  /** Resolves when the connection is closed and the engine has answered all that it asked for. */
  readonly done: Promise<void>;
  /** Names it in the log. */
  readonly id: string;
  readonly counts: SessionCounts;
  readonly guard: Guard;
  readonly origin: ConsumerOrigin;
  readonly consumers = new Set<PushConsumer>();
  readonly work: PendingWork;
  readonly storing: InsertBatcher<SentTicket>;
  readonly settling: SettleBatcher<HeldTicket>;
  readonly #parts: AmqpParts;
  readonly #over = Promise.withResolvers<void>();
  readonly #links = new Set<Link>();
  /** Sessions whose links may have room for more. */
  readonly #withRoom = new Set<Session>();
  #state: State = 'new';
  #user: User | null = null;
  #destinations: Destinations | null = null;
  #rhea: Connection | null = null;
  #isTurnPlanned = false;
  #cancelDeadline: CancelTimer | null = null;

  constructor(parts: AmqpParts, socket: Socket, { id, address, counts }: Arrival) {
    this.done = this.#over.promise;
    this.id = id;
    this.counts = counts;
    this.#parts = parts;
    this.origin = { protocol: 'amqp', address };
    const { clock, authenticator, options } = parts;
    this.guard = new Guard(
      socket,
      {
        clock,
        authenticator,
        address,
        counts,
        containerId: this.#containerId,
        messageBytes: options.bodyLimit + LINK_LIMITS.sectionBytes,
        loginTimeoutMs: options.loginTimeoutMs,
        idleTimeoutMs: options.idleTimeoutMs,
        stallTimeoutMs: options.stallTimeoutMs,
      },
      this,
    );
    this.work = new PendingWork(() => this.guard.hold(this.work.isFull));
    this.storing = new InsertBatcher(this);
    this.settling = new SettleBatcher(this);
  }

  get broker(): Broker {
    return this.#parts.broker;
  }

  get clock(): Clock {
    return this.#parts.clock;
  }

  get bodyLimit(): number {
    return this.#parts.options.bodyLimit;
  }

  get capacity(): number {
    return this.guard.room;
  }

  get owner(): string {
    return this.#user?.name ?? '';
  }

  get destinations(): Destinations {
    if (this.#destinations === null) throw new Error('A connection without a user has no destinations.');
    return this.#destinations;
  }

  loggedIn(user: User): void {
    this.#state = 'open';
    this.#user = user;
    this.#destinations = new Destinations(this.broker, user, parseAddress);
    this.counts.sessions += 1;
    const rhea = acceptConnection(this.guard.stream, {
      containerId: this.#containerId,
      version: this.#parts.version,
      frameBytes: AMQP_LIMITS.frameBytes,
      channelMax: AMQP_LIMITS.channelMax,
      idleTimeoutMs: this.#parts.options.idleTimeoutMs,
      unsettled: AMQP_LIMITS.unsettled,
    });
    this.#rhea = rhea;
    this.#listen(rhea);
  }

  onRoom(): void {
    for (const link of this.#links) link.fill();
  }

  refused(reason: Refusal): void {
    const { log } = this.#parts;
    const fields = { connection: this.id, address: this.guard.address, ...reason };
    if (reason.err === undefined) log.info(fields, 'an AMQP connection was ended');
    else log.error(fields, 'an AMQP connection failed');
  }

  gone(): void {
    if (this.#state === 'gone') return;
    if (this.#user !== null) this.counts.sessions -= 1;
    this.#endTurn();
    this.#letGo(true);
    this.#state = 'gone';
    this.#cancelDeadline?.();
    this.work.whenIdle(() => this.#over.resolve());
  }

  /** Tells the client why, after what it asked for before, and closes. Harmless where it ends already. */
  end(reason: QuaysideError): void {
    if (this.#state === 'finishing' || this.#state === 'gone') return;
    if (this.#rhea === null) {
      const { condition, description } = wireError(reason);
      this.guard.close({ condition, description });
      return;
    }
    this.#endTurn();
    this.#state = 'finishing';
    // A node that stops is no failure of the client's.
    const isOurs = reason.code === 'shutting-down';
    if (!isOurs) this.counts.errors += 1;
    this.#letGo(!isOurs);
    let isSaid = false;
    const sayLast = (): void => {
      if (isSaid || this.#state === 'gone') return;
      isSaid = true;
      this.#cancelDeadline?.();
      this.#cancelDeadline = this.clock.after(LINGER_MS, () => this.guard.destroy());
      this.#rhea?.close(wireError(reason));
    };
    this.#cancelDeadline = this.clock.after(FINISH_MS, sayLast);
    this.work.whenIdle(sayLast);
  }

  /** Users were read anew: links go on as who their client is now, or end. */
  renewUser(renew: RenewUser): void {
    if (this.#state !== 'open' || this.#user === null) return;
    const user = renew(this.#user);
    if (user === null) {
      this.end(loginLost());
      return;
    }
    this.#user = user;
    this.#destinations = new Destinations(this.broker, user, parseAddress);
    for (const link of [...this.#links]) {
      try {
        link.checkRight();
      } catch (error) {
        link.fail(error);
      }
    }
  }

  inserted(tickets: readonly SentTicket[]): void {
    for (const { link, delivery } of tickets) link.accepted(delivery);
  }

  notInserted(tickets: readonly SentTicket[], error: unknown): void {
    for (const { link, delivery } of tickets) link.refused(delivery, error);
  }

  settled(ticket: HeldTicket | null): void {
    if (ticket !== null) ticket.link.settled(ticket.delivery);
  }

  notSettled(tickets: readonly (HeldTicket | null)[], error: unknown): void {
    for (const ticket of tickets) ticket?.link.fail(error);
  }

  planTurn(): void {
    if (this.#isTurnPlanned) return;
    this.#isTurnPlanned = true;
    process.nextTick(() => this.#endTurn());
  }

  roomIn(session: Session): void {
    this.#withRoom.add(session);
    this.planTurn();
  }

  over(link: Link): void {
    this.#links.delete(link);
  }

  heard(listener: (context: EventContext) => void): (context: EventContext) => void {
    return (context) => {
      try {
        listener(context);
      } catch (error) {
        this.#fault(error);
      }
    };
  }

  warn(error: unknown, message: string): void {
    this.#parts.log.warn({ err: error, connection: this.id }, message);
  }

  shown(thrown: unknown): QuaysideError {
    const { log } = this.#parts;
    if (!(thrown instanceof QuaysideError)) {
      log.error({ err: thrown, connection: this.id }, 'an AMQP link failed');
      return new QuaysideError(
        'internal',
        `The server failed; its log says why, under connection ${this.id}.`,
      );
    }
    if (thrown.code === 'forbidden') {
      const fields = { event: 'forbidden', user: this.owner, connection: this.id, detail: thrown.message };
      log.warn(fields, 'a link or message without the right was refused');
    }
    return thrown;
  }

  /** As `open` and the log have it. */
  get #containerId(): string {
    return `quayside-${this.id}`;
  }

  #listen(rhea: Connection): void {
    const on = (event: string, listener: (context: EventContext) => void): void => {
      rhea.on(event, this.heard(listener));
    };
    on('session_open', ({ session }) => {
      if (session !== undefined) mendSession(session, () => this.roomIn(session));
    });
    on('receiver_open', ({ receiver }) => this.#attach(receiver, IncomingLink));
    on('sender_open', ({ sender }) => this.#attach(sender, OutgoingLink));
    for (const event of ['session_close', 'session_error']) {
      on(event, ({ session }) => {
        for (const link of [...this.#links]) if (link.session === session) link.stop(true);
      });
    }
    for (const event of ['connection_close', 'connection_error']) on(event, () => this.#letGo(true));
    // Links that were refused, and the end of the stream: nothing is left to do.
    for (const event of [
      'receiver_close',
      'receiver_error',
      'sender_close',
      'sender_error',
      'disconnected',
    ]) {
      rhea.on(event, ignore);
    }
    for (const event of ['error', 'protocol_error']) {
      rhea.on(event, (error: unknown) => this.#fault(error));
    }
  }

  #attach<Rhea extends RheaLink>(
    rheaLink: Rhea | undefined,
    Kind: new (host: LinkHost, rheaLink: Rhea) => Link,
  ): void {
    if (rheaLink === undefined) return;
    try {
      if (this.#state !== 'open') throw new QuaysideError('shutting-down', 'This connection is ending.');
      if (this.#links.size >= LINK_LIMITS.links) {
        throw new QuaysideError(
          'overloaded',
          `This connection has ${LINK_LIMITS.links} links, the most that are allowed.`,
        );
      }
      this.#links.add(new Kind(this, rheaLink));
    } catch (error) {
      refuseAttach(rheaLink, error, this);
    }
  }

  /** What this turn of the event loop brought is asked of the engine together. */
  #endTurn(): void {
    this.#isTurnPlanned = false;
    this.storing.flush();
    this.settling.flush();
    this.#fill();
    this.guard.hold(this.work.isFull);
  }

  #fill(): void {
    if (this.#withRoom.size === 0) return;
    const sessions = new Set(this.#withRoom);
    this.#withRoom.clear();
    for (const link of this.#links) if (sessions.has(link.session)) link.fill();
  }

  #letGo(countSeen: boolean): void {
    for (const link of [...this.#links]) link.stop(countSeen);
  }

  #fault(error: unknown): void {
    this.#parts.log.error({ err: error, connection: this.id }, 'an AMQP connection failed');
    const description = `The server failed; its log says why, under connection ${this.id}.`;
    this.guard.close({ condition: 'amqp:internal-error', description });
  }
}
