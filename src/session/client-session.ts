import { BodyPlace, tooManyBytes, UNCOUNTED_BYTES } from '../access/body-limit.ts';
import { strangersOf } from '../access/networks.ts';
import { checkRight, loginLost, type User } from '../access/user.ts';
import { QuaysideError } from '../model/errors.ts';
import type { SessionInfo } from '../model/records.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import { InsertBatcher, SettleBatcher } from './batchers.ts';
import type { RightHolder, SessionConsumer } from './consumer.ts';
import { Destinations, type ParseDestination } from './destinations.ts';
import { HeartBeat, MAX_SILENT_INTERVALS } from './heart-beat.ts';
import type { NewConnection, SessionCounts, SessionServer } from './server.ts';
import type { ClientSocket, SocketWriter, WriterOptions } from './socket-writer.ts';

/** Reasons not to read from a client. Each is one bit. */
export const PAUSE = {
  /** The login is being checked. */
  login: 1,
  /** Too many of the client's requests are pending in the engine. */
  work: 2,
  /** The client does not read its responses. */
  output: 4,
  /** Other clients are served first. */
  turn: 8,
  /** A transaction that stores elements is being committed; later inserts must not overtake it. */
  commit: 16,
  /** Bodies of the user occupy too much memory to receive the rest of this one. */
  body: 32,
} as const;

/** Maximum bytes read before the login. */
export const LOGIN_BYTES = 4096;
/**
 * While more output than this waits for a client, the session pauses reading and adds no element. One element may
 * exceed it, whatever the number of consumers.
 */
export const MAX_OUTPUT_BYTES = 1024 * 1024;
/**
 * How long the frames of one client are executed before other clients are served, ms. One turn of the event loop may
 * read 2 MB from a socket, in chunks: 90,000 frames, or fewer ones that take up to a millisecond each.
 */
const MAX_TURN_MS = 5;
/** Frames between two checks of the time, each of which costs about as much as a thirtieth of a frame. */
const FRAMES_PER_CHECK = 8;
/** Delay before consumers retry a take after a transient error, ms. */
export const RETRY_MS = 1000;
/** How long an ending session waits for its pending engine calls. */
export const FINISH_MS = 2_000;
/** How long a client has to read the last frame and close, before the connection is cut. */
const LINGER_MS = 2_000;

type State = 'new' | 'open' | 'finishing' | 'closing' | 'gone';

/**
 * Writes the last frame of a session.
 * @param isDone whether all frames of the client have an outcome
 */
type WriteClose = (isDone: boolean) => void;

/**
 * The connection of one client. Executes the client's frames, pauses reading while too many of its requests are pending
 * in the engine (so that TCP slows the client down), and ends the session without losing elements.
 *
 * States:
 * - `new`: the user is unknown. At most `LOGIN_BYTES` are read. Left by `login`, or an error.
 * - `open`: frames are executed and consumers run. Left by `endByClient`, `fail` and the end of the stream.
 * - `finishing`: consumers are stopped, and elements that the client holds return to their queues. The session waits
 *   for its pending engine calls and confirms them. If the client ended the session and one of these calls fails, the
 *   closing frame is that error. Further input is discarded.
 * - `closing`: the closing frame is written; all that is left is that the client reads it and closes.
 * - `gone`: the connection is lost or closed. Reached from every state, and final.
 *
 * A protocol implements: `writer`; `input` and `readFrame`, which take bytes and execute whole frames; `fail`, by
 * calling `failWith`; and `inserted`, `notInserted`, `settled` and `notSettled`, which receive pending replies: an
 * `InsertReply` or `SettleReply` is what the protocol needs to confirm a frame once the engine has executed it. It
 * calls `expectWithin` for the login's deadline, `login`, `startHeartBeat`, `planFill` and `endByClient`. A frame only
 * adds to `inserts` and `settles`; the engine is called at the end of the turn.
 */
