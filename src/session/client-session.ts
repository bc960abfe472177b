import { checkRight, loginLost, type RenewUser, type Right, type User } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { ConsumerOrigin, SessionInfo } from '../broker/consumer.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import { ownString } from '../util/own-bytes.ts';
import { InsertBatcher, SettleBatcher } from './batchers.ts';
import type { RightHolder, SessionConsumer } from './consumer.ts';
import { PageTurns } from './queue-browser.ts';
import type { Arrival, SessionCounts, SessionParts } from './server.ts';
import type { ClientSocket, SocketWriter, WriterOptions } from './socket-writer.ts';

/** Reasons not to read from a client. Each is one bit. */
export const PAUSE = {
  /** Its login is being checked. */
  login: 1,
  /** Too much of what it asked for is pending in the engine. */
  work: 2,
  /** It does not take its responses. */
  output: 4,
  /** Other clients have their turn first. */
  turn: 8,
  /** It committed what has to be stored before anything that follows. */
  commit: 16,
} as const;

/** Bytes that are read before the login. */
export const LOGIN_BYTES = 4096;
/**
 * Reading pauses, and no element is added, while more than this waits for a client that does not take its responses:
 * one element above it, whatever the number of its consumers.
 */
const MAX_OUTPUT_BYTES = 1024 * 1024;
/**
 * A session pauses reading while this many items, or bytes, of its client are pending in the engine. An item is an
 * element that is inserted or settled, a page of a browser, or a reply that waits for others. One frame may add many: a
 * cumulative ACK settles up to 65,536 elements.
 */
const MAX_PENDING_ITEMS = 4096;
const MAX_PENDING_BYTES = 4 * 1024 * 1024;
/** Frames that are executed before other clients have their turn: one message of WebSocket may have forty thousand. */
const MAX_TURN_FRAMES = 4096;
/** How long the end of a session waits for what was asked of the engine before. */
export const FINISH_MS = 2_000;
/** How long a client has to read the last frame and close, before the connection is cut. */
const LINGER_MS = 2_000;

type State = 'new' | 'open' | 'finishing' | 'gone';

/**
 * Writes the last frame of a session.
 * @param isDone whether everything that was asked of the engine before has an outcome
 */
type WriteClose = (isDone: boolean) => void;

/**
 * One client, from its first byte to its last. Reads its frames, pauses reading while too much of it is pending in the
 * engine so that TCP slows it down, and ends it such that nothing is lost.
 *
 * States, and what moves it:
 * - `new`: the user is unknown. At most `LOGIN_BYTES` are read. Left by `login`, or an error.
 * - `open`: consumers come and go. Left by `endByClient` and `fail`, and by the end of the stream.
 * - `finishing`: consumers are stopped, and what the client held returns to its queues. What was asked of the
 *   engine before is waited for and confirmed; then comes the closing frame, and the connection closes. If some of that
 *   fails, and it was the client who ended the session, the frame is that of the error. What the client still sends is
 *   discarded.
 * - `gone`: the connection is lost or closed. Reached from every state, and final.
 *
 * A protocol implements: `writer`; `input` and `readFrame`, which take bytes and execute whole frames; `fail`, by
 * `failWith`; and the pending replies (`inserted`, `notInserted`, `settled`, `notSettled`): an `InsertReply` or
 * `SettleReply` is what the protocol needs to confirm a frame once the engine has executed it. It calls `expectWithin`
 * for the login's deadline, `login`, `startHeartBeat`, `planFill` and `endByClient`. A frame only adds to `inserts` and
 * `settles`: the engine is asked at the end of the turn.
 */
