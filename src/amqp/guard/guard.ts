import type { Socket } from 'node:net';
import type { Authenticator, User } from '../../access/user.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import type { SessionCounts } from '../../session/counts.ts';
import type { Cargo } from '../../session/handout.ts';
import { FrameCutter } from './cutter.ts';
import { farewell, type Phase } from './farewell.ts';
import { AMQP_HEADER, SASL_HEADER } from './frames.ts';
import { Inbound, VERDICT } from './inbound.ts';
import { AMQP_LIMITS } from './limits.ts';
import { Outbound } from './outbound.ts';
import { Outbox } from './outbox.ts';
import { Breach, framingError, limitExceeded, type Refusal } from './refusal.ts';
import { RheaStream } from './rhea-stream.ts';
import { Run } from './run.ts';
import { MECHANISMS, OUTCOME, outcomeFrame } from './sasl.ts';
import { SaslLogin } from './sasl-login.ts';
import { ConnectionState } from './state.ts';

/** Why nothing is read from the peer now. Each is one bit. */
const HOLDS = { login: 1, owner: 2, output: 4, turn: 8 } as const;

/** A peer that does not take its answers is not listened to while this much waits for it. */
const MOST_OUTPUT_BYTES = 1024 * 1024;
/**
 * Others have their turn when this much was asked for: 2,000 frames, or the settling of 16,000 deliveries. A peer may
 * say so in a few hundred bytes, and one turn of the event loop may bring two megabytes of it.
 */
const MOST_EFFORT = 16_384;
/** How long a peer has to read the last frame and close, before the connection is cut. */
const LINGER_MS = 2_000;

const TOO_LATE = limitExceeded('The peer has not logged in and opened in time.');
const FAULT: Refusal = { condition: 'amqp:internal-error', description: 'The server failed.' };
const NO_SASL = framingError('The connection does not begin with the SASL header of AMQP 1.0.');
const NO_AMQP = framingError('No AMQP 1.0 header follows the login.');

export interface GuardOptions {
  readonly clock: Clock;
  readonly authenticator: Authenticator;
  /** `receivedBytes`, `frames`, `outgoingBytes`, `stalled` and `errors` are counted here. */
  readonly counts: SessionCounts;
  /** `container-id` of the `open` that comes before a `close` where rhea has not opened yet. */
  readonly containerId: string;
  /** The largest encoded message: the largest body, and room for the sections around it. */
  readonly messageBytes: number;
  /** From the connection to the end of the SASL exchange. */
  readonly loginTimeoutMs: number;
  /** How long a peer may take none of the bytes that wait for it. */
  readonly stallTimeoutMs: number;
}

export type { Refusal };

/** What an owner uses of a guard. */
export type GuardFace = Pick<
  Guard,
  'stream' | 'address' | 'bytes' | 'room' | 'carry' | 'hold' | 'close' | 'destroy'
>;

