import { loginLost, type RenewUser, type User } from '../access/user.ts';
import type { ConsumerOrigin } from '../broker/consumer.ts';
import type { Queue } from '../broker/queue.ts';
import { QuaysideError } from '../model/errors.ts';
import type { SessionCounts } from '../session/counts.ts';
import { Destinations } from '../session/destinations.ts';
import type { Held } from '../session/handout.ts';
import { authenticate } from '../session/login.ts';
import { releaseHeld } from '../session/release-held.ts';
import { Settling, type SettlingHost } from '../session/settling.ts';
import { Storing, type StoringHost } from '../session/storing.ts';
import { Work } from '../session/work.ts';
import type { CancelTimer } from '../util/clock.ts';
import { quoteBytes } from '../util/quote.ts';
import { type Frame, headerOf } from './codec/frame.ts';
import { malformed } from './codec/malformed.ts';
import { frameText } from './codec/serialise.ts';
import { CONNECT_RULES, type HeadRules, RULES, VERSIONS, type Version } from './codec/version.ts';
import { commandOf, commandsOf } from './commands/table.ts';
import { parseDestination } from './destination.ts';
import { type ErrorSubject, errorFrame } from './errors.ts';
import { type ConnectRequest, readConnect } from './login.ts';
import type { StompParts } from './options.ts';
import type { Outbox } from './outbox.ts';
import type { Subscription, SubscriptionHost } from './subscription.ts';
import { Subscriptions } from './subscriptions.ts';
import type { Transaction } from './transaction.ts';
import { Transactions } from './transactions.ts';

/** The connection as its session sees it. */
export interface Peer {
  readonly address: string;
  readonly outbox: Outbox;
  /** The client proved who it is: from now on it may send more, and frames are read by these rules. */
  loggedIn(rules: HeadRules, beats: { sendMs: number; hearMs: number }): void;
  /** No frame is handed over until the login under way has ended. */
  holdFrames(isHeld: boolean): void;
  /** Something that the engine was asked for has ended. */
  workChanged(): void;
  /** Nothing of what the client sends matters any more. */
  deafen(): void;
  /** Closes the connection once everything is written, or after a while. */
  close(): void;
}

/** How long the end of a session waits for what the engine was asked for before. */
const FINISH_MS = 2_000;

type State = 'new' | 'joining' | 'open' | 'finishing' | 'gone';

/**
 * One client, from its first frame to its last.
 *
 * States, and who moves it:
 * - `new`: nobody knows who it is. Only CONNECT or STOMP may come. Left by that frame, or by an error.
 * - `joining`: its login is being checked, and no frame is handed over. Left by the outcome.
 * - `open`: every command may come. Left by DISCONNECT, an error, the client's end of sending, or the server's stop.
 * - `finishing`: subscriptions are over, transactions aborted, what the client held goes back. What the engine was
 *   asked for before is waited for, and its receipts are sent; then comes the last frame (RECEIPT of
 *   DISCONNECT, or ERROR) and the connection closes. Frames that come are not looked at.
 * - `gone`: the connection is lost or closed. Reached from every state, and final.
 */
export class Session implements SubscriptionHost, StoringHost<string>, SettlingHost<string> {
  readonly parts: StompParts;
  readonly counts: SessionCounts;
  readonly outbox: Outbox;
  readonly work: Work;
  readonly storing: Storing<string>;
  readonly settling: Settling<string>;
  readonly subscriptions: Subscriptions;
  readonly transactions: Transactions;
  readonly #id: string;
  readonly from: ConsumerOrigin;
  readonly #peer: Peer;
  #state: State = 'new';
  #version: Version = '1.0';
  #user: User | null = null;
  #destinations: Destinations | null = null;
  #sayLast: (() => void) | null = null;
  #cancelDeadline: CancelTimer | null = null;

  constructor(parts: StompParts, counts: SessionCounts, id: string, peer: Peer) {
    this.parts = parts;
    this.counts = counts;
    this.outbox = peer.outbox;
    this.work = new Work(() => peer.workChanged());
    this.storing = new Storing(this);
    this.settling = new Settling(this);
    this.subscriptions = new Subscriptions(this);
    this.transactions = new Transactions(parts.options.bodyLimit);
    this.#id = id;
    this.#peer = peer;
    this.from = { protocol: 'stomp', address: peer.address };
  }

  get version(): Version {
    return this.#version;
  }

