import { isUtf8 } from 'node:buffer';
import { Duplex } from 'node:stream';
import { type WebSocket, WebSocketServer } from 'ws';
import { UNCOUNTED_BYTES } from '../access/body-limit.ts';
import { strangersOf } from '../access/networks.ts';
import { invalidParameter } from '../model/errors.ts';
import { wrongMember } from '../model/members.ts';
import type { Clock } from '../util/clock.ts';
import type { InputTurns } from '../util/input-turns.ts';
import { quote } from '../util/quote.ts';
import { type UpgradeHandler, type UpgradeRequest, WEB_SOCKET_VERSION } from '../util/upgrade.ts';
import { LOGIN_BYTES } from './client-session.ts';
import type { SessionServer } from './server.ts';
import type { ClientSocket } from './socket-writer.ts';

/** 16 bytes in Base64. */
const KEY = /^[+/0-9A-Za-z]{22}==$/;

/** WebSocket bytes per byte of payload, at most, if a client sends its login byte by byte. */
const LOGIN_OVERHEAD = 8;
/**
 * Each fragment of a message retains everything that was read together with it, including control frames. So the bytes
 * received for one message are limited to this many times the largest message plus `SLACK_BYTES`. `MAX_PARTS` limits
 * its fragments, and the chunks of an incomplete one.
 */
const MESSAGE_OVERHEAD = 2;
const SLACK_BYTES = 64 * 1024;
/**
 * Maximum fragments of a message, and chunks of a fragment: `MAX_PARTS`, or more if the largest message has more than
 * `PART_BYTES` for each.
 */
const MAX_PARTS = 16 * 1024;
const PART_BYTES = 256;
/** Header size of a client's control frame, and the size of the longest such frame. */
const CONTROL_HEAD_BYTES = 6;
const MAX_CONTROL_BYTES = CONTROL_HEAD_BYTES + 125;
/** Messages and control frames after which other clients are served. One turn of the event loop may read 300,000. */
const MAX_TURN_FRAMES = 4096;
/** Pings of a client that does not read are not answered while more bytes than this wait for it. */
const MAX_PONG_BACKLOG = 64 * 1024;
const NORMAL_CLOSURE = 1000;
const UNSUPPORTED_DATA = 1003;
const TOO_BIG = 1009;

/**
 * Lets clients connect to a session server over WebSocket. The server's limits apply as they do over TCP: connections,
 * bytes before the login, frames, heart-beats, and pauses in reading.
 * @param maxMessageBytes maximum size of a message from a client
 * @returns a handler that throws QuaysideError `upgrade-required` for another version, `invalid-parameter` for another
 * subprotocol or an invalid key, or as `SessionServer.checkCapacity`
 */
export function webSocketUpgrades(server: SessionServer, maxMessageBytes: number): UpgradeHandler {
  const maxParts = Math.max(MAX_PARTS, Math.ceil(maxMessageBytes / PART_BYTES));
  const webSockets = new WebSocketServer({
    noServer: true,
    clientTracking: false,
    // A few compressed bytes could expand to many. Also, the compressed size could reveal a secret that is sent next
    // to data of an attacker's choice.
    perMessageDeflate: false,
    autoPong: false,
    maxPayload: maxMessageBytes,
    maxFragments: maxParts,
    maxBufferedChunks: maxParts,
  });
  return (upgraded) => {
    const { rawHeaders, address, socket, head } = upgraded;
    const headers = headersOf(rawHeaders);
    checkVersionAndKey(headers);
    // `ws` chooses the first subprotocol of the list.
    const subprotocol = chosenOf(server.webSocket.subprotocols, headers['sec-websocket-protocol'] ?? '');
    server.checkCapacity();
    upgraded.onAccepted();
    const request = { method: 'GET', headers: { ...headers, 'sec-websocket-protocol': subprotocol } };
    webSockets.handleUpgrade(request, socket, head, (webSocket) => {
      server.accept(new WebSocketStream(webSocket, upgraded, server, maxMessageBytes), address);
    });
  };
}

function checkVersionAndKey(headers: Readonly<Record<string, string>>): void {
  const { 'sec-websocket-version': version, 'sec-websocket-key': key } = headers;
  if (version !== WEB_SOCKET_VERSION) {
    throw wrongMember('sec-websocket-version', version, WEB_SOCKET_VERSION).with({
      code: 'upgrade-required',
    });
  }
  if (key === undefined || !KEY.test(key)) throw wrongMember('sec-websocket-key', key, '16 bytes in Base64');
}

