import { UNCOUNTED_BYTES } from '../access/body-limit.ts';
import { addressBlock } from '../access/networks.ts';
import { overloaded, type QuaysideError } from '../model/errors.ts';
import { ClientSession, MAX_OUTPUT_BYTES } from '../session/client-session.ts';
import { type NewConnection, type SessionDependencies, SessionServer } from '../session/server.ts';
import { type ClientSocket, SocketWriter } from '../session/socket-writer.ts';
import { quoteBytes } from '../util/byte-string.ts';
import { parseAddress } from './address.ts';
import { ConnectionEndpoint, type ConnectionHost } from './core/connection.ts';
import { FrameSplitter } from './core/frames.ts';
import type { Endpoint } from './core/link.ts';
import { type AmqpError, framingError, ProtocolError } from './core/protocol-error.ts';
import { SaslLogin } from './core/sasl.ts';
import type { SessionEndpoint } from './core/session.ts';
import { wireError } from './errors.ts';
import { AMQP_LIMITS } from './limits.ts';
import {
  IncomingLink,
  OutgoingLink,
  openLink,
  type PendingInsertReply,
  type PendingSettleReply,
  type SessionLink,
} from './links.ts';
import type { AmqpOptions } from './options.ts';

/** The protocol headers of AMQP 1.0.0, without and with SASL. */
const AMQP_HEADER = Buffer.from('AMQP\0\x01\0\0', 'latin1');
const SASL_HEADER = Buffer.from('AMQP\x03\x01\0\0', 'latin1');
/** A frame without a body (transport, 2.4.5). */
const HEART_BEAT = Buffer.from([0, 0, 0, 8, 2, 0, 0, 0]);
const TLS_HANDSHAKE = 0x16;

/** What the client has to send next. */
type Phase = 'sasl-header' | 'sasl' | 'amqp-header' | 'frames';

/** The AMQP 1.0 front end. When the server stops, its connections get a `close` with `amqp:connection:forced`. */
export class AmqpServer extends SessionServer<AmqpOptions> {
  /** As in the OASIS standard "AMQP WebSocket Binding", 1.0. */
  readonly webSocket = { subprotocols: ['amqp'], usesText: false };
  /** The first id of transfers and deliveries, which wrap at 2^32. */
  readonly firstId: number;

  constructor(dependencies: SessionDependencies<AmqpOptions>, firstId = 0) {
    super('AMQP', dependencies);
    this.firstId = firstId;
  }

  protected override openSession(socket: ClientSocket, connection: NewConnection): AmqpConnection {
    return new AmqpConnection(this, socket, connection);
  }
}

