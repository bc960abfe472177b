import { tooManyBytes, UNCOUNTED_BYTES } from '../access/body-limit.ts';
import type { User } from '../access/user.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import { ClientSession, FINISH_MS, PAUSE } from '../session/client-session.ts';
import { decodeNames, invalidDestination } from '../session/destinations.ts';
import { authenticate, type ClientCertificate, type Credentials, loginCertified } from '../session/login.ts';
import { returnOutstanding } from '../session/outstanding.ts';
import { type NewConnection, type SessionDependencies, SessionServer } from '../session/server.ts';
import {
  type ClientSocket,
  SocketWriter,
  type WriteObserver,
  type WriterOptions,
} from '../session/socket-writer.ts';
import { decodeText } from '../session/values.ts';
import { quoteBytes } from '../util/byte-string.ts';
import { quote } from '../util/quote.ts';
import { JOINED_BYTES } from '../util/sockets.ts';
import {
  FrameParser,
  frameText,
  headerOf,
  malformed,
  RULES,
  type StompFrame,
  trimSpaces,
  VERSIONS,
  type Version,
} from './codec.ts';
import { COMMANDS } from './commands.ts';
import { type ErrorSubject, errorFrame } from './errors.ts';
import { STOMP_LIMITS, type StompOptions } from './options.ts';
import { Subscriptions } from './subscriptions.ts';
import { type Transaction, Transactions } from './transactions.ts';

/** The ERROR for a DISCONNECT if the engine has not executed earlier frames in time. */
const NO_OUTCOME = new QuaysideError(
  'outcome-unknown',
  `Frames before the DISCONNECT were not completed within ${FINISH_MS} ms: they may or may not take effect.`,
);

/** The STOMP front end. When the server stops, its sessions are closed without an ERROR. */
export class StompServer extends SessionServer<StompOptions> {
  /** The version in a subprotocol's name has no effect: CONNECT negotiates the version. */
  readonly webSocket = { subprotocols: ['v12.stomp', 'v11.stomp', 'v10.stomp'], usesText: true };

  constructor(dependencies: SessionDependencies<StompOptions>) {
    super('STOMP', dependencies);
  }

  protected override openSession(socket: ClientSocket, connection: NewConnection): StompSession {
    return new StompSession(this, socket, connection);
  }
}

/**
 * The session of one STOMP client: executes its frames. A pending reply is the receipt id of a frame.
 */
export class StompSession extends ClientSession<string, string> {
  /** Its `rules` also apply to the frames that are sent. */
  readonly input: FrameParser;
  readonly writer: StompWriter;
  readonly subscriptions: Subscriptions;
  readonly transactions: Transactions;
  readonly #server: StompServer;
  readonly #certificate: ClientCertificate;
  /** Null before the login. */
  #version: Version | null = null;

  constructor(server: StompServer, socket: ClientSocket, connection: NewConnection) {
    super('stomp', server, socket, connection, parseDestination);
    const { bodyLimit, trailingNewline, loginTimeoutMs } = server.options;
    const { headBytes, headers } = STOMP_LIMITS;
    this.#server = server;
    this.#certificate = connection.certificate;
    this.input = new FrameParser({ headBytes, headers, bodyBytes: bodyLimit });
    this.writer = new StompWriter(socket, this.writerOptions, trailingNewline);
    this.subscriptions = new Subscriptions(this);
    this.transactions = new Transactions(this, bodyLimit);
    this.expectWithin(loginTimeoutMs, `No complete CONNECT frame arrived within ${loginTimeoutMs} ms.`);
  }

  get version(): Version {
    return this.#version ?? '1.0';
  }

  /** Whether ACK names a message by the `ack` header of its MESSAGE (1.2), or by its id. */
  get acksByHeader(): boolean {
    return this.#version === '1.2';
  }

  /** Ends the session with an ERROR. May be called repeatedly. */
  override fail(thrown: unknown, subject: ErrorSubject = {}): void {
    this.failWith(thrown, (error) => {
      // No ERROR when the server stops: Ruby's client with `reliable` reconnects only after a plain close.
      if (error.code !== 'shutting-down') this.writer.addFrame(errorFrame(this.input.rules, error, subject));
    });
  }

  /** DISCONNECT. Its RECEIPT confirms all earlier frames. */
  disconnect(receipt: string | null): void {
    this.endByClient((isDone) => {
      if (isDone) this.confirm(receipt);
      else this.writer.addFrame(errorFrame(this.input.rules, NO_OUTCOME, { receipt }));
    });
  }

  /** Sends the RECEIPT of a frame, if it asked for one. */
  confirm(receipt: string | null): void {
    if (receipt !== null)
      this.writer.addFrame(frameText(this.input.rules, 'RECEIPT', ['receipt-id', receipt]));
  }

