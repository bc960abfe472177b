import type { CancelTimer, Clock } from '../../../model/clock.ts';
import type { Library } from '../library.ts';
import type { Address, Login } from '../settings.ts';
import { Connection, ConnectionLost, type Reply, ReplyError } from './connection.ts';
import { bringLibrary, greet, lookAgain, type ServerFacts, UnfitServer } from './greeting.ts';
import { type Call, NOT_SENT, type Outcome } from './outcome.ts';

export interface LinkParts {
  readonly clock: Clock;
  readonly library: Library;
  readonly login: Login;
  /** Where the server is now: asked at every connection, as a Sentinel may name another. */
  readonly locate: () => Promise<Address>;
  /** Replicas to wait for; null: one, where the server has any. */
  readonly wait: number | null;
  /** A connection is ready, or one is not: the first time, and at each change. */
  readonly onReady: (facts: ServerFacts) => void;
  readonly onDown: (reason: Error) => void;
  /** The server answered; not before it is ready, as one does that still loads its data. */
  readonly onReply: () => void;
}

const OPEN_MS = 2_000;
const FIRST_RETRY_MS = 50;
const LAST_RETRY_MS = 1_000;
/** Shorter than `SUSPECT_MS`: a master that waits for its replicas is not silent. */
const WAIT_MS = 700;
/** A server that owes a reply for this long gets nothing more until it speaks. */
const SUSPECT_MS = 1_000;
const HEARTBEAT_MS = 2_000;

/** Keeps one connection to a server: opens it, notices when it is dead, opens the next. */
export class Link {
  readonly #parts: LinkParts;
  #connection: Connection | null = null;
  #wait = 0;
  /** The server's clock minus our monotonic one. */
  #timeOffset = 0;
  /** Why the connection is given up, where it was not lost. */
  #unfit: UnfitServer | null = null;
  #cancelTimer: CancelTimer | null = null;
  #retryMs = FIRST_RETRY_MS;
  #stopped = false;

  constructor(parts: LinkParts) {
    this.#parts = parts;
  }

  start(): void {
    void this.#connect();
  }

  stop(): void {
    this.#stopped = true;
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    this.#connection?.close();
  }

  /** Drops the connection and opens another: the server is not what we took it for. */
  renew(): void {
    this.#connection?.close();
  }

  /** A connection stands, and the server speaks. */
  get isHealthy(): boolean {
    return this.#connection !== null && this.#connection.silentMs < SUSPECT_MS;
  }

  get outstanding(): number {
    return this.#connection?.outstanding ?? 0;
  }

  /** What the server's clock shows now, as far as we know. */
  get serverTime(): number {
    return this.serverTimeAt(this.#parts.clock.monotonic());
  }

  /** What it showed at a moment of our monotonic clock. */
  serverTimeAt(monotonic: number): number {
    return Math.round(monotonic + this.#timeOffset);
  }

  /** The server showed this time in a reply. */
  noteServerTime(now: number): void {
    this.#timeOffset = now - this.#parts.clock.monotonic();
  }

  /** Sends calls in one piece, with one wait for replicas behind them if any of them writes. */
  send(calls: readonly Call[]): Promise<Outcome>[] {
    const connection = this.#connection;
    if (connection === null) return calls.map(async () => NOT_SENT);
    const sent: Promise<Reply>[] = [];
    let replicated: Promise<boolean> = Promise.resolve(true);
    connection.together(() => {
      for (const { name, args, asking, behind = [] } of calls) {
        if (asking) connection.send('ASKING', []).catch(() => {});
        sent.push(connection.send(name, args));
        for (const each of behind) connection.send(each.name, each.args).catch(() => {});
      }
      if (this.#wait > 0 && calls.some(({ writes }) => writes)) replicated = this.#replicated(connection);
    });
    return sent.map((reply, i) => outcomeOf(reply, calls[i]?.writes === true ? replicated : true));
  }

  /** Sends our functions again, after the server said that it has none. */
  async bringLibrary(): Promise<void> {
    if (this.#connection !== null) await bringLibrary(this.#connection, this.#parts.library);
  }

  async #replicated(connection: Connection): Promise<boolean> {
    try {
      return Number(await connection.send('WAIT', [this.#wait, WAIT_MS])) >= this.#wait;
    } catch (error) {
      if (error instanceof ReplyError) return false;
      throw error;
    }
  }

  async #connect(): Promise<void> {
    const { clock, login, locate, library } = this.#parts;
    try {
      const address = await locate();
      if (this.#stopped) return;
      const connection = await Connection.open(address, login, clock, OPEN_MS);
      let reason: Error = new ConnectionLost(false);
      connection.onEnd(() => this.#ended(connection, reason));
      try {
        const facts = await greet(connection, library);
        if (this.#stopped) connection.close();
        else this.#ready(connection, facts);
      } catch (error) {
        reason = error as Error;
        connection.close();
      }
    } catch (error) {
      this.#down(error as Error);
    }
  }

  #ready(connection: Connection, facts: ServerFacts): void {
    this.#connection = connection;
    this.#retryMs = FIRST_RETRY_MS;
    this.#wait = this.#parts.wait ?? Math.min(1, facts.replicas);
    this.noteServerTime(facts.now);
    this.#parts.onReply();
    connection.onReply = this.#parts.onReply;
    this.#parts.onReady(facts);
    this.#beatLater();
  }

  /** An open connection ended: before it was ready, or after. */
  #ended(connection: Connection, reason: Error): void {
    if (this.#connection === connection) this.#connection = null;
    this.#down(this.#unfit ?? reason);
    this.#unfit = null;
  }

  #down(reason: Error): void {
    if (this.#stopped) return;
    this.#cancelTimer?.();
    this.#cancelTimer = this.#parts.clock.after(this.#retryMs, () => void this.#connect());
    this.#retryMs = Math.min(this.#retryMs * 2, LAST_RETRY_MS);
    this.#parts.onDown(reason);
  }

  #beatLater(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = this.#parts.clock.after(HEARTBEAT_MS, () => void this.#beat());
  }

  /** Finds a dead peer although nobody calls, replicas that came since, and a server that became unfit. */
  async #beat(): Promise<void> {
    const connection = this.#connection;
    if (connection === null) return;
    try {
      const replicas = await lookAgain(connection);
      if (this.#parts.wait === null && replicas > 0) this.#wait = 1;
    } catch (error) {
      // A lost connection is opened again where its end is noticed.
      if (error instanceof UnfitServer) {
        this.#unfit = error;
        connection.close();
      }
    }
    if (this.#connection === connection && !this.#stopped) this.#beatLater();
  }
}

async function outcomeOf(reply: Promise<Reply>, replicated: Promise<boolean> | true): Promise<Outcome> {
  try {
    const [answered, enough] = await Promise.all([reply, replicated]);
    return enough ? { kind: 'answered', reply: answered } : { kind: 'unreplicated' };
  } catch (error) {
    if (error instanceof ReplyError) return { kind: 'refused', message: error.message };
    return { kind: 'lost', sent: error instanceof ConnectionLost ? error.sent : true };
  }
}