/** The preferred one of the subprotocols that a client offers, a list with commas. */
function chosenOf(subprotocols: readonly string[], offer: string): string {
  const offered = new Set(offer.split(',').map((name) => name.trim()));
  const chosen = subprotocols.find((name) => offered.has(name));
  if (chosen !== undefined) return chosen;
  throw invalidParameter(
    'sec-websocket-protocol',
    `The WebSocket subprotocol ${quote(offer)} is not served here. Allowed: ${subprotocols.join(', ')}.`,
  );
}

/**
 * A WebSocket as a stream of bytes. The boundaries of received messages have no meaning. Each write, which has whole
 * frames, is sent as one message.
 */
class WebSocketStream extends Duplex implements ClientSocket {
  readonly transport: Duplex;
  readonly #webSocket: WebSocket;
  readonly #usesText: boolean;
  readonly #countLogin: (user: string) => void;
  /** The user, or before the login all clients of the network that have not logged in. */
  #user: string;
  readonly #turns: InputTurns;
  readonly #clock: Clock;
  readonly #maxMessageBytes: number;
  /** Maximum bytes received for one message, including overhead. */
  readonly #maxBytes: number;
  #loginBytes: number | null = LOGIN_BYTES * LOGIN_OVERHEAD;
  /** Bytes received since the last message: all of them, and those of control frames. */
  #bytes = 0;
  #controlBytes = 0;
  /** Messages of the last chunk. */
  #received: Buffer[] = [];
  /** A message ended in the last chunk. */
  #hasEnded = false;
  /** Payload of the last ping in this chunk. The protocol allows a server to answer only that one. */
  #ping: Buffer | null = null;
  /** Messages and control frames since other clients were served. */
  #framesSinceYield = 0;
  #isYielding = false;

