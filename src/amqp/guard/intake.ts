import type { Authenticator, User } from '../../access/user.ts';
import type { SessionCounts } from '../../session/counts.ts';
import { quoteBytes } from '../../util/quote.ts';
import { FrameCutter } from './cutter.ts';
import { AMQP_HEADER, SASL_HEADER } from './frames.ts';
import { Inbound, VERDICT } from './inbound.ts';
import { AMQP_LIMITS } from './limits.ts';
import { type Breach, framingError, limitExceeded } from './refusal.ts';
import { Run } from './run.ts';
import { MECHANISMS } from './sasl.ts';
import { SaslLogin } from './sasl-login.ts';
import type { ConnectionState } from './state.ts';

/**
 * How far a connection is.
 *
 * `sasl-header` -> `sasl` -> `amqp-header` -> `frames` -> `over`; from each to `over`, where nothing that comes is
 * read any more.
 */
export type Phase = 'sasl-header' | 'sasl' | 'amqp-header' | 'frames' | 'over';

/** What the way in needs of the connection around it. */
export interface IntakeHost {
  /** Whether there is a reason to read no further now. */
  readonly isHeld: boolean;
  /** To the peer. */
  send(frame: Buffer): void;
  /** To rhea: the protocol header, or whole frames that were checked. */
  feed(bytes: Buffer): void;
  /** Holds the peer until that is done, then calls `loggedIn`. */
  login(check: Promise<User>): void;
  /** Holds the peer until the next turn of the event loop. */
  waitATurn(): void;
}

export interface IntakeParts {
  readonly state: ConnectionState;
  readonly authenticator: Authenticator;
  readonly counts: SessionCounts;
  readonly messageBytes: number;
  /** Of the peer. */
  readonly address: string;
}

/**
 * Others have their turn when this much was asked for: 2,000 frames, or the settling of 16,000 deliveries. A peer may
 * say so in a few hundred bytes, and one turn of the event loop may bring two megabytes of it.
 */
const MOST_EFFORT = 16_384;

const AMQP = Buffer.from('AMQP');
const TLS_HANDSHAKE = 0x16;

/** What a client spoke instead of the header that it should begin with. */
function wrongHeader(header: Buffer, expected: string): Breach {
  if (header[0] === TLS_HANDSHAKE) {
    return framingError(`The client starts TLS, but this port is without TLS. Expected: ${expected}.`);
  }
  if (!header.subarray(0, 4).equals(AMQP)) {
    return framingError(
      `The connection starts with ${quoteBytes(header.toString('latin1'))}. Expected: ${expected}.`,
    );
  }
  const [id, major, minor, revision] = header.subarray(4);
  // RabbitMQ's clients and most others speak 0-9-1, whose header counts otherwise.
  const old = id === 0 && major === 0 ? ` (AMQP 0-${minor}-${revision}, another protocol)` : '';
  return framingError(
    `The client sent the header of protocol ${id}, version ${major}.${minor}.${revision}${old}. Expected: ${expected}.`,
  );
}

/** The way in of one connection: from bytes to frames that rhea may have. */
export class Intake {
  readonly #host: IntakeHost;
  readonly #counts: SessionCounts;
  readonly #cutter = new FrameCutter(AMQP_LIMITS.loginBytes);
  readonly #inbound: Inbound;
  readonly #login: SaslLogin;
  readonly #run: Run;
  #phase: Phase = 'sasl-header';
  #loginBytes = 0;

  constructor(host: IntakeHost, { state, authenticator, counts, messageBytes, address }: IntakeParts) {
    this.#host = host;
    this.#counts = counts;
    this.#inbound = new Inbound(state, messageBytes);
    this.#login = new SaslLogin(authenticator, address, (frame) => host.send(frame));
    this.#run = new Run((bytes) => host.feed(bytes));
  }

  get phase(): Phase {
    return this.#phase;
  }

  /** From now on nothing is read. */
  stop(): void {
    this.#phase = 'over';
  }

  /** @throws Breach where there is more than there may be before the login */
  push(bytes: Buffer): void {
    this.#counts.receivedBytes += bytes.length;
    if (this.#phase === 'over') return;
    this.#cutter.push(bytes);
    if (this.#phase === 'amqp-header' || this.#phase === 'frames') return;
    this.#loginBytes += bytes.length;
    if (this.#loginBytes <= AMQP_LIMITS.loginBytes) return;
    throw limitExceeded(
      `More than the ${AMQP_LIMITS.loginBytes} bytes that are allowed came before the login.`,
    );
  }

  /** The login was right. */
  loggedIn(): void {
    this.#phase = 'amqp-header';
    this.#cutter.mostBytes = AMQP_LIMITS.frameBytes;
  }

  /** Goes on with what has come, unless there is a reason to wait. @throws Breach */
  advance(): void {
    while (!this.#host.isHeld && this.#step());
  }

  /** Answers false where there is nothing to do before more has come. */
  #step(): boolean {
    switch (this.#phase) {
      case 'sasl-header':
        return this.#saslHeader();
      case 'sasl':
        return this.#saslFrame();
      case 'amqp-header':
        return this.#amqpHeader();
      case 'frames':
        return this.#frames();
      case 'over':
        return false;
    }
  }

  #saslHeader(): boolean {
    const header = this.#cutter.raw(SASL_HEADER.length);
    if (header === null) return false;
    if (!header.equals(SASL_HEADER))
      throw wrongHeader(header, 'the SASL header of AMQP 1.0 (protocol 3, version 1.0.0)');
    this.#host.send(SASL_HEADER);
    this.#host.send(MECHANISMS);
    this.#phase = 'sasl';
    return true;
  }

  #saslFrame(): boolean {
    const cutter = this.#cutter;
    if (!cutter.next()) return false;
    const check = this.#login.take(cutter.bytes, cutter.start, cutter.end);
    if (check !== null) this.#host.login(check);
    return true;
  }

  #amqpHeader(): boolean {
    const header = this.#cutter.raw(AMQP_HEADER.length);
    if (header === null) return false;
    if (!header.equals(AMQP_HEADER))
      throw wrongHeader(header, 'the header of AMQP 1.0 (protocol 0, version 1.0.0) behind the login');
    this.#phase = 'frames';
    this.#host.feed(header);
    return true;
  }

  /** Hands over what has come whole. */
  #frames(): boolean {
    const cutter = this.#cutter;
    try {
      while (!this.#host.isHeld && this.#phase === 'frames' && cutter.next()) {
        this.#counts.frames += 1;
        this.#frame(cutter.bytes, cutter.start, cutter.end);
        if (this.#inbound.effort > MOST_EFFORT) this.#waitATurn();
      }
    } finally {
      // Also what came before a frame that breaks a rule.
      this.#run.flush();
      this.#inbound.leave();
    }
    return false;
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
    this.#host.waitATurn();
  }
}