export abstract class ClientSession<InsertReply = unknown, SettleReply = unknown> {
  /** Resolves when the connection is closed and all engine calls of the session have ended. */
  readonly done: Promise<void>;
  /** Names the connection in the log. */
  readonly id: string;
  readonly counts: SessionCounts;
  readonly origin: Pick<SessionInfo, 'protocol' | 'address'>;
  readonly work = new PendingWork(
    () => this.#workChanged(),
    () => this.countHeld(),
  );
  /**
   * Whether one of the session's browsers reads a page. The others wait: all elements of a page are in memory, and its
   * size depends on the capacity that earlier pages left.
   */
  isReadingPage = false;
  readonly inserts = new InsertBatcher<InsertReply>(this);
  readonly settles = new SettleBatcher<SettleReply>(this);
  /** Consumers that have not stopped, in the order in which they are filled. */
  readonly consumers = new Set<SessionConsumer>();
  /**
   * How many consumers are filled together, and so divide what the session may send. Without it, 64 consumers of
   * full queues returned a fifth of what they took.
   */
  takers = 1;
  /**
   * Consumers whose elements had to be returned since the session was full, in the order in which that happened. They
   * are filled first: otherwise the first consumers would get everything as long as their queues have elements.
   */
  readonly passedOver = new Set<SessionConsumer>();
  abstract readonly writer: SocketWriter;
  /** Receives the client's bytes. */
  abstract readonly input: { push(bytes: Buffer): void };
  protected readonly socket: ClientSocket;
  readonly #server: SessionServer;
  readonly #parse: ParseDestination;
  readonly #closed = Promise.withResolvers<void>();
  /** See `spareBytes`; null while consumers are not filled together. */
  #spareBytes: number | null = null;
  /** Consumers to fill at the end of this turn. */
  readonly #toFill = new Set<SessionConsumer>();
  #state: State = 'new';
  /** Wall-clock time of the login. */
  #openedAt = 0;
  /** Has the user; null before the login. */
  #destinations: Destinations | null = null;
  #pauses = 0;
  /** Counts the body that is being received. */
  readonly #place: BodyPlace;
  /** Counts everything else that the client sent and that is in memory; null before the login. */
  #countHeld: ((bytes: number) => void) | null = null;
  #isAdvancing = false;
  /** How long frames were executed since other clients were served. Not known per turn, which may bring many chunks. */
  #busyMs = 0;
  #hasPeerEnded = false;
  #loginBytes = 0;
  #heartBeat: HeartBeat | null = null;
  #cancelRetry: CancelTimer | null = null;
  /** See `fillLater`. */
  #retrying: SessionConsumer[] = [];
  /**
   * Cancels the session's current deadline: for the login, for pending calls at its end, or for the client to close.
   */
  #cancelDeadline: CancelTimer | null = null;
  /** Set in `finishing`; null if there is no closing frame. */
  #writeClose: WriteClose | null = null;
  /**
   * The client ended the session, none of its pending calls has failed, and the closing frame is not written yet.
   */
  #isClientEnding = false;

