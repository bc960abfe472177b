import type { Socket } from 'node:net';
import type { RenewUser } from '../access/user.ts';
import { QuaysideError } from '../model/errors.ts';
import type { SessionCounts } from '../session/counts.ts';
import type { Arrival, Conversation } from '../session/server.ts';
import type { CancelTimer } from '../util/clock.ts';
import { FrameParser } from './codec/parser.ts';
import type { HeadRules } from './codec/version.ts';
import { HeartBeat } from './heart-beat.ts';
import { STOMP_LIMITS } from './limits.ts';
import type { StompParts } from './options.ts';
import { Outbox } from './outbox.ts';
import { type Peer, Session } from './session.ts';

/** Why nothing is read from the client now. Each is one bit. */
const HOLDS = { login: 1, work: 2, output: 4 } as const;

/** A client that does not take its receipts is not listened to while this much waits for it. */
const MOST_OUTPUT_BYTES = 1024 * 1024;
/** How long a client has to read the last frame and close, before the connection is cut. */
const LINGER_MS = 2_000;

/**
 * One TCP or TLS connection: cuts what comes into frames for its session and carries away what that says.
 * Reading rests while the client has too much under way, so that TCP slows it down.
 */
export class Connection implements Peer, Conversation {
  readonly outbox: Outbox;
  /** Of the client. */
  readonly address: string;
  /** Resolves when the connection is closed and the engine has answered all that the session asked for. */
  readonly done: Promise<void>;
  readonly #over = Promise.withResolvers<void>();
  readonly #parts: StompParts;
  readonly #counts: SessionCounts;
  readonly #socket: Socket;
  readonly #parser: FrameParser;
  readonly #session: Session;
  #isLoggedIn = false;
  #isDeaf = false;
  #isParsing = false;
  #received = 0;
  #holds = 0;
  #heartBeat: HeartBeat | null = null;
  #cancelTimer: CancelTimer | null;

  constructor(parts: StompParts, socket: Socket, { id, address, counts }: Arrival) {
    this.address = address;
    const { clock, options } = parts;
    this.done = this.#over.promise;
    this.#parts = parts;
    this.#counts = counts;
    this.#socket = socket;
    this.outbox = new Outbox(
      socket,
      {
        clock,
        counts,
        stallTimeoutMs: options.stallTimeoutMs,
        onRoom: () => this.#onRoom(),
        onStall: () => socket.destroy(),
      },
      options.trailingNewline,
    );
    const { headBytes, headers } = STOMP_LIMITS;
    this.#parser = new FrameParser({ headBytes, headers, bodyBytes: options.bodyLimit });
    this.#session = new Session(parts, counts, id, this);
    this.#cancelTimer = clock.after(options.loginTimeoutMs, () => {
      this.#session.fail(tooLate(`No whole CONNECT frame came within ${options.loginTimeoutMs} ms.`), null);
    });
    this.#listen();
  }

  /** Ends the session, with an ERROR unless the node stops, then the connection. */
  end(reason: QuaysideError): void {
    this.#session.fail(reason, null);
  }

  renewUser(renew: RenewUser): void {
    this.#session.renewUser(renew);
  }

  destroy(): void {
    this.#socket.destroy();
  }

  loggedIn(rules: HeadRules, { sendMs, hearMs }: { sendMs: number; hearMs: number }): void {
    this.#isLoggedIn = true;
    this.#parser.rules = rules;
    this.#heartBeat = new HeartBeat({
      clock: this.#parts.clock,
      sendMs,
      hearMs,
      send: () => this.outbox.beat(),
      onSilence: () =>
        this.#session.fail(
          tooLate(`Nothing came for twice the ${hearMs} ms of the agreed heart-beat.`),
          null,
        ),
    });
  }

  holdFrames(isHeld: boolean): void {
    // The client has said what it had to; what takes time now is ours.
    this.#cancelTimer?.();
    this.#setHold(HOLDS.login, isHeld);
  }

  workChanged(): void {
    this.#setHold(HOLDS.work, this.#session.work.isFull);
  }

  deafen(): void {
    this.#isDeaf = true;
    this.#cancelTimer?.();
    this.#heartBeat?.stop();
    // What still comes is thrown away, so that the end of the stream is seen.
    this.#socket.resume();
  }

  close(): void {
    this.#cancelTimer = this.#parts.clock.after(LINGER_MS, () => this.#socket.destroy());
    this.outbox.whenEmpty(() => this.#socket.end());
  }

  #listen(): void {
    const socket = this.#socket;
    socket.on('data', (bytes: Buffer) => this.#read(bytes));
    socket.on('end', () => this.#session.peerEnded());
    // What went wrong does not matter: `close` follows.
    socket.on('error', () => {});
    socket.on('close', () => this.#closed());
  }

  #read(bytes: Buffer): void {
    this.#heartBeat?.heard();
    this.#counts.receivedBytes += bytes.length;
    if (this.#isDeaf) return;
    if (!this.#isLoggedIn) {
      this.#received += bytes.length;
      if (this.#received > STOMP_LIMITS.loginBytes) {
        const most = `More than the ${STOMP_LIMITS.loginBytes} bytes that are allowed came before CONNECTED.`;
        this.#session.fail(new QuaysideError('headers-too-large', most), null);
        return;
      }
    }
    this.#parser.push(bytes);
    this.#parse();
  }

  /** Hands over every whole frame, unless there is a reason to wait. */
  #parse(): void {
    if (this.#isParsing) return;
    this.#isParsing = true;
    try {
      while (this.#holds === 0 && !this.#isDeaf) {
        const frame = this.#parser.next();
        if (frame === null) break;
        this.#session.handle(frame);
      }
    } catch (error) {
      this.#session.fail(error, this.#parser.receipt);
    }
    this.#isParsing = false;
    this.#session.endTurn();
    this.workChanged();
    // One turn of the event loop may bring two megabytes, so this does not wait until the way out moves.
    this.#outputChanged();
  }

  #onRoom(): void {
    this.#outputChanged();
    this.#session.onRoom();
  }

  #outputChanged(): void {
    this.#setHold(HOLDS.output, this.outbox.bytes > MOST_OUTPUT_BYTES);
  }

  #setHold(hold: number, isHeld: boolean): void {
    const before = this.#holds;
    this.#holds = isHeld ? before | hold : before & ~hold;
    if (before === this.#holds || this.#isDeaf) return;
    if (before === 0) {
      this.#socket.pause();
      this.#heartBeat?.hold(true);
    }
    if (this.#holds === 0) {
      this.#heartBeat?.hold(false);
      this.#socket.resume();
      this.#parse();
    }
  }

  #closed(): void {
    this.#isDeaf = true;
    this.#cancelTimer?.();
    this.#heartBeat?.stop();
    this.outbox.abandon();
    this.#session.gone();
    this.#session.work.whenIdle(() => this.#over.resolve());
  }
}

function tooLate(message: string): QuaysideError {
  return new QuaysideError('request-timeout', message);
}