  constructor(
    webSocket: WebSocket,
    { socket: transport, address, onLogin }: UpgradeRequest,
    { webSocket: { usesText }, inputTurns, clock }: SessionServer,
    maxMessageBytes: number,
  ) {
    super();
    this.#user = strangersOf(address);
    this.#turns = inputTurns;
    this.#clock = clock;
    this.transport = transport;
    this.#webSocket = webSocket;
    this.#usesText = usesText;
    this.#maxMessageBytes = maxMessageBytes;
    this.#maxBytes = MESSAGE_OVERHEAD * maxMessageBytes + SLACK_BYTES;
    this.#countLogin = onLogin;
    webSocket.on('message', (data: Buffer, isBinary: boolean) => {
      this.#hasEnded = true;
      this.#framesSinceYield += 1;
      if (!isBinary && !usesText) webSocket.close(UNSUPPORTED_DATA);
      else this.#received.push(data);
    });
    webSocket.on('ping', (data: Buffer) => {
      this.#countControlFrame(data);
      this.#ping = data;
    });
    webSocket.on('pong', (data: Buffer) => this.#countControlFrame(data));
    // Ignored: `close` follows every error.
    webSocket.on('error', () => {});
    webSocket.on('close', () => {
      this.#passOn();
      this.push(null);
    });
    const [parse] = transport.listeners('data') as ((bytes: Buffer) => void)[];
    if (parse !== undefined) this.#parseInTurn(parse);
  }

  /** @param parse the listener of `ws`, which parses whole chunks: 10,000 fragments take 10 ms */
  #parseInTurn(parse: (bytes: Buffer) => void): void {
    const { transport } = this;
    const turns = this.#turns;
    transport.off('data', parse);
    const onData = (bytes: Buffer): void => {
      if (turns.isUsedUp) this.#yieldToOthers();
      if (this.#isYielding) {
        transport.pause();
        transport.unshift(bytes);
        return;
      }
      const startedAt = this.#clock.monotonic();
      parse.call(transport, bytes);
      turns.count(this.#clock.monotonic() - startedAt);
      this.#passOn();
      this.#countBytes(bytes.length);
      this.#answerPing();
      if (this.#framesSinceYield >= MAX_TURN_FRAMES) this.#yieldToOthers();
    };
    // With `listener`, `ws` removes this one in place of its own after a close frame, an invalid frame, and `close`. It
    // would then pause the socket instead of parsing, so that the server would not notice the end of the connection.
    transport.on('data', Object.assign(onData, { listener: parse }));
  }

  /** Lifts the limit on bytes before the login. */
  onLogin(user: string): void {
    this.#countLogin(user);
    this.#user = user;
    this.#loginBytes = null;
  }

  /** How many bytes the message that is being received may have; 0 if it is small so far. */
  get receivingBytes(): number {
    return this.#bytes > UNCOUNTED_BYTES ? Math.max(this.#bytes, this.#maxMessageBytes) : 0;
  }

  override pause(): this {
    this.#webSocket.pause();
    return super.pause();
  }

  override resume(): this {
    super.resume();
    this.#resumeReading();
    return this;
  }

  override _read(): void {
    this.#resumeReading();
  }

  #resumeReading(): void {
    if (this.#isYielding || this.isPaused() || this.readableLength >= this.readableHighWaterMark) return;
    this.#webSocket.resume();
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, done: (error?: Error | null) => void): void {
    this.#send(chunk, done);
  }

  override _writev(chunks: { readonly chunk: Buffer }[], done: (error?: Error | null) => void): void {
    this.#send(Buffer.concat(chunks.map(({ chunk }) => chunk)), done);
  }

  override _final(done: () => void): void {
    this.#webSocket.close(NORMAL_CLOSURE);
    done();
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#webSocket.terminate();
    done(error);
  }

  #send(bytes: Buffer, done: (error?: Error | null) => void): void {
    let isDone = false;
    const once = (error?: Error): void => {
      if (isDone) return;
      isDone = true;
      done(error);
    };
    const webSocket = this.#webSocket;
    // Fail synchronously, as a socket does: the writer then knows that no byte was sent.
    if (webSocket.readyState !== webSocket.OPEN) {
      done(new Error('The WebSocket is closing.'));
      return;
    }
    webSocket.send(bytes, { binary: !(this.#usesText && isUtf8(bytes)) }, once);
    // Complete synchronously if the kernel has all bytes, as a socket does: the writer relies on that.
    if (webSocket.readyState === webSocket.OPEN && this.transport.writableLength === 0) once();
  }

  #countControlFrame(payload: Buffer): void {
    this.#controlBytes += CONTROL_HEAD_BYTES + payload.length;
    this.#framesSinceYield += 1;
  }

  #answerPing(): void {
    if (this.#ping !== null && this.transport.writableLength < MAX_PONG_BACKLOG)
      this.#webSocket.pong(this.#ping);
    this.#ping = null;
  }

  /** Passes on the messages of a chunk together: there may be 9,000, and each alone takes 5 µs. */
  #passOn(): void {
    const [first, ...more] = this.#received;
    if (first === undefined) return;
    this.#received = [];
    if (!this.push(more.length === 0 ? first : Buffer.concat([first, ...more]))) this.#webSocket.pause();
  }

  /** Serves other clients before the next chunk. */
  #yieldToOthers(): void {
    this.#framesSinceYield = 0;
    if (this.#isYielding) return;
    this.#isYielding = true;
    this.#webSocket.pause();
    this.#turns.wait(this.#user, () => {
      this.#isYielding = false;
      this.#resumeReading();
      // Emits what was read before, so that it is parsed in this turn and not with that of all others that continue.
      this.transport.read();
    });
  }

  /** Limits the bytes of an incomplete message, which `ws` keeps in memory until it is complete. */
  #countBytes(bytes: number): void {
    if (this.#loginBytes !== null) {
      this.#loginBytes -= bytes;
      if (this.#loginBytes < 0) this.#closeTooBig('before the login');
    }
    if (this.#hasEnded) {
      this.#hasEnded = false;
      this.#bytes = 0;
      this.#controlBytes = 0;
      return;
    }
    this.#bytes += bytes;
    // Between messages, control frames retain nothing and are not counted. The last one may be incomplete.
    if (this.#bytes - this.#controlBytes <= MAX_CONTROL_BYTES) {
      this.#bytes = Math.max(0, this.#bytes - this.#controlBytes);
      this.#controlBytes = 0;
    }
    if (this.#bytes > this.#maxBytes) this.#closeTooBig('for one message');
  }

  #closeTooBig(when: string): void {
    this.#webSocket.close(TOO_BIG, `Too many bytes ${when}.`);
    this.destroy();
  }
}

/** Headers by lower-case name. Of repeated headers, the first counts; subprotocol lists are joined. */
function headersOf(rawHeaders: readonly string[]): Readonly<Record<string, string>> {
  const headers: Record<string, string> = {};
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = (rawHeaders[at] as string).toLowerCase();
    const value = rawHeaders[at + 1] as string;
    if (name === 'sec-websocket-protocol' && headers[name] !== undefined) headers[name] += `, ${value}`;
    else headers[name] ??= value;
  }
  return headers;
}
