import type { Socket } from 'node:net';
import type { User } from '../../access/user.ts';
import type { WriteObserver } from '../../session/outstanding.ts';
import type { CancelTimer } from '../../util/clock.ts';
import { farewell } from './farewell.ts';
import { HEART_BEAT } from './frames.ts';
import type { GuardOptions, GuardOwner } from './guard-options.ts';
import { Intake, type IntakeHost, type Phase } from './intake.ts';
import { Outbound } from './outbound.ts';
import { Outbox } from './outbox.ts';
import { Breach, limitExceeded, type Refusal } from './refusal.ts';
import { RheaStream } from './rhea-stream.ts';
import { OUTCOME, outcomeFrame } from './sasl.ts';
import { ConnectionState } from './state.ts';

export type { GuardOptions, GuardOwner };

/** Why nothing is read from the peer now. Each is one bit. */
const HOLDS = { login: 1, owner: 2, output: 4, turn: 8 } as const;

/** A peer that does not take its answers is not listened to while this much waits for it. */
const MOST_OUTPUT_BYTES = 1024 * 1024;
/** How long a peer has to read the last frame and close, before the connection is cut. */
const LINGER_MS = 2_000;

const TOO_LATE = 'The client has not logged in and opened the connection within';
const FAULT: Refusal = {
  condition: 'amqp:internal-error',
  description: 'The server failed; its log says why.',
};

/**
 * Stands between a socket and rhea: cuts what comes into frames, and checks each before rhea sees a byte of it;
 * does SASL itself; carries away what rhea writes, with bounds.
 *
 * What rhea is spared, and its user need not fear:
 * - Frames that are out of order, too large, or whose values do not fit in them; unknown channels and handles;
 *   transfers beyond credit or window; dispositions of deliveries that never were. Each ends the connection
 *   with a `close` that names the condition.
 * - **Messages come as bytes.** `message-format` 0 is struck out of transfers, so that rhea does not decode them:
 *   in rhea's `message` event `context.message` is a `Buffer` of the encoded sections, unchecked.
 *   Other formats, `resume`, `aborted` and transactions are refused as `amqp:not-implemented`.
 * - A delivery that is larger than `messageBytes` comes cut: its buffer is longer than `messageBytes`, and no
 *   more of it is kept. Whoever gets it answers `amqp:link:message-size-exceeded`.
 * - Link names are prefixed with `s:` or `r:` towards rhea, which knows links by name only: AMQP lets a sender
 *   and a receiver have the same one. The prefix is taken off on the way out; never set `name` of an
 *   `attach`.
 * - `detach` and `end` reach rhea with a turn of the event loop behind them, so that a name or a channel may be
 *   used again at once.
 */
export class Guard {
  /** For rhea's `accept`. */
  readonly stream: RheaStream;
  /** Of the peer. */
  readonly address: string;
  readonly #socket: Socket;
  readonly #options: GuardOptions;
  readonly #owner: GuardOwner;
  readonly #state = new ConnectionState();
  readonly #intake: Intake;
  readonly #outbound = new Outbound(this.#state);
  readonly #outbox: Outbox;
  #holds = 0;
  #isAdvancing = false;
  #hasPeerEnded = false;
  #isRheaOver = false;
  #isGone = false;
  /** Whether the timer is for the login, and for what has to follow it. */
  #awaitsOpen = false;
  #cancelTimer: CancelTimer = () => {};
  /** Of the signs of life that rhea gets while the peer is not read. */
  #cancelBeat: CancelTimer = () => {};