  get rules(): HeadRules {
    return this.#user === null ? CONNECT_RULES : RULES[this.#version];
  }

  get acksByHeader(): boolean {
    return this.#version === '1.2';
  }

  get clock(): StompParts['clock'] {
    return this.parts.clock;
  }

  get owner(): string {
    return this.#user?.name ?? '';
  }

  get destinations(): Destinations {
    if (this.#destinations === null) throw new Error('A session without a user has no destinations.');
    return this.#destinations;
  }

  /** Takes one frame. What is wrong with it is answered; nothing is thrown. */
  handle(frame: Frame): void {
    this.counts.frames += 1;
    try {
      switch (this.#state) {
        case 'new':
          this.#connect(frame);
          return;
        case 'open':
          this.#perform(frame);
          return;
        default:
      }
    } catch (error) {
      this.fail(error, headerOf(frame.headers, 'receipt'));
    }
  }

  /** The frames that came together have been handed over: asks the engine for all that they want. */
  endTurn(): void {
    this.storing.flush();
    this.settling.flush();
    this.subscriptions.endTurn();
  }

  /** The way out has room again. */
  onRoom(): void {
    if (this.#state === 'open') this.subscriptions.fillAll();
  }

  receipt(id: string): void {
    this.outbox.add(frameText(this.rules, 'RECEIPT', ['receipt-id', id]));
  }

  receiptIf(id: string | null): void {
    if (id !== null) this.receipt(id);
  }

  /** Once `done` is; the last frame of the session waits for it. `done` does not reject. */
  async receiptAfter(done: Promise<void>, id: string | null): Promise<void> {
    this.work.begin(1, 0);
    await done;
    this.receiptIf(id);
    this.work.end(1, 0);
  }

  stored(receipts: readonly string[]): void {
    for (const receipt of receipts) this.receipt(receipt);
  }

  notStored(receipts: readonly string[], error: unknown): void {
    this.fail(error, receipts[0] ?? null);
  }

  settled(receipt: string | null): void {
    this.receiptIf(receipt);
  }

  notSettled(receipts: readonly (string | null)[], error: unknown): void {
    this.fail(error, receipts[0] ?? null);
  }

  /** Ends the session with an ERROR. Harmless if it ends already. */
  fail(thrown: unknown, receipt: string | null, subject: ErrorSubject = {}): void {
    if (this.#state === 'finishing' || this.#state === 'gone') return;
    const error = this.#shown(thrown);
    if (error.code === 'shutting-down') {
      // A stop is no failure of the client's, and Ruby's reliable client reconnects after a plain close only.
      this.#finish(null, false);
      return;
    }
    this.counts.errors += 1;
    this.#finish(errorFrame(this.rules, error, { receipt, ...subject }), true);
  }

  /** The client has sent all that it will: what it asked for is still done. */
  peerEnded(): void {
    this.#finish(null, true);
  }

  /** DISCONNECT. */
  disconnect(receipt: string | null): void {
    this.#finish(receipt === null ? null : frameText(this.rules, 'RECEIPT', ['receipt-id', receipt]), true);
  }

  /** The connection is lost or closed. */
  gone(): void {
    if (this.#state === 'gone') return;
    if (this.#user !== null) this.counts.sessions -= 1;
    this.endTurn();
    this.#letGo(true);
    this.#state = 'gone';
    this.#sayLast = null;
    this.#cancelDeadline?.();
  }

  /** Users were reloaded: the session continues with its user's rights of now, or ends. */
  renewUser(renew: RenewUser): void {
    if (this.#state !== 'open' || this.#user === null) return;
    const user = renew(this.#user);
    if (user === null) {
      this.fail(loginLost(), null);
      return;
    }
    this.#user = user;
    this.#destinations = new Destinations(this.parts.broker, user, parseDestination);
    for (const { options } of this.subscriptions.all()) {
      try {
        this.#destinations.find(options.destination, 'read');
      } catch (error) {
        this.fail(error, null, { subscription: options.id });
        return;
      }
    }
  }

  /** COMMIT. */
  async carryOut(transaction: Transaction, receipt: string | null): Promise<void> {
    const { size, bytes } = transaction;
    this.endTurn();
    this.work.begin(size + 1, bytes);
    try {
      await transaction.commit();
      this.receiptIf(receipt);
    } catch (error) {
      // The session leaves its lines first, or it would be handed again what goes back.
      this.fail(error, receipt);
      for (const [queue, held] of transaction.left) await this.releaseHeld(queue, held, true);
    } finally {
      this.work.end(size + 1, bytes);
      this.onRoom();
    }
  }

  ended(subscription: Subscription, reason: unknown): void {
    this.fail(reason, null, { subscription: subscription.options.id });
  }

  releaseHeld(queue: Queue, held: readonly Held[], countSeen: boolean): Promise<void> {
    return releaseHeld(queue, held, countSeen, this);
  }

  warn(error: unknown, message: string): void {
    this.parts.log.warn({ err: error, session: this.#id }, message);
  }

  #connect(frame: Frame): void {
    if (frame.command !== 'CONNECT' && frame.command !== 'STOMP') {
      throw malformed(`The first frame is ${quoteBytes(frame.command)}. Allowed: CONNECT, STOMP.`);
    }
    const request = readConnect(frame);
    if (request.version === null) {
      const accepted = headerOf(frame.headers, 'accept-version') ?? '';
      const message = `No version of ${quoteBytes(accepted)} is served. Allowed: ${VERSIONS.join(', ')}.`;
      this.fail(malformed(message, 'accept-version'), null, { versions: VERSIONS });
      return;
    }
    this.#state = 'joining';
    this.#version = request.version;
    this.#peer.holdFrames(true);
    const need = 'CONNECT needs the login and passcode of a user.';
    authenticate(this.parts.authenticator, request, this.#peer.address, need)
      .then((user) => this.#open(user, request))
      .catch((error: unknown) => this.fail(error, null))
      .finally(() => this.#peer.holdFrames(false));
  }

  #open(user: User, { canSendMs, wantsMs }: ConnectRequest): void {
    if (this.#state !== 'joining') return;
    this.#state = 'open';
    this.#user = user;
    this.#destinations = new Destinations(this.parts.broker, user, parseDestination);
    this.counts.sessions += 1;
    const { sendBeatMs, wantBeatMs } = this.parts.options;
    this.outbox.add(
      frameText(CONNECT_RULES, 'CONNECTED', [
        'version',
        this.#version,
        'session',
        this.#id,
        'server',
        `Quayside/${this.parts.version}`,
        'heart-beat',
        `${sendBeatMs},${wantBeatMs}`,
      ]),
    );
    this.#peer.loggedIn(RULES[this.#version], {
      sendMs: wantsMs === 0 ? 0 : Math.max(sendBeatMs, wantsMs),
      hearMs: canSendMs === 0 || wantBeatMs === 0 ? 0 : Math.max(canSendMs, wantBeatMs),
    });
  }

  #perform(frame: Frame): void {
    const command = commandOf(frame.command, this.#version);
    if (command === null) {
      const known = commandsOf(this.#version).join(', ');
      throw malformed(
        `STOMP ${this.#version} has no command ${quoteBytes(frame.command)}. Allowed: ${known}.`,
      );
    }
    command(this, frame);
  }

  /** What the client may know of anything that was thrown. A fault of ours is logged. */
  #shown(thrown: unknown): QuaysideError {
    const { log } = this.parts;
    const session = this.#id;
    if (!(thrown instanceof QuaysideError) || thrown.code === 'internal') {
      log.error({ err: thrown, session }, 'a session failed');
      return new QuaysideError('internal', `The server failed; its log says why, under session ${session}.`);
    }
    if (thrown.code === 'forbidden') {
      log.warn(
        { event: 'forbidden', user: this.owner, session, detail: thrown.message },
        'a frame without the right was refused',
      );
    }
    return thrown;
  }

  #finish(last: string | null, countSeen: boolean): void {
    if (this.#state === 'finishing' || this.#state === 'gone') return;
    this.endTurn();
    this.#state = 'finishing';
    this.#peer.deafen();
    this.#letGo(countSeen);
    this.#cancelDeadline = this.clock.after(FINISH_MS, () => this.#sayLast?.());
    this.#sayLast = () => {
      this.#sayLast = null;
      this.#cancelDeadline?.();
      if (last !== null) this.outbox.add(last);
      this.#peer.close();
    };
    this.work.whenIdle(() => this.#sayLast?.());
  }

  #letGo(countSeen: boolean): void {
    this.subscriptions.closeAll(countSeen);
    this.transactions.dropAll();
  }
}