  /**
   * Sends a RECEIPT when `done` resolves with null. If it resolves with an error, that is sent as ERROR, provided the
   * frame asked for a receipt. The session does not end before. `done` must not reject.
   */
  async confirmAfter(done: Promise<unknown>, receipt: string | null): Promise<void> {
    this.work.begin(1, 0);
    const error = await done;
    if (error === null) this.confirm(receipt);
    else if (receipt !== null) this.fail(error, { receipt });
    this.work.end(1, 0);
  }

  /** COMMIT. */
  async commit(transaction: Transaction, receipt: string | null): Promise<void> {
    const { frames, bytes, storesLater } = transaction;
    this.work.begin(frames + 1, bytes);
    this.endTurn();
    // Elements that the client sends after the COMMIT must not be stored before it.
    if (storesLater) this.setPause(PAUSE.commit, true);
    try {
      await transaction.commit(this.inserts);
      this.confirm(receipt);
    } catch (error) {
      // End the session before elements return: its own consumers would receive them again.
      this.fail(error, { receipt });
      for (const [queue, unsettled] of transaction.unsettled)
        await returnOutstanding(queue, unsettled, true, this);
    } finally {
      this.work.end(frames + 1, bytes);
      // A concurrent COMMIT that only stores, or only settles, has set no pause and must not clear it.
      if (storesLater) this.setPause(PAUSE.commit, false);
      if (this.isOpen) for (const consumer of this.consumers) consumer.fill();
    }
  }

  override inserted(receipts: readonly (string | null)[]): void {
    for (const receipt of receipts) this.confirm(receipt);
  }

  override notInserted(receipts: readonly (string | null)[], error: unknown): boolean {
    this.fail(error, { receipt: receipts.find((receipt) => receipt !== null) ?? null });
    return false;
  }

  override settled(receipt: string | null): void {
    this.confirm(receipt);
  }

  override notSettled(receipts: readonly (string | null)[], error: unknown): void {
    this.fail(error, { receipt: receipts[0] ?? null });
  }

  protected override readFrame(): boolean {
    const frame = this.#nextFrame();
    if (frame === null) return false;
    this.counts.frames += 1;
    try {
      if (this.isOpen) this.#execute(frame);
      else this.#connect(frame);
    } catch (error) {
      this.fail(error, { receipt: headerOf(frame.headers, 'receipt') });
    }
    return true;
  }

  protected override get receivingBytes(): number {
    const { received, max } = this.input.body;
    return received > UNCOUNTED_BYTES ? max : 0;
  }

  protected override get openBytes(): number {
    return this.transactions.bytes;
  }

  protected override releaseHeld(countTries: boolean): void {
    super.releaseHeld(countTries);
    this.transactions.clear();
  }

  /** @throws QuaysideError `overloaded` if the open transactions may not have so many bytes */
  checkOpen(bytes: number): void {
    if (bytes > UNCOUNTED_BYTES && this.#server.bodies.isFull(this.owner)) throw tooManyBytes();
  }

  #nextFrame(): StompFrame | null {
    try {
      return this.input.next();
    } catch (error) {
      this.fail(error, { receipt: this.input.receipt });
      return null;
    }
  }

  #connect(frame: StompFrame): void {
    if (frame.command !== 'CONNECT' && frame.command !== 'STOMP') {
      throw malformed(`The first frame is ${quoteBytes(frame.command)}. Allowed: CONNECT, STOMP.`);
    }
    const request = readConnect(frame);
    const { version } = request;
    if (version === null) {
      const accepted = headerOf(frame.headers, 'accept-version') ?? '';
      const message = `Unsupported accept-version ${quoteBytes(accepted)}. Allowed: ${VERSIONS.join(', ')}.`;
      this.fail(malformed(message, 'accept-version'), { versions: VERSIONS });
      return;
    }
    this.login(this.#authenticate(request), () => this.#open(version, request));
  }

  /** @throws QuaysideError */
  async #authenticate(request: ConnectRequest): Promise<User> {
    const { authenticator } = this.#server;
    const { address } = this.origin;
    const hasNoCredentials = request.login === '' && request.passcode === '';
    const hasCertificate = this.#certificate.name !== null || this.#certificate.isSent;
    if (hasNoCredentials && hasCertificate) return loginCertified(authenticator, this.#certificate, address);
    const message = 'CONNECT needs the login and passcode of a user.';
    return authenticate(authenticator, request, address, message);
  }