  constructor(socket: Socket, options: GuardOptions, owner: GuardOwner) {
    const { clock, counts, stallTimeoutMs } = options;
    this.#socket = socket;
    this.#options = options;
    this.#owner = owner;
    this.address = options.address;
    this.#intake = new Intake(this.#intakeHost(), {
      ...options,
      state: this.#state,
      address: this.address,
    });
    this.#outbox = new Outbox(socket, {
      clock,
      counts,
      stallTimeoutMs,
      onCapacity: () => this.#onRoom(),
      onStall: () => socket.destroy(),
    });
    this.stream = new RheaStream({
      write: (bytes) => this.#write(bytes),
      end: () => this.#finish(),
      destroy: () => socket.destroy(),
    });
    this.#awaitOpen();
    this.#listen();
  }

  /** Bytes that wait for the peer. */
  get bytes(): number {
    return this.#outbox.bytes;
  }

  /** Bytes that may be handed out now: none while the peer is behind. */
  get room(): number {
    return this.#outbox.capacity;
  }

  /**
   * Names who rides on a delivery that rhea will send: `channel` is the session's `local.channel`,
   * `deliveryId` the `id` of what `sender.send` answered. To be called in the same turn as `send`. The cargo
   * hears `written` when the kernel has the last byte of the delivery; `lost` when it cannot get it any more.
   * Where the connection was cut in the middle of a write, deliveries in it but the last may hear nothing.
   */
  carry(channel: number, deliveryId: number, cargo: WriteObserver): void {
    if (this.#isRheaOver) cargo.lost();
    else this.#outbound.carry(channel, deliveryId, cargo);
  }

  /** Nothing is read from the peer while it is held: it has too much under way. */
  hold(isHeld: boolean): void {
    this.#setHold(HOLDS.owner, isHeld);
  }

  /**
   * Ends the connection from this side at any time: before the login with a SASL outcome, later with a `close`
   * that has this error. To end politely, close rhea's connection instead.
   */
  close(reason: Refusal): void {
    if (this.#isOver) return;
    const { phase } = this.#intake;
    this.#deafen();
    this.#options.counts.errors += 1;
    // What rhea has to say to the frames before, it says in this turn.
    setImmediate(() => this.#refuse(phase, reason));
  }

  /** Cuts the connection. */
  destroy(): void {
    this.#socket.destroy();
  }

  get #isOver(): boolean {
    return this.#intake.phase === 'over';
  }

  #intakeHost(): IntakeHost {
    const isHeld = (): boolean => this.#holds !== 0;
    return {
      get isHeld() {
        return isHeld();
      },
      send: (frame) => this.#outbox.add(frame, null),
      feed: (bytes) => this.stream.emit('data', bytes),
      login: (check) => this.#login(check),
      waitATurn: () => this.#waitATurn(),
    };
  }

  #listen(): void {
    const socket = this.#socket;
    socket.on('data', (bytes: Buffer) => this.#read(bytes));
    socket.on('end', () => {
      this.#hasPeerEnded = true;
      this.#advance();
    });
    // What went wrong does not matter: `close` follows.
    socket.on('error', () => {});
    socket.on('close', () => this.#closed());
  }

  #read(bytes: Buffer): void {
    this.#attempt(() => this.#intake.push(bytes));
    this.#advance();
  }

  /** Goes on with what has come, unless there is a reason to wait. */
  #advance(): void {
    if (this.#isAdvancing) return;
    this.#isAdvancing = true;
    this.#attempt(() => this.#intake.advance());
    this.#isAdvancing = false;
    if (this.#isOver) return;
    if (this.#awaitsOpen && this.#state.isPeerOpen) this.#stopTimer();
    this.#outputChanged();
    if (this.#hasPeerEnded && this.#holds === 0) this.#finish();
  }

  #attempt(read: () => void): void {
    try {
      read();
    } catch (error) {
      this.#failed(error);
    }
  }

  #failed(error: unknown): void {
    this.close(error instanceof Breach ? error : { ...FAULT, err: error });
  }

  #login(check: Promise<User>): void {
    // The peer has said what it had to; what takes time now is ours.
    this.#stopTimer();
    this.#setHold(HOLDS.login, true);
    check.then((user) => this.#loggedIn(user)).catch((error) => this.#failed(error));
  }

  #loggedIn(user: User): void {
    if (this.#isOver) return;
    this.#awaitOpen();
    this.#outbox.add(outcomeFrame(OUTCOME.ok), null);
    this.#intake.loggedIn();
    this.#owner.loggedIn(user);
    this.#setHold(HOLDS.login, false);
  }

  #waitATurn(): void {
    if ((this.#holds & HOLDS.turn) !== 0) return;
    this.#setHold(HOLDS.turn, true);
    setImmediate(() => this.#setHold(HOLDS.turn, false));
  }

  /** rhea wrote something. */
  #write(bytes: Buffer): void {
    if (this.#isRheaOver) return;
    const frame = this.#outbound.observe(bytes);
    this.#outbox.add(frame, this.#outbound.cargo);
    // The peer has to answer a close, once it has read that far.
    if (this.#state.isCloseSent) this.#outbox.whenEmpty(() => this.#linger());
  }

  #onRoom(): void {
    if (this.#isOver) return;
    this.#outputChanged();
    this.#owner.onRoom();
  }

  #outputChanged(): void {
    this.#setHold(HOLDS.output, this.#outbox.bytes > MOST_OUTPUT_BYTES);
  }

  #setHold(hold: number, isHeld: boolean): void {
    const before = this.#holds;
    this.#holds = isHeld ? before | hold : before & ~hold;
    if (before === this.#holds || this.#isOver) return;
    if (before === 0) {
      this.#socket.pause();
      this.#planBeat();
    }
    if (this.#holds !== 0) return;
    this.#cancelBeat();
    this.#socket.resume();
    this.#advance();
  }

  /** rhea counts how long its peer is silent. One that is not read is not to blame. */
  #planBeat(): void {
    const { clock, idleTimeoutMs } = this.#options;
    if (idleTimeoutMs === 0) return;
    this.#cancelBeat = clock.after(idleTimeoutMs / 2, () => {
      this.#planBeat();
      if (this.#state.isPeerOpen) this.stream.emit('data', HEART_BEAT);
    });
  }

  /** From now on nothing that comes is read. */
  #deafen(): void {
    this.#intake.stop();
    this.#stopTimer();
    this.#cancelBeat();
    // What still comes is thrown away, so that the end of the stream is seen.
    this.#socket.resume();
  }

  #refuse(phase: Phase, reason: Refusal): void {
    if (this.#isGone) return;
    const { condition, description } = reason;
    // A breach is told without where it was thrown: it is the peer's.
    this.#owner.refused(reason instanceof Breach ? { condition, description } : reason);
    // A peer that is behind would not get this within any time that can be told.
    if (this.#outbox.isBehind) this.#outbox.drop();
    for (const frame of farewell(phase, this.#state, reason, this.#options.containerId)) {
      this.#outbox.add(frame, null);
    }
    this.#endRhea();
    this.#linger();
    this.#outbox.whenEmpty(() => this.#socket.end());
  }

  /** The peer has said all, or rhea has: what waits is sent, then the connection closes. */
  #finish(): void {
    if (this.#isOver) return;
    this.#deafen();
    // As in `close`: rhea has this turn to answer.
    setImmediate(() => {
      if (this.#isGone) return;
      this.#endRhea();
      this.#outbox.whenEmpty(() => {
        this.#socket.end();
        this.#linger();
      });
    });
  }

  #linger(): void {
    this.#stopTimer();
    this.#cancelTimer = this.#options.clock.after(LINGER_MS, () => this.#socket.destroy());
  }

  #awaitOpen(): void {
    const { clock, loginTimeoutMs } = this.#options;
    this.#awaitsOpen = true;
    this.#cancelTimer = clock.after(loginTimeoutMs, () =>
      this.close(limitExceeded(`${TOO_LATE} ${loginTimeoutMs} ms.`)),
    );
  }

  #stopTimer(): void {
    this.#awaitsOpen = false;
    this.#cancelTimer();
  }

  #endRhea(): void {
    if (this.#isRheaOver) return;
    this.#isRheaOver = true;
    this.#outbound.abandon();
    this.stream.emit('end');
  }

  #closed(): void {
    this.#isGone = true;
    this.#intake.stop();
    this.#stopTimer();
    this.#cancelBeat();
    this.#outbox.close();
    this.#endRhea();
    this.#owner.gone();
  }
}