export abstract class ClientSession<InsertReply = unknown, SettleReply = unknown> {
  /** Resolves when the connection is closed and the engine has answered everything that the session asked. */
  readonly done: Promise<void>;
  /** Names the connection in the log. */
  readonly id: string;
  readonly counts: SessionCounts;
  readonly origin: ConsumerOrigin;
  protected readonly lineLimits: Arrival['lineLimits'];
  readonly #logins: Arrival['logins'];
  readonly work = new PendingWork(() => this.#workChanged());
  /** Of its consumers that browse. */
  readonly pageTurns = new PageTurns();
  readonly inserts = new InsertBatcher<InsertReply>(this);
  readonly settles = new SettleBatcher<SettleReply>(this);
  /** All that have not stopped. */
  readonly consumers = new Set<SessionConsumer>();
  abstract readonly writer: SocketWriter;
  /** Takes bytes that came. What it throws goes to `fail`. */
  abstract readonly input: { push(bytes: Buffer): void };
  protected readonly socket: ClientSocket;
  readonly #parts: SessionParts;
  readonly #parse: ParseDestination;
  readonly #closed = Promise.withResolvers<void>();
  /** Consumers with places that became free in this turn. */
  readonly #toFill = new Set<SessionConsumer>();
  #state: State = 'new';
  #user: User | null = null;
  /** As it was counted. */
  #loginName: string | null = null;
  /** Of its login, wall time. */
  #openedAt = 0;
  #destinations: Destinations | null = null;
  #pauses = 0;
  #isAdvancing = false;
  #hasPeerEnded = false;
  #loginBytes = 0;
  #heartBeat: HeartBeat | null = null;
  /** The one deadline that a session has at a time: for the login, for its end, for the client to close. */
  #cancelDeadline: CancelTimer = () => {};
  /** Nothing is waited for any more but that the client reads, and closes. */
  #isClosing = false;
  /** Of a session that is `finishing`; null: it has no closing frame. */
  #writeClose: WriteClose | null = null;
  /**
   * The client ended the session, nothing that it asked for before has failed, and the closing frame is not written.
   */
  #isClientEnding = false;

  /** @param parse reads the destinations, or addresses, of the protocol */
  constructor(
    protocol: ConsumerOrigin['protocol'],
    parts: SessionParts,
    socket: ClientSocket,
    { id, address, counts, logins, lineLimits }: Arrival,
    parse: ParseDestination,
  ) {
    this.done = this.#closed.promise;
    this.id = id;
    this.counts = counts;
    this.origin = { protocol, address };
    this.lineLimits = lineLimits;
    this.#logins = logins;
    this.socket = socket;
    this.#parts = parts;
    this.#parse = parse;
    socket.on('data', (bytes: Buffer) => this.#read(bytes));
    // A message comes when it is whole; while its bytes come, the client is there.
    socket.transport?.on('data', () => this.#heartBeat?.received());
    socket.on('end', () => {
      this.#hasPeerEnded = true;
      this.#advance();
    });
    // The reason does not matter: `close` follows.
    socket.on('error', () => {});
    socket.on('close', () => this.#onClose());
  }

  /** Executes the next whole frame. @returns false if there is none. @throws anything, which goes to `fail` */
  protected abstract readFrame(): boolean;

  /** Ends the session with an error, by `failWith`. Harmless if it ends already. */
  abstract fail(thrown: unknown): void;

  abstract inserted(replies: readonly (InsertReply | null)[]): void;
  /** @returns whether elements that came after these may still be stored */
  abstract notInserted(replies: readonly (InsertReply | null)[], error: unknown): boolean;
  /** All elements of one frame were settled. @param reply null: it wants no confirmation */
  abstract settled(reply: SettleReply | null): void;
  /** Of each of these frames at least one element was not settled. */
  abstract notSettled(replies: readonly (SettleReply | null)[], error: unknown): void;

  get clock(): Clock {
    return this.#parts.clock;
  }

  /** The user's name; '' before the login. */
  get owner(): string {
    return this.#user?.name ?? '';
  }

  /** The queues that the user may reach. */
  get destinations(): Destinations {
    if (this.#destinations === null) throw new Error('A session without a user has no destinations.');
    return this.#destinations;
  }

  /** So much waits for the client that no element may be added, by whichever of its consumers. */
  get isFull(): boolean {
    return this.writer.bytes + this.queuedBytes >= MAX_OUTPUT_BYTES;
  }

  get isOpen(): boolean {
    return this.#state === 'open';
  }

  /** Whether the session ends, or is gone. */
  get isEnding(): boolean {
    return this.#state === 'finishing' || this.#state === 'gone';
  }

  /** As listings show it; null before the login, and at its end. */
  describe(): SessionInfo | null {
    if (this.#user === null || this.isEnding) return null;
    return {
      id: this.id,
      ...this.origin,
      user: this.#user.name,
      since: new Date(this.#openedAt).toISOString(),
      consumers: [...this.consumers].map((consumer) => consumer.describe()),
    };
  }

  /** Fills a consumer at the end of this turn. */
  planFill(consumer: SessionConsumer): void {
    this.#toFill.add(consumer);
  }

  /** Asks the engine for all that the frames of this turn want. */
  endTurn(): void {
    this.inserts.flush();
    this.settles.flush();
    for (const consumer of this.#toFill) {
      // Before it is filled: if that fails, the session ends, and with it the turn once more.
      this.#toFill.delete(consumer);
      // What is taken for a client that goes would only have to return.
      if (!this.isEnding) consumer.fill();
    }
  }

  /**
   * Runs a step that has no caller to fail to. Whatever it throws is a fault of the server: it ends this session with
   * an error, and never the process.
   */
  guard(step: () => void): void {
    try {
      step();
    } catch (error) {
      // A session that ends already has no other way to show it than the log.
      if (this.isEnding) this.publicError(error);
      else this.fail(error);
    }
  }

  /** The server ends the session, with an error. */
  endByServer(reason: QuaysideError): void {
    if (!this.isEnding) this.fail(reason);
    else if (this.#isClosing) this.#planCut();
  }

  /** The session continues with its user's rights of now, or ends. @param of not if its user is none of these */
  renewUser(renew: RenewUser, of: ReadonlySet<User> | null): void {
    if (this.#state !== 'open' || this.#user === null) return;
    if (of?.has(this.#user) === false) return;
    const user = renew(this.#user);
    if (user === null) {
      this.fail(loginLost());
      return;
    }
    this.#user = user;
    this.#destinations = new Destinations(this.#parts.broker, user, this.#parse);
    this.guard(() => this.#checkRights());
  }

  warn(error: unknown, message: string): void {
    this.#parts.log.warn({ err: error, connection: this.id }, message);
  }

  /** Anything that was thrown, as the client may know it. Failures of the server and missing rights are logged. */
  publicError(thrown: unknown): QuaysideError {
    const { log } = this.#parts;
    if (!(thrown instanceof QuaysideError) || thrown.code === 'internal') {
      log.error({ err: thrown, connection: this.id }, 'a session failed');
      return new QuaysideError(
        'internal',
        `The server failed; its log says why, under connection ${this.id}.`,
      );
    }
    if (thrown.code === 'forbidden') {
      const fields = { event: 'forbidden', user: this.owner, connection: this.id, detail: thrown.message };
      const level = this.lineLimits.forbidden.admit(`${this.owner}: ${thrown.message}`) ? 'warn' : 'debug';
      log[level](fields, 'a frame without the right was rejected');
    }
    return thrown;
  }

  /** What is open. */
  protected get rightHolders(): Iterable<RightHolder> {
    return this.consumers;
  }

  /** Bytes of elements that wait for the client before they are given to the writer. */
  protected get queuedBytes(): number {
    return 0;
  }

  /** For the constructor of the writer. */
  protected get writerOptions(): WriterOptions {
    return {
      clock: this.clock,
      counts: this.counts,
      stallTimeoutMs: this.#parts.options.stallTimeoutMs,
      onCapacity: () => this.#onCapacity(),
      onStall: () => this.socket.destroy(),
    };
  }

  /** Ends the session with `request-timeout` unless `stopExpecting` or `login` is called in time. */
  protected expectWithin(ms: number, message: string): void {
    this.#setDeadline(ms, () => this.fail(new QuaysideError('request-timeout', message)));
  }

  protected stopExpecting(): void {
    this.#cancelDeadline();
  }

  /**
   * Pauses reading until a login is checked. If it is right, opens the session and calls `opened`.
   * @param check from `authenticate`
   */
  protected login(check: Promise<User>, opened: () => void): void {
    // The client has sent what it had to; the time that this takes is the server's.
    this.stopExpecting();
    this.setPause(PAUSE.login, true);
    check
      .then((user) => {
        if (this.#state !== 'new') return;
        this.#logins.enter(user.name);
        this.#loginName = user.name;
        this.socket.onLogin?.(user.name);
        this.#state = 'open';
        this.#user = user;
        this.#openedAt = this.clock.now();
        this.#destinations = new Destinations(this.#parts.broker, user, this.#parse);
        this.counts.sessions += 1;
        opened();
      })
      .catch((error: unknown) => this.fail(error))
      .finally(() => this.setPause(PAUSE.login, false));
  }

  /**
   * Starts the heart-beats that were agreed.
   * @param sendMs something is sent at least this often; 0: nothing need be
   * @param receiveMs the client sends something at least this often, and may be late once; 0: it need not
   * @param send sends a heart-beat unless other bytes wait to be written
   */
  protected startHeartBeat(sendMs: number, receiveMs: number, send: () => void): void {
    this.#heartBeat = new HeartBeat({
      clock: this.clock,
      sendMs,
      receiveMs,
      send,
      onSilence: () => {
        const message = `Nothing came for twice the ${receiveMs} ms of the agreed heart-beat.`;
        this.fail(new QuaysideError('request-timeout', message));
      },
    });
  }

  /** Reads nothing from the client while there is a reason for it. */
  protected setPause(reason: number, isPaused: boolean): void {
    const before = this.#pauses;
    this.#pauses = isPaused ? before | reason : before & ~reason;
    if (before === this.#pauses || this.isEnding) return;
    if (before === 0) {
      this.socket.pause();
      this.#heartBeat?.pause(true);
    }
    if (this.#pauses === 0) {
      this.#heartBeat?.pause(false);
      this.socket.resume();
      this.#advance();
    }
  }

  /** Lets other clients have their turn before the next frame. */
  protected waitATurn(): void {
    this.setPause(PAUSE.turn, true);
    setImmediate(() => this.setPause(PAUSE.turn, false));
  }

  /**
   * Ends the session with an error. A stop of the server is no failure of the client: it counts as no error, and
   * what the client holds returns without a failed try.
   * @param writeClose writes the closing frame
   */
  protected failWith(thrown: unknown, writeClose: (error: QuaysideError) => void): void {
    if (this.isEnding && !this.#isClientEnding) return;
    const error = this.publicError(thrown);
    const isStop = error.code === 'shutting-down';
    if (!isStop) this.counts.errors += 1;
    const writeError = (): void => writeClose(error);
    if (this.#isClientEnding) {
      this.#isClientEnding = false;
      this.#writeClose = writeError;
    } else this.finish(writeError, !isStop);
  }

  /**
   * The client ends the session: as `finish`. If something that it asked for before fails, the closing frame would
   * confirm what is not done: then that of the first error is written instead.
   */
  protected endByClient(writeClose: WriteClose | null): void {
    if (this.isEnding) return;
    this.#isClientEnding = true;
    this.finish(writeClose, true);
  }

  /**
   * Ends the session: releases what it holds, waits for what was asked of the engine, writes the closing frame,
   * and closes the connection. Harmless if it ends already.
   * @param writeClose null: there is no closing frame
   * @param countTries whether what the client holds returns as failed tries
   */
  protected finish(writeClose: WriteClose | null, countTries: boolean): void {
    if (this.isEnding) return;
    this.#state = 'finishing';
    this.#writeClose = writeClose;
    this.guard(() => this.endTurn());
    this.#heartBeat?.stop();
    // What still comes is discarded, so that the end of the stream is seen.
    this.socket.resume();
    this.guard(() => this.releaseHeld(countTries));
    this.guard(() => this.writer.dropElements());
    const isByClient = this.#isClientEnding;
    const close = (): void => {
      if (this.#isClosing || this.#state === 'gone') return;
      this.#isClosing = true;
      this.#isClientEnding = false;
      this.guard(() => {
        // A closing frame comes behind the answers of this turn; without one, they are sent here.
        if (this.#writeClose === null) this.endTurn();
        else this.#writeClose(this.work.isIdle);
      });
      this.#close(isByClient);
    };
    this.#setDeadline(FINISH_MS, close);
    this.work.whenIdle(close);
  }

  /** Stops all consumers, and whatever else the session holds. */
  protected releaseHeld(countTries: boolean): void {
    for (const consumer of [...this.consumers]) void consumer.stop(countTries);
  }

  /**
   * Closes the connection once everything is written, and cuts it after a while. A client that ended the session itself
   * wants the confirmations of what it sent: it has as much time to read them as before.
   */
  #close(isByClient: boolean): void {
    this.#cancelDeadline();
    if (!isByClient) this.#planCut();
    this.writer.end(() => {
      if (isByClient) this.#planCut();
      this.socket.end();
    });
  }

  #planCut(): void {
    this.#setDeadline(LINGER_MS, () => this.socket.destroy());
  }

  /** Ends what is not allowed any more. */
  #checkRights(): void {
    for (const holder of [...this.rightHolders]) {
      const { right, namespace } = holder;
      if (namespace === null) continue;
      try {
        this.destinations.check(right, namespace.name);
      } catch (error) {
        holder.fail(error);
      }
    }
  }

  #setDeadline(ms: number, then: () => void): void {
    this.#cancelDeadline();
    this.#cancelDeadline = this.clock.after(ms, then);
  }

  #read(bytes: Buffer): void {
    this.#heartBeat?.received();
    this.counts.receivedBytes += bytes.length;
    if (this.isEnding) return;
    if (this.#user === null) {
      this.#loginBytes += bytes.length;
      if (this.#loginBytes > LOGIN_BYTES) {
        const message = `More than the ${LOGIN_BYTES} bytes that are allowed came before the login.`;
        this.fail(new QuaysideError('headers-too-large', message));
        return;
      }
    }
    try {
      this.input.push(bytes);
    } catch (error) {
      this.fail(error);
    }
    this.#advance();
  }

  /** Executes every whole frame, unless there is a reason to pause. */
  #advance(): void {
    if (this.#isAdvancing) return;
    this.#isAdvancing = true;
    try {
      for (let frames = 1; this.#pauses === 0 && !this.isEnding && this.readFrame(); frames++) {
        if (frames === MAX_TURN_FRAMES) this.waitATurn();
      }
    } catch (error) {
      this.fail(error);
    }
    this.#isAdvancing = false;
    if (this.isEnding) return;
    this.guard(() => this.endTurn());
    this.#workChanged();
    // One turn of the event loop may bring two megabytes, so this does not wait until bytes have been written.
    this.#outputChanged();
    if (this.#hasPeerEnded && this.#pauses === 0) this.endByClient(null);
  }

  #workChanged(): void {
    this.setPause(PAUSE.work, this.work.isFull);
  }

  #outputChanged(): void {
    this.setPause(PAUSE.output, this.writer.bytes > MAX_OUTPUT_BYTES);
  }

  #onCapacity(): void {
    this.#outputChanged();
    if (this.#state !== 'open') return;
    for (const consumer of this.consumers) this.guard(() => consumer.fill());
  }

  #onClose(): void {
    this.#state = 'gone';
    this.#isClientEnding = false;
    this.#cancelDeadline();
    this.#heartBeat?.stop();
    this.guard(() => this.writer.close());
    if (this.#user !== null) this.counts.sessions -= 1;
    this.#logins.exit(this.#loginName);
    this.guard(() => this.endTurn());
    this.guard(() => this.releaseHeld(true));
    this.work.whenIdle(() => this.#closed.resolve());
  }
}

/** A queue that a user reached by its destination. */
export interface Destination {
  readonly namespace: Namespace;
  readonly queue: Queue;
}

/** Reads the names in a destination. @throws QuaysideError `invalid-name` */
type ParseDestination = (text: string) => { readonly ns: string; readonly name: string };

/** The cache is cleared when it holds this many destinations. */
const REMEMBERED = 100;

/** Finds queues by their destinations, and checks one user's right each time. */
class Destinations {
  readonly #broker: Broker;
  readonly #user: User;
  readonly #parse: ParseDestination;
  readonly #found = new Map<string, Destination>();

  constructor(broker: Broker, user: User, parse: ParseDestination) {
    this.#broker = broker;
    this.#user = user;
    this.#parse = parse;
  }

  /** @throws QuaysideError `invalid-name`, `namespace-not-found`, `forbidden`, `too-many-queues` */
  find(text: string, right: Right): Destination {
    const known = this.#found.get(text);
    if (known !== undefined) {
      const { namespace, queue } = known;
      this.check(right, namespace.name);
      // It may have been dropped since, and then counts as a new one.
      if (right !== 'browse' && !namespace.knownNames.has(queue.key.name)) namespace.queue(queue.key.name);
      return known;
    }
    const { ns, name } = this.#parse(text);
    const namespace = this.#broker.namespace(ns);
    this.check(right, ns);
    // Who browses creates no queue, so the limit of queues is not for them; kept, it would not be for what follows
    // either.
    if (right === 'browse') return { namespace, queue: namespace.visit(name) };
    const destination = { namespace, queue: namespace.queue(name) };
    if (this.#found.size >= REMEMBERED) this.#found.clear();
    this.#found.set(ownString(text), destination);
    return destination;
  }

  /** Whether the user is shown bodies when browsing there; see `User.maySeeBodies`. */
  maySeeBodies(ns: string): boolean {
    return this.#user.maySeeBodies(ns);
  }

  /** @throws QuaysideError `namespace-not-found`, `forbidden` */
  check(right: Right, ns: string): void {
    checkRight(this.#user, right, ns);
  }
}

/**
 * A peer is sent something after this part of the interval that it asked for, so that what is delayed is still in
 * time. 1,000 idle STOMP sessions take 2.1 % of a processor with it, and took 2.6 to 3.1 % with a half; AMQP
 * connections 1.5 %, and 3.3 %.
 */
const BEAT_PACE = 0.75;

/** A client may be late by its whole interval before its connection is taken for dead. */
const GRACE = 2;

interface HeartBeatOptions {
  readonly clock: Clock;
  /** Something must be sent at least this often, ms; 0: nothing need be sent. */
  readonly sendMs: number;
  /** The client has promised to send something at least this often, ms; 0: it has not. */
  readonly receiveMs: number;
  /** Sends a heart-beat, unless other bytes wait to be written. */
  send(): void;
  /** Nothing was received for twice `receiveMs`. */
  onSilence(): void;
}

/** The heart-beats of one connection, both ways. Any bytes count as one. */
class HeartBeat {
  readonly #options: HeartBeatOptions;
  #receivedAt: number;
  #isPaused = false;
  #cancelSend: CancelTimer | null = null;
  #cancelReceive: CancelTimer | null = null;

  constructor(options: HeartBeatOptions) {
    this.#options = options;
    this.#receivedAt = options.clock.monotonic();
    if (options.sendMs > 0) this.#planSend();
    if (options.receiveMs > 0) this.#planReceive(options.receiveMs * GRACE);
  }

  /** To be called when bytes came. */
  received(): void {
    this.#receivedAt = this.#options.clock.monotonic();
  }

  /** While the server does not read, silence means nothing; afterwards the client has its whole time again. */
  pause(isPaused: boolean): void {
    this.#isPaused = isPaused;
    this.received();
  }

  stop(): void {
    this.#cancelSend?.();
    this.#cancelReceive?.();
  }

  #planSend(): void {
    const { clock, sendMs, send } = this.#options;
    this.#cancelSend = clock.after(sendMs * BEAT_PACE, () => {
      this.#planSend();
      send();
    });
  }

  #planReceive(inMs: number): void {
    this.#cancelReceive = this.#options.clock.after(inMs, () => {
      if (!this.#isLate()) return;
      // If the whole process stood still, timers run before what came during that is read.
      const secondLook = setImmediate(() => {
        if (this.#isLate()) this.#options.onSilence();
      });
      this.#cancelReceive = () => clearImmediate(secondLook);
    });
  }

  /** Whether something should have come by now. If not, plans the next look. */
  #isLate(): boolean {
    const { clock, receiveMs } = this.#options;
    const graceMs = receiveMs * GRACE;
    const leftMs = this.#isPaused ? graceMs : this.#receivedAt + graceMs - clock.monotonic();
    if (leftMs > 0) this.#planReceive(leftMs);
    return leftMs <= 0;
  }
}

/** What a session has asked of the engine and has no result for yet. */
class PendingWork {
  readonly #onChange: () => void;
  #items = 0;
  #bytes = 0;
  #onIdle: (() => void)[] = [];

  /** @param onChange called after each end: a session that paused because of `isFull` may continue */
  constructor(onChange: () => void) {
    this.#onChange = onChange;
  }

  get isFull(): boolean {
    return this.#items >= MAX_PENDING_ITEMS || this.#bytes >= MAX_PENDING_BYTES;
  }

  get isIdle(): boolean {
    return this.#items === 0;
  }

  /** To be called when the engine is asked. @param items see {@link MAX_PENDING_ITEMS} */
  begin(items: number, bytes: number): void {
    this.#items += items;
    this.#bytes += bytes;
  }

  /** The result is known: to be called with the numbers that were given to `begin`. */
  end(items: number, bytes: number): void {
    this.#items -= items;
    this.#bytes -= bytes;
    if (this.isIdle) {
      const waiting = this.#onIdle;
      this.#onIdle = [];
      for (const then of waiting) then();
    }
    this.#onChange();
  }

  /** Calls `then` once nothing is pending. */
  whenIdle(then: () => void): void {
    if (this.isIdle) then();
    else this.#onIdle.push(then);
  }
}