  /** @param parse parses the protocol's destinations (STOMP) or addresses (AMQP) */
  constructor(
    protocol: SessionInfo['protocol'],
    server: SessionServer,
    socket: ClientSocket,
    { id, address }: NewConnection,
    parse: ParseDestination,
  ) {
    this.done = this.#closed.promise;
    this.id = id;
    this.counts = server.counts;
    this.origin = { protocol, address };
    this.socket = socket;
    this.#server = server;
    this.#parse = parse;
    this.#place = new BodyPlace({
      limit: server.bodies,
      onGranted: () => this.setPause(PAUSE.body, false),
      onTimeout: (error) => this.fail(error),
    });
    socket.on('data', (bytes: Buffer) => this.#read(bytes));
    // A WebSocket emits whole messages only, but the bytes of an incomplete one already show that the client is alive.
    socket.transport?.on('data', () => {
      this.#heartBeat?.received();
      this.#holdPlace();
    });
    socket.on('end', () => {
      this.#hasPeerEnded = true;
      this.#advance();
    });
    // Ignored: `close` follows every error.
    socket.on('error', () => {});
    socket.on('close', () => this.#onClose());
  }

  /** Executes the next whole frame. @returns false if there is none. @throws anything; it is passed to `fail` */
  protected abstract readFrame(): boolean;

  /** Ends the session with an error, by calling `failWith`. May be called repeatedly. */
  abstract fail(thrown: unknown): void;

  abstract inserted(replies: readonly (InsertReply | null)[]): void;
  /** @returns whether elements that arrived after these may still be stored */
  abstract notInserted(replies: readonly (InsertReply | null)[], error: unknown): boolean;
  /** All elements of one frame were settled. @param reply null if the client wants no confirmation */
  abstract settled(reply: SettleReply | null): void;
  /** In each of these frames, at least one element was not settled. */
  abstract notSettled(replies: readonly (SettleReply | null)[], error: unknown): void;

  get clock(): Clock {
    return this.#server.clock;
  }

  /** The user's name; '' before the login. */
  get owner(): string {
    return this.#destinations?.user.name ?? '';
  }

  /** Looks up queues with the user's rights. @throws Error before the login */
  get destinations(): Destinations {
    if (this.#destinations === null) throw new Error('A session without a user has no destinations.');
    return this.#destinations;
  }

  /** Whether so many bytes wait for the client that no consumer may add an element. */
  get isFull(): boolean {
    return this.writer.bytes + this.queuedBytes >= MAX_OUTPUT_BYTES;
  }

  /** How many bytes consumers that are filled now may request together, besides takes in progress. */
  get spareBytes(): number {
    return this.#spareBytes ?? this.#countSpareBytes();
  }

  get isOpen(): boolean {
    return this.#state === 'open';
  }

  /** Whether the session executes no further frames. */
  get isEnding(): boolean {
    return this.#state !== 'new' && this.#state !== 'open';
  }

  /** The session as listings show it; null before the login and once it is ending. */
  describe(): SessionInfo | null {
    if (this.#state !== 'open') return null;
    return {
      id: this.id,
      ...this.origin,
      user: this.owner,
      since: new Date(this.#openedAt).toISOString(),
      consumers: [...this.consumers].map((consumer) => consumer.describe()),
    };
  }

  /** Fills a consumer at the end of this turn. */
  planFill(consumer: SessionConsumer): void {
    this.#toFill.add(consumer);
  }

  /**
   * Fills a consumer again within `RETRY_MS`; until then, it takes nothing. Consumers that are beyond the limit of
   * their user try one after the other until one is rejected: with 25,000 of them, a rejection of each took a fifth of
   * the processor. Those that have waited longest try first, or the last ones of the session might never get a place.
   */
  fillLater(consumer: SessionConsumer): void {
    consumer.isRetrying = true;
    this.#retrying.push(consumer);
    this.#cancelRetry ??= this.clock.after(RETRY_MS, () => {
      this.#cancelRetry = null;
      this.#retry();
    });
  }

  #retry(): void {
    const consumers = this.#retrying.filter(({ isStopped }) => !isStopped);
    this.#retrying = [];
    for (const [at, next] of consumers.entries()) {
      // The fill before may have ended the session.
      if (next.isStopped) continue;
      next.isRetrying = false;
      this.guard(() => next.fill());
      if (!next.isRetrying) continue;
      this.#retrying = consumers.slice(at);
      return;
    }
  }

  /** Call when a browser has shown its page. Its next turn comes after those of the other browsers. */
  endPage(browser: SessionConsumer): void {
    this.isReadingPage = false;
    if (this.consumers.delete(browser)) this.consumers.add(browser);
    this.#fill(this.consumers);
  }

  /** Sends the inserts and settlements of this turn to the engine, and fills consumers with free places. */
  endTurn(): void {
    this.inserts.flush();
    this.settles.flush();
    if (this.#toFill.size === 0) return;
    const consumers = [...this.#toFill];
    // First, since a failure ends the session, which calls `endTurn` again.
    this.#toFill.clear();
    this.#fill(consumers);
  }

  /**
   * Runs a step whose caller cannot handle errors, such as a timer or an event. An error is a bug of the server: it
   * ends this session, but never the process.
   */
  guard(step: () => void): void {
    try {
      step();
    } catch (error) {
      // A session that is already ending can only log the error.
      if (this.isEnding) this.publicError(error);
      else this.fail(error);
    }
  }

  /** Ends the session with an error. If it is closing already, the client has `LINGER_MS` left to read the rest. */
  endByServer(reason: QuaysideError): void {
    if (!this.isEnding) this.fail(reason);
    else if (this.#state === 'closing') this.#planCut();
  }

  /**
   * Continues with the user's current rights, or ends if the user is gone.
   * @param affected does nothing if the session's user is not in this set; null: renews any user
   */
  renewUser(affected: ReadonlySet<User> | null): void {
    if (this.#state !== 'open' || affected?.has(this.destinations.user) === false) return;
    const user = this.#server.authenticator.renew(this.destinations.user);
    if (user === null) {
      this.fail(loginLost());
      return;
    }
    this.#destinations = new Destinations(this.#server.broker, user, this.#parse);
    this.guard(() => this.#checkRights());
  }

  /** Logs the failure of a call of the engine that the client did not ask for. */
  warn(error: unknown, message: string): void {
    const { log, lineLimits } = this.#server;
    if (lineLimits.failures.admit(message)) log.warn({ err: error, connection: this.id }, message);
  }

  /** Turns anything thrown into an error that the client may see. Logs failures of the server and missing rights. */
  publicError(thrown: unknown): QuaysideError {
    const { log, lineLimits } = this.#server;
    if (!(thrown instanceof QuaysideError) || thrown.code === 'internal') {
      log.error({ err: thrown, connection: this.id }, 'a session failed');
      return new QuaysideError(
        'internal',
        `Internal server error. The server's log has the reason, under connection ${this.id}.`,
      );
    }
    if (thrown.code === 'forbidden') {
      const fields = { event: 'forbidden', user: this.owner, connection: this.id, detail: thrown.message };
      const level = lineLimits.forbidden.admit(`${this.owner}: ${thrown.message}`) ? 'warn' : 'debug';
      log[level](fields, 'a frame without the right was rejected');
    }
    return thrown;
  }

  /** The open consumers or links, whose rights are checked again when the user's rights change. */
  protected get rightHolders(): Iterable<RightHolder> {
    return this.consumers;
  }

  /**
   * How many bytes the body that is being received may have; 0 if at most `UNCOUNTED_BYTES` of it have arrived. It may
   * grow once it is not 0.
   */
  protected abstract get receivingBytes(): number;

  /** Bytes that stay in memory until a later frame of the client. */
  protected get openBytes(): number {
    return 0;
  }

  /** Call when `openBytes` has changed. */
  countHeld(): void {
    const bytes = this.work.bytes + this.openBytes;
    this.#countHeld?.(bytes > UNCOUNTED_BYTES ? bytes : 0);
  }

  /** Bytes of elements that the protocol queues before it passes them to the writer. */
  protected get queuedBytes(): number {
    return 0;
  }

  /** Options for the constructor of `writer`. */
  protected get writerOptions(): WriterOptions {
    return {
      clock: this.clock,
      counts: this.counts,
      onCapacity: () => this.onCapacity(),
    };
  }

  /** Ends the session with `request-timeout` unless `stopExpecting` or `login` is called in time. */
  protected expectWithin(ms: number, message: string): void {
    this.#setDeadline(ms, () => this.fail(new QuaysideError('request-timeout', message)));
  }

  protected stopExpecting(): void {
    this.#cancelDeadline?.();
    // Do not retain the timer as long as the session lives.
    this.#cancelDeadline = null;
  }

  /**
   * Pauses reading until a login is checked. If it succeeds, opens the session and calls `opened`.
   * @param check from `authenticate`
   */
  protected login(check: Promise<User>, opened: () => void): void {
    // The client has done its part in time; the check takes the server's time.
    this.stopExpecting();
    this.setPause(PAUSE.login, true);
    check
      .then((user) => {
        if (this.#state !== 'new') return;
        // Both may reject the user. The socket takes back what it has counted when it closes.
        this.socket.onLogin?.(user.name);
        this.#server.logins.enter(user.name);
        this.#state = 'open';
        this.#openedAt = this.clock.now();
        this.#countHeld = this.#server.bodies.track(user.name);
        this.#destinations = new Destinations(this.#server.broker, user, this.#parse);
        this.counts.sessions += 1;
        opened();
      })
      .catch((error: unknown) => this.fail(error))
      .finally(() => this.setPause(PAUSE.login, false));
  }

  /**
   * Starts the agreed heart-beats.
   * @param sendMs the server sends something at least this often; 0: it need not
   * @param receiveMs the client sends something at least this often, or else the session ends after twice this time;
   * 0: it need not
   * @param send sends a heart-beat unless other bytes wait to be written
   */
  protected startHeartBeat(sendMs: number, receiveMs: number, send: () => void): void {
    this.#heartBeat = new HeartBeat({
      clock: this.clock,
      sendMs,
      receiveMs,
      send,
      onSilence: () => {
        const message = `Nothing was received for ${MAX_SILENT_INTERVALS} times the agreed heart-beat interval of ${receiveMs} ms.`;
        this.fail(new QuaysideError('request-timeout', message));
      },
    });
  }

  /** Sets or clears a reason not to read from the client. @param reason one of {@link PAUSE} */
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

  /**
   * Ends the session with an error. If the client has ended it already, only replaces the closing frame. A stop of the
   * server is not the client's failure: it is not counted as an error, and elements that the client holds return
   * without a failed try.
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
   * Ends the session at the client's request. If one of its pending calls fails, the closing frame would confirm
   * something that did not happen, so that of the first error is written instead.
   */
  protected endByClient(writeClose: WriteClose | null): void {
    if (this.isEnding) return;
    this.#isClientEnding = true;
    this.finish(writeClose, true);
  }

  /**
   * Ends the session: stops its consumers, waits for pending engine calls, writes the closing frame, and closes the
   * connection. No effect if the session is ending already.
   * @param writeClose null if there is no closing frame
   * @param countTries whether elements that the client holds return with a failed try
   */
  protected finish(writeClose: WriteClose | null, countTries: boolean): void {
    if (this.isEnding) return;
    this.#state = 'finishing';
    this.#writeClose = writeClose;
    this.guard(() => this.endTurn());
    this.#heartBeat?.stop();
    // Keep reading, and discard the input, to see the end of the stream.
    this.socket.resume();
    this.guard(() => this.releaseHeld(countTries));
    this.guard(() => this.writer.dropElements());
    const isByClient = this.#isClientEnding;
    const close = (): void => {
      if (this.#state !== 'finishing') return;
      this.#state = 'closing';
      this.#isClientEnding = false;
      this.guard(() => {
        // Writing a closing frame first flushes the replies of this turn; without one, flush them here.
        if (this.#writeClose === null) this.endTurn();
        else this.#writeClose(this.work.hasNoFrames);
      });
      this.#close(isByClient);
    };
    this.#setDeadline(FINISH_MS, close);
    this.work.whenIdle(close);
  }

  /** Stops all consumers, and releases everything else that the session holds. */
  protected releaseHeld(countTries: boolean): void {
    for (const consumer of [...this.consumers]) void consumer.stop(countTries);
  }

  /**
   * Closes the connection once everything is written, and cuts it after `LINGER_MS`. If the client ended the session,
   * it wants its confirmations: then that time starts when everything is written, and until then only the stall timeout
   * applies.
   */
  #close(isByClient: boolean): void {
    this.#cancelDeadline?.();
    if (!isByClient) this.#planCut();
    this.writer.end(() => {
      if (isByClient) this.#planCut();
      this.socket.end();
    });
  }

  #planCut(): void {
    this.#setDeadline(LINGER_MS, () => this.socket.destroy());
  }

  /** Ends consumers and links for which the user has lost the right. */
  #checkRights(): void {
    for (const holder of [...this.rightHolders]) {
      const { right, namespace } = holder;
      if (namespace === null) continue;
      try {
        checkRight(this.destinations.user, right, namespace.name);
      } catch (error) {
        holder.fail(error);
      }
    }
  }

  #setDeadline(ms: number, then: () => void): void {
    this.#cancelDeadline?.();
    this.#cancelDeadline = this.clock.after(ms, then);
  }

  #read(bytes: Buffer): void {
    this.#heartBeat?.received();
    this.counts.receivedBytes += bytes.length;
    if (this.isEnding) return;
    if (this.#state === 'new') {
      this.#loginBytes += bytes.length;
      if (this.#loginBytes > LOGIN_BYTES) {
        const message = `More than ${LOGIN_BYTES} bytes arrived before the login, the maximum.`;
        this.fail(new QuaysideError('headers-too-large', message));
        return;
      }
    }
    this.guard(() => this.input.push(bytes));
    this.#advance();
  }

  /** Executes whole frames until none is left, reading pauses, or other clients have to be served. */
  #advance(): void {
    if (this.#isAdvancing) return;
    const { clock } = this;
    const { inputTurns } = this.#server;
    if (this.#pauses === 0 && !this.isEnding && inputTurns.isUsedUp) {
      this.#yieldToOthers();
      return;
    }
    this.#isAdvancing = true;
    const advancedAt = clock.monotonic();
    const startedAt = advancedAt - this.#busyMs;
    let isOver = false;
    try {
      for (let frames = 1; !isOver && this.#pauses === 0 && !this.isEnding && this.readFrame(); frames += 1) {
        isOver = frames % FRAMES_PER_CHECK === 0 && clock.monotonic() - startedAt >= MAX_TURN_MS;
      }
    } catch (error) {
      this.fail(error);
    }
    this.#isAdvancing = false;
    if (!this.isEnding) this.guard(() => this.endTurn());
    const endedAt = clock.monotonic();
    inputTurns.count(endedAt - advancedAt);
    if (this.isEnding) return;
    this.#busyMs = endedAt - startedAt;
    if (this.#busyMs >= MAX_TURN_MS) this.#yieldToOthers();
    this.#holdPlace();
    this.#workChanged();
    // Check now, not only after a write: one turn of the event loop may bring 2 MB of frames that want replies.
    this.#outputChanged();
    if (this.#hasPeerEnded && this.#pauses === 0) this.endByClient(null);
  }

  /** Waits before it receives more of a body if the user has too many. */
  #holdPlace(): void {
    if (this.isEnding) return;
    const bytes = this.receivingBytes + (this.socket.receivingBytes ?? 0);
    const mayReceive = this.#place.hold(this.owner, bytes);
    // Others may be waiting for what this session holds open, which only a later frame of its client can end.
    if (!mayReceive && this.openBytes > UNCOUNTED_BYTES) this.fail(tooManyBytes());
    else this.setPause(PAUSE.body, !mayReceive);
  }

  /** Serves other clients before the next frame. */
  #yieldToOthers(): void {
    this.#busyMs = 0;
    this.setPause(PAUSE.turn, true);
    const user = this.owner || strangersOf(this.origin.address);
    this.#server.inputTurns.wait(user, () => this.setPause(PAUSE.turn, false));
  }

  #workChanged(): void {
    const { isFull, bytes } = this.work;
    // Of what it has sent, the engine has the rest before long: so the session will be read from again.
    const isUserFull = bytes > UNCOUNTED_BYTES && this.#server.bodies.isFull(this.owner);
    this.setPause(PAUSE.work, isFull || isUserFull);
  }

  #outputChanged(): void {
    this.setPause(PAUSE.output, this.writer.bytes > MAX_OUTPUT_BYTES);
  }

  /** The writer has written something. */
  protected onCapacity(): void {
    this.#outputChanged();
    const { passedOver, consumers } = this;
    this.#fill(passedOver.size === 0 ? consumers : new Set([...passedOver, ...consumers]));
  }

  /**
   * Counts what takes in progress may bring. Without it, 64 consumers of full queues returned up to half as many
   * elements as the client got, if the engine was slow.
   */
  #countSpareBytes(): number {
    let bytes = this.writer.bytes + this.queuedBytes;
    for (const { takingBytes } of this.consumers) bytes += takingBytes;
    return MAX_OUTPUT_BYTES - bytes;
  }

  #fill(consumers: Iterable<SessionConsumer>): void {
    let takers = 0;
    for (const { canTake } of consumers) if (canTake) takers += 1;
    this.takers = Math.max(1, takers);
    if (takers > 0) this.#spareBytes = this.#countSpareBytes();
    for (const consumer of consumers) {
      // Elements taken for an ending session would only have to be returned.
      if (!this.isEnding) this.guard(() => consumer.fill());
    }
    this.#spareBytes = null;
    this.takers = 1;
  }

  #onClose(): void {
    this.#state = 'gone';
    this.#isClientEnding = false;
    this.#cancelDeadline?.();
    this.#cancelRetry?.();
    this.#heartBeat?.stop();
    this.guard(() => this.writer.close());
    this.#place.hold(this.owner, 0);
    if (this.#destinations !== null) {
      this.counts.sessions -= 1;
      this.#server.logins.exit(this.owner);
    }
    this.guard(() => this.endTurn());
    this.guard(() => this.releaseHeld(true));
    this.work.whenIdle(() => this.#closed.resolve());
  }
}