  #open(version: Version, { canSendMs, wantsMs }: ConnectRequest): void {
    const { sendBeatMs, wantBeatMs } = this.#server.options;
    this.writer.addFrame(
      frameText(this.input.rules, 'CONNECTED', [
        'version',
        version,
        'session',
        this.id,
        'server',
        `Quayside/${this.#server.version}`,
        'heart-beat',
        `${sendBeatMs},${wantBeatMs}`,
      ]),
    );
    this.#version = version;
    this.input.rules = RULES[version];
    this.startHeartBeat(
      wantsMs === 0 ? 0 : Math.max(sendBeatMs, wantsMs),
      canSendMs === 0 || wantBeatMs === 0 ? 0 : Math.max(canSendMs, wantBeatMs),
      () => this.writer.beat(),
    );
  }

  #execute(frame: StompFrame): void {
    const { version } = this;
    const command = COMMANDS[frame.command];
    if (command === undefined || command.since > version) {
      const known = Object.keys(COMMANDS).filter((name) => (COMMANDS[name]?.since ?? version) <= version);
      throw malformed(
        `STOMP ${version} has no command ${quoteBytes(frame.command)}. Allowed: ${known.join(', ')}.`,
      );
    }
    command.run(this, frame);
  }
}

/** What CONNECT asks for. */
interface ConnectRequest extends Credentials {
  /** The highest version that both sides support; null if there is none. */
  readonly version: Version | null;
  /** How often the client can send, and wants to receive, a heart-beat, ms; 0: it cannot, or wants none. */
  readonly canSendMs: number;
  readonly wantsMs: number;
}

const HEART_BEAT = /^([0-9]{1,15}),([0-9]{1,15})$/;

/** @throws QuaysideError `malformed-request` */
function readConnect({ headers }: StompFrame): ConnectRequest {
  const accepted = headerOf(headers, 'accept-version');
  const version = accepted === null ? '1.0' : highestCommonVersion(accepted);
  // `CONNECT_RULES` do not trim, since the version is known only after this frame; 1.0 trims.
  const text = (value: string | null): string =>
    version === '1.0' ? trimSpaces(value ?? '') : (value ?? '');
  const wanted = text(headerOf(headers, 'heart-beat') ?? '0,0');
  const beats = HEART_BEAT.exec(wanted);
  if (beats === null) {
    throw malformed(
      `Invalid heart-beat ${quoteBytes(wanted)}. Allowed: two whole numbers of milliseconds, such as 0,10000.`,
      'heart-beat',
    );
  }
  return {
    version,
    login: text(headerOf(headers, 'login')),
    passcode: text(headerOf(headers, 'passcode')),
    canSendMs: Number(beats[1]),
    wantsMs: Number(beats[2]),
  };
}

function highestCommonVersion(accepted: string): Version | null {
  const named = accepted.split(',').map((version) => version.trim());
  return VERSIONS.findLast((version) => named.includes(version)) ?? null;
}

const DESTINATION = /^\/(?:q|queue)\/([^/]+)\/([^/]+)$/;

/**
 * The names of `/q/<namespace>/<queue>`, each percent-encoded.
 * @throws QuaysideError `invalid-name`, `invalid-parameter`
 */
function parseDestination(bytes: string): QueueKey {
  const text = decodeText('destination', bytes);
  const [, ns, name] = DESTINATION.exec(text) ?? [];
  if (ns !== undefined && name !== undefined) return decodeNames(ns, name, 'destination');
  const allowed = 'Use /q/<namespace>/<queue>, with a / within a name as %2F.';
  throw invalidDestination(`The destination ${quote(text)} does not name a queue. ${allowed}`, 'destination');
}

/** Writes the frames of one STOMP connection. */
export class StompWriter extends SocketWriter {
  /**
   * What follows the body of each frame. If a connection is lost and only the LF is missing, a popped element returns
   * to its queue although the client has seen it, just as if any other part of its frame were missing.
   */
  readonly #frameEnd: string;

  /**
   * @param trailingNewline whether an LF follows each frame: PHP's extension expects it, and loses frames without it
   */
  constructor(socket: ClientSocket, options: WriterOptions, trailingNewline: boolean) {
    super(socket, options);
    this.#frameEnd = trailingNewline ? '\0\n' : '\0';
  }

  /** Adds a frame. @param frame without its final NUL, with one character per byte */
  addFrame(frame: string): void {
    this.add(null, frame + this.#frameEnd);
  }

  /** Adds a MESSAGE. @param head up to the blank line, with one character per byte */
  addMessage(head: string, body: Uint8Array, observer: WriteObserver): void {
    const bytes = body instanceof Buffer ? body : Buffer.from(body.buffer, body.byteOffset, body.byteLength);
    if (bytes.length < JOINED_BYTES)
      this.add(observer, `${head}${bytes.toString('latin1')}${this.#frameEnd}`);
    else this.add(observer, head, bytes, this.#frameEnd);
  }

  /** Sends a line end, unless other bytes wait to be written, which serve as a heart-beat, too. */
  beat(): void {
    if (this.bytes === 0) this.add(null, '\n');
  }
}