/** The session of one AMQP client: its login, its links, and the endpoint that implements the protocol. */
export class AmqpConnection
  extends ClientSession<PendingInsertReply, PendingSettleReply>
  implements ConnectionHost
{
  readonly input = new FrameSplitter(AMQP_LIMITS.loginBytes);
  readonly writer: SocketWriter;
  readonly links = new Set<SessionLink>();
  /** Maximum size of a message's body, and of an encoded message. */
  readonly bodyLimit: number;
  readonly messageBytes: number;
  readonly #server: AmqpServer;
  readonly #saslLogin: SaslLogin;
  readonly #endpoint: ConnectionEndpoint;
  /** Sessions whose links may send more deliveries. */
  readonly #sessionsWithCapacity = new Set<SessionEndpoint>();
  /** Links that may take only once their session has places for more unsettled deliveries, in order of waiting. */
  readonly awaitingPlace = new Set<OutgoingLink>();
  #phase: Phase = 'sasl-header';
  #isTurnPlanned = false;

  constructor(server: AmqpServer, socket: ClientSocket, connection: NewConnection) {
    super('amqp', server, socket, connection, parseAddress);
    const { authenticator, version, options, firstId } = server;
    this.#server = server;
    this.bodyLimit = options.bodyLimit;
    this.messageBytes = options.bodyLimit + AMQP_LIMITS.sectionBytes;
    this.writer = new SocketWriter(socket, this.writerOptions);
    this.#saslLogin = new SaslLogin(authenticator, options.anonymousUser, connection, (frame) =>
      this.writer.add(null, frame),
    );
    this.#endpoint = new ConnectionEndpoint(this, {
      containerId: `quayside-${this.id}`,
      idleTimeoutMs: options.idleTimeoutMs,
      version,
      messageBytes: this.messageBytes,
      firstId,
    });
    this.#expectOpen();
  }

  /** Ends the session with a `close`, or during the login with a SASL outcome. May be called repeatedly. */
  override fail(thrown: unknown): void {
    if (!(thrown instanceof ProtocolError)) {
      this.failWith(thrown, (error) => this.#writeClose(wireError(error)));
      return;
    }
    if (this.isEnding) return;
    const { condition, description } = thrown;
    const fields = { connection: this.id, address: this.origin.address, condition, description };
    const isLogged =
      this.isOpen || this.#server.lineLimits.beforeLogin.admit(addressBlock(this.origin.address));
    this.#server.log[isLogged ? 'info' : 'debug'](fields, 'an AMQP connection was ended');
    this.counts.errors += 1;
    this.finish(() => this.#writeClose(thrown), true);
  }

  /** Ends a link with an error. No effect if it has ended. */
  failLink(link: SessionLink, thrown: unknown): void {
    if (this.links.has(link)) this.endLink(link, this.publicError(thrown));
  }

  /** As `failLink`, with the result of `publicError`, which has logged the error. */
  endLink(link: SessionLink, error: QuaysideError): void {
    if (!this.links.has(link)) return;
    // All links would end for the same reason, so end the session: elements then return without a failed try.
    if (error.code === 'shutting-down') {
      this.endByServer(error);
      return;
    }
    if (link instanceof OutgoingLink && !this.isEnding) link.markSeen();
    link.stop(true);
    link.endpoint.detach(wireError(error));
  }

  /** Removes a link that has ended. */
  removeLink(link: SessionLink): void {
    this.links.delete(link);
    this.counts.links -= 1;
    // This may free places in the session's window for other links. If the connection ends, the links' unsettled
    // deliveries are still known: outcomes that the engine has yet to confirm are answered before the `close`.
    this.guard(() => link.endpoint.release(this.isEnding));
  }

  override endTurn(): void {
    if (this.#sessionsWithCapacity.size > 0) {
      for (const session of this.#sessionsWithCapacity) this.#admit(session);
      for (const link of this.links) {
        if (!(link instanceof IncomingLink) && this.#sessionsWithCapacity.has(link.endpoint.session))
          this.planFill(link);
      }
      this.#sessionsWithCapacity.clear();
    }
    super.endTurn();
    this.#endpoint.flush();
  }

  /** A link may take only once its session has places for more unsettled deliveries. */
  awaitPlace(link: OutgoingLink): void {
    const { session } = link.endpoint;
    this.awaitingPlace.add(link);
    // There are fewer places than it requested: let it request fewer.
    if (session.available > session.taking) this.onSessionCapacity(session);
  }

  /** A take in progress ended: its places are free, or will be used in this turn. */
  onPlaces(session: SessionEndpoint): void {
    if (this.awaitingPlace.size > 0) this.onSessionCapacity(session);
  }

  /** Lets as many links of a session take as it has places, those first that have waited longest. */
  #admit(session: SessionEndpoint): void {
    let places = session.sendable - session.taking;
    for (const link of this.awaitingPlace) {
      if (places <= 0) return;
      if (link.endpoint.session !== session) continue;
      places -= 1;
      link.retake();
    }
  }

  inserted(replies: readonly (PendingInsertReply | null)[]): void {
    for (const reply of replies) reply?.link.accept(reply);
  }

  notInserted(replies: readonly (PendingInsertReply | null)[], thrown: unknown): boolean {
    // Called once for all replies, since it logs the error.
    const error = this.publicError(thrown);
    for (const reply of replies) reply?.link.refuse(reply, error);
    return true;
  }

  settled(reply: PendingSettleReply | null): void {
    if (reply === null || reply.delivery === null) return;
    reply.link.endpoint.session.settleSent(reply.delivery);
  }

  notSettled(replies: readonly (PendingSettleReply | null)[], error: unknown): void {
    for (const reply of replies) reply?.link.fail(error);
  }

  protected override onCapacity(): void {
    if (this.#endpoint.queuedBytes > 0) this.guard(() => this.#endpoint.sendQueued());
    // Pre-settled messages that leave the queue of their session free places.
    for (const { endpoint } of this.awaitingPlace) this.onSessionCapacity(endpoint.session);
    super.onCapacity();
  }

  // What the protocol endpoint uses.

  /**
   * A message may have tens of thousands of frames: those that are written at once delay other clients. An ending
   * session drops its messages, and a closed writer has no bytes.
   */
  get canWrite(): boolean {
    return !this.isEnding && this.writer.bytes < MAX_OUTPUT_BYTES;
  }

  planFlush(): void {
    if (this.#isTurnPlanned) return;
    this.#isTurnPlanned = true;
    process.nextTick(() => {
      this.#isTurnPlanned = false;
      this.guard(() => this.endTurn());
    });
  }

  onOpen(idleTimeoutMs: number): void {
    this.stopExpecting();
    this.startHeartBeat(idleTimeoutMs, this.#server.options.idleTimeoutMs, () => {
      if (this.writer.bytes === 0) this.writer.add(null, HEART_BEAT);
    });
  }

  onAttach(endpoint: Endpoint): void {
    try {
      if (this.links.size >= AMQP_LIMITS.links) {
        throw overloaded(`This connection has ${AMQP_LIMITS.links} links, the maximum.`);
      }
      this.links.add(openLink(this, endpoint));
      this.counts.links += 1;
    } catch (error) {
      endpoint.refuse(wireError(this.publicError(error)));
    }
  }

  onSessionCapacity(session: SessionEndpoint): void {
    this.#sessionsWithCapacity.add(session);
    this.planFlush();
  }

  onClose(): void {
    this.endByClient(() => this.#endpoint.close(null));
  }

  /** The size of a message is known only at its end. */
  protected override get receivingBytes(): number {
    const { begunBytes } = this.#endpoint;
    return begunBytes > UNCOUNTED_BYTES ? Math.max(begunBytes, this.messageBytes) : 0;
  }

  /**
   * Consumers need not be filled when bytes leave the queue: they move to the writer, or are dropped before a frame is
   * written, and the writer fills consumers after each write.
   */
  protected override get queuedBytes(): number {
    return this.#endpoint.queuedBytes;
  }

  protected override readFrame(): boolean {
    switch (this.#phase) {
      case 'sasl-header':
        return this.#readSaslHeader();
      case 'sasl':
        return this.#readSaslFrame();
      case 'amqp-header': {
        const name = 'the header of AMQP 1.0 (protocol 0, version 1.0.0) after the login';
        return this.#readHeader(AMQP_HEADER, name, 'frames');
      }
      case 'frames':
        return this.#readFrame();
    }
  }

  protected override get rightHolders(): Iterable<SessionLink> {
    return this.links;
  }

  protected override releaseHeld(countTries: boolean): void {
    for (const link of [...this.links]) this.guard(() => link.stop(countTries));
  }

  #expectOpen(): void {
    const { loginTimeoutMs } = this.#server.options;
    this.expectWithin(
      loginTimeoutMs,
      `The client has not logged in and opened the connection within ${loginTimeoutMs} ms.`,
    );
  }

  /** Reads a protocol header, and replies with the same. @param name for error messages */
  #readHeader(expected: Buffer, name: string, next: Phase): boolean {
    const header = this.input.raw(expected.length);
    if (header === null) return false;
    if (!header.equals(expected)) throw wrongHeader(header, name);
    this.writer.add(null, expected);
    this.#phase = next;
    return true;
  }

  #readSaslHeader(): boolean {
    const name = 'the SASL header of AMQP 1.0 (protocol 3, version 1.0.0)';
    if (!this.#readHeader(SASL_HEADER, name, 'sasl')) return false;
    this.#saslLogin.offer();
    return true;
  }

  #readSaslFrame(): boolean {
    const splitter = this.input;
    if (!splitter.next()) return false;
    const check = this.#saslLogin.take(splitter.bytes, splitter.start, splitter.end);
    if (check !== null) this.login(check, () => this.#loggedIn());
    return true;
  }

  #loggedIn(): void {
    this.#saslLogin.end(null);
    this.#phase = 'amqp-header';
    this.input.maxBytes = AMQP_LIMITS.frameBytes;
    this.#expectOpen();
  }

  #readFrame(): boolean {
    const splitter = this.input;
    if (!splitter.next()) return false;
    this.counts.frames += 1;
    this.#endpoint.receive(splitter.bytes, splitter.start, splitter.end);
    return true;
  }

  /** Writes the closing frame for the phase of the connection. */
  #writeClose(error: AmqpError): void {
    switch (this.#phase) {
      case 'sasl-header':
        this.writer.add(null, SASL_HEADER);
        break;
      case 'sasl':
        this.#saslLogin.end(error.condition);
        break;
      case 'amqp-header':
        this.writer.add(null, AMQP_HEADER);
        break;
      case 'frames':
        this.#endpoint.close(error);
        break;
    }
  }
}

/** The error for a client that sent something other than the expected protocol header. */
function wrongHeader(header: Buffer, expected: string): ProtocolError {
  if (header[0] === TLS_HANDSHAKE) {
    return framingError(`The client starts TLS, but this port is without TLS. Expected: ${expected}.`);
  }
  if (header.toString('latin1', 0, 4) !== 'AMQP') {
    return framingError(
      `The connection starts with ${quoteBytes(header.toString('latin1'))}. Expected: ${expected}.`,
    );
  }
  const [id, major, minor, revision] = header.subarray(4);
  // RabbitMQ's and most other clients use AMQP 0-9-1, whose header has another layout.
  const old = id === 0 && major === 0 ? ` (AMQP 0-${minor}-${revision}, another protocol)` : '';
  return framingError(
    `The client sent the header of protocol ${id}, version ${major}.${minor}.${revision}${old}. Expected: ${expected}.`,
  );
}