/**
 * A session pauses reading while this many items, or bytes, of its client are pending in the engine. An item is an
 * element being inserted or settled, a page of a browser, or a reply that waits for other items. One frame may add
 * many: a cumulative ACK settles up to 65,536 elements.
 */
const MAX_PENDING_ITEMS = 4096;
const MAX_PENDING_BYTES = 4 * 1024 * 1024;

/** Counts a session's engine calls that have no result yet. */
class PendingWork {
  /** How many of the items are elements that return to their queue after their client or consumer has gone. */
  returning = 0;
  readonly #onEnd: () => void;
  readonly #onChange: () => void;
  #items = 0;
  #bytes = 0;
  #onIdle: (() => void)[] = [];

  /**
   * @param onEnd called after each `end`: a session that paused because of `isFull` may resume
   * @param onChange called when `bytes` has changed
   */
  constructor(onEnd: () => void, onChange: () => void) {
    this.#onEnd = onEnd;
    this.#onChange = onChange;
  }

  get bytes(): number {
    return this.#bytes;
  }

  get isFull(): boolean {
    return this.#items >= MAX_PENDING_ITEMS || this.#bytes >= MAX_PENDING_BYTES;
  }

  get isIdle(): boolean {
    return this.#items === 0;
  }

  /** Whether every frame of the client has an outcome. */
  get hasNoFrames(): boolean {
    return this.#items === this.returning;
  }

  /** Call when the engine is called. @param items see {@link MAX_PENDING_ITEMS} */
  begin(items: number, bytes: number): void {
    this.#items += items;
    this.#bytes += bytes;
    this.#onChange();
  }

  /** Call when the result is known, with the arguments of `begin`. */
  end(items: number, bytes: number): void {
    this.#items -= items;
    this.#bytes -= bytes;
    this.#onChange();
    if (this.isIdle) {
      const waiting = this.#onIdle;
      this.#onIdle = [];
      for (const then of waiting) then();
    }
    this.#onEnd();
  }

  /** Calls `then` as soon as nothing is pending. */
  whenIdle(then: () => void): void {
    if (this.isIdle) then();
    else this.#onIdle.push(then);
  }
}