/** Hears from the guard. Neither `refused` nor `gone` is called from inside a call to the guard. */
export interface GuardOwner {
  /**
   * SASL is done. The owner makes rhea's connection here and lets it `accept(guard.stream)`, with `disable_sasl`;
   * everything from the AMQP header on follows there, checked.
   */
  loggedIn(user: User): void;
  /** There is room in the outbox again, or more than before. */
  onRoom(): void;
  /** The guard ended the connection for this reason; `gone` follows. For the log: the peer was told. */
  refused(reason: Refusal): void;
  /**
   * The connection is over. Every cargo has heard its fate, rhea has seen the end of its stream (its event
   * `disconnected`). Comes once, always, and last.
   */
  gone(): void;
}

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
  readonly #cutter = new FrameCutter(AMQP_LIMITS.loginBytes);
  readonly #inbound: Inbound;
  readonly #outbound = new Outbound(this.#state);
  readonly #outbox: Outbox;
  readonly #login: SaslLogin;
  readonly #run = new Run((bytes) => this.stream.emit('data', bytes));
  #phase: Phase = 'sasl-header';
  #loginBytes = 0;
  #holds = 0;
  #isAdvancing = false;
  #hasPeerEnded = false;
  #isRheaOver = false;
  #isGone = false;
  #isTimed = false;
  #cancelTimer: CancelTimer = () => {};

  constructor(socket: Socket, options: GuardOptions, owner: GuardOwner) {
    const { clock, counts, stallTimeoutMs, authenticator, messageBytes, loginTimeoutMs } = options;
    this.#socket = socket;
    this.#options = options;
    this.#owner = owner;
    this.address = socket.remoteAddress ?? '';
    this.#inbound = new Inbound(this.#state, messageBytes);
    this.#outbox = new Outbox(socket, {
      clock,
      counts,
      stallTimeoutMs,
      onRoom: () => this.#onRoom(),
      onStall: () => socket.destroy(),
    });
    this.#login = new SaslLogin(authenticator, this.address, (frame) => this.#outbox.add(frame, null));
    this.stream = new RheaStream({
      write: (bytes) => this.#write(bytes),
      end: () => this.#finish(),
      destroy: () => socket.destroy(),
    });
    this.#startTimer(loginTimeoutMs, () => this.close(TOO_LATE));
    this.#listen();
  }

  /** Bytes that wait for the peer. */
  get bytes(): number {
    return this.#outbox.bytes;
  }

  /** Bytes that may be handed out now: none while the peer is behind. */
  get room(): number {
    return this.#outbox.room;
  }

  /**
   * Names who rides on a delivery that rhea will send: `channel` is the session's `local.channel`,
   * `deliveryId` the `id` of what `sender.send` answered. To be called in the same turn as `send`. The cargo
   * hears `written` when the kernel has the last byte of the delivery; `lost` when it cannot get it any more.
   * Where the connection was cut in the middle of a write, deliveries in it but the last may hear nothing.
   */
  carry(channel: number, deliveryId: number, cargo: Cargo): void {
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
    if (this.#phase === 'over') return;
    const phase = this.#phase;
    this.#deafen();
    this.#options.counts.errors += 1;
    // What rhea has to say to the frames before, it says in this turn.
    setImmediate(() => this.#refuse(phase, reason));
  }

  /** Cuts the connection. */
  destroy(): void {
    this.#socket.destroy();
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
    this.#options.counts.receivedBytes += bytes.length;
    if (this.#phase === 'over') return;
    if (this.#phase !== 'frames' && this.#phase !== 'amqp-header') {
      this.#loginBytes += bytes.length;
      if (this.#loginBytes > AMQP_LIMITS.loginBytes) {
        this.close(limitExceeded(`Before the login at most ${AMQP_LIMITS.loginBytes} bytes are read.`));
        return;
      }
    }
    this.#cutter.push(bytes);
    this.#advance();
  }

  /** Goes on with what has come, unless there is a reason to wait. */
  #advance(): void {
    if (this.#isAdvancing) return;
    this.#isAdvancing = true;
    try {
      while (this.#step());
    } catch (error) {
      this.close(error instanceof Breach ? error : FAULT);
    }
    this.#isAdvancing = false;
    if (this.#phase === 'over') return;
    this.#setHold(HOLDS.output, this.#outbox.bytes > MOST_OUTPUT_BYTES);
    if (this.#hasPeerEnded && this.#holds === 0) this.#finish();
  }

  /** Answers false where there is nothing to do before more has come. */
  #step(): boolean {
    if (this.#holds !== 0) return false;
    switch (this.#phase) {
      case 'sasl-header':
        return this.#saslHeader();
      case 'sasl':
        return this.#saslFrame();
      case 'amqp-header':
        return this.#amqpHeader();
      case 'frames':
        this.#frames();
        return false;
      case 'over':
        return false;
    }
  }

  #saslHeader(): boolean {
    const header = this.#cutter.raw(SASL_HEADER.length);
    if (header === null) return false;
    if (!header.equals(SASL_HEADER)) throw NO_SASL;
    this.#outbox.add(SASL_HEADER, null);
    this.#outbox.add(MECHANISMS, null);
    this.#phase = 'sasl';
    return true;
  }

  #saslFrame(): boolean {
    const cutter = this.#cutter;
    if (!cutter.next()) return false;
    const checked = this.#login.take(cutter.bytes, cutter.start, cutter.end);
    if (checked === null) return true;
    // The peer has said what it had to; what takes time now is ours.
    this.#stopTimer();
    this.#setHold(HOLDS.login, true);
    checked
      .then((user) => this.#loggedIn(user))
      .catch((error) => this.close(error instanceof Breach ? error : FAULT));
    return false;
  }

  #loggedIn(user: User): void {
    if (this.#phase !== 'sasl') return;
    this.#startTimer(this.#options.loginTimeoutMs, () => this.close(TOO_LATE));
    this.#outbox.add(outcomeFrame(OUTCOME.ok), null);
    this.#phase = 'amqp-header';
    this.#cutter.mostBytes = AMQP_LIMITS.frameBytes;
    this.#owner.loggedIn(user);
    this.#setHold(HOLDS.login, false);
  }

  #amqpHeader(): boolean {
    const header = this.#cutter.raw(AMQP_HEADER.length);
    if (header === null) return false;
    if (!header.equals(AMQP_HEADER)) throw NO_AMQP;
    this.#phase = 'frames';
    this.stream.emit('data', header);
    return true;
  }

  /** Hands over what has come whole. */
  #frames(): void {
    const cutter = this.#cutter;
    const { counts } = this.#options;
    try {
      while (this.#holds === 0 && this.#phase === 'frames' && cutter.next()) {
        counts.frames += 1;
        this.#frame(cutter.bytes, cutter.start, cutter.end);
        if (this.#inbound.effort > MOST_EFFORT) this.#waitATurn();
      }
    } finally {
      // Also what came before a frame that breaks a rule.
      this.#run.flush();
      this.#inbound.leave();
    }
    if (this.#isTimed && this.#state.isPeerOpen) this.#stopTimer();
  }

  #frame(bytes: Buffer, start: number, end: number): void {
    switch (this.#inbound.check(bytes, start, end)) {
      case VERDICT.pass:
        this.#run.add(bytes, start, end);
        break;
      case VERDICT.replace: {
        const { replacement } = this.#inbound;
        this.#run.add(replacement, 0, replacement.length);
        break;
      }
      case VERDICT.passAndWait:
        this.#run.add(bytes, start, end);
        this.#waitATurn();
        break;
      case VERDICT.drop:
        break;
    }
  }

  #waitATurn(): void {
    this.#inbound.effort = 0;
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
    if (this.#phase === 'over') return;
    this.#setHold(HOLDS.output, this.#outbox.bytes > MOST_OUTPUT_BYTES);
    this.#owner.onRoom();
  }

  #setHold(hold: number, isHeld: boolean): void {
    const before = this.#holds;
    this.#holds = isHeld ? before | hold : before & ~hold;
    if (before === this.#holds || this.#phase === 'over') return;
    if (before === 0) this.#socket.pause();
    if (this.#holds !== 0) return;
    this.#socket.resume();
    this.#advance();
  }

  /** From now on nothing that comes is read. */
  #deafen(): void {
    this.#phase = 'over';
    this.#stopTimer();
    // What still comes is thrown away, so that the end of the stream is seen.
    this.#socket.resume();
  }

  #refuse(phase: Phase, reason: Refusal): void {
    if (this.#isGone) return;
    const { condition, description } = reason;
    this.#owner.refused({ condition, description });
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
    if (this.#phase === 'over') return;
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
    this.#startTimer(LINGER_MS, () => this.#socket.destroy());
  }

  #startTimer(ms: number, run: () => void): void {
    this.#isTimed = true;
    this.#cancelTimer = this.#options.clock.after(ms, run);
  }

  #stopTimer(): void {
    this.#isTimed = false;
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
    this.#phase = 'over';
    this.#stopTimer();
    this.#outbox.abandon();
    this.#endRhea();
    this.#owner.gone();
  }
}
