import type { Clock } from '../../../model/clock.ts';
import { Connection } from './connection.ts';
import type { ServerFacts } from './greeting.ts';
import { Link, type LinkParts } from './link.ts';
import { type Call, NOT_SENT, type Outcome } from './outcome.ts';

/**
 * Connections to one server. Two, so that one works while the other waits for replicas; which of them a call
 * takes does not matter, as calls that must keep an order are never under way together.
 */
const LINKS = 2;

/** One master: what is asked of it in the same turn leaves together. */
export class Node {
  readonly #parts: Omit<LinkParts, 'onReady' | 'onDown'>;
  readonly #links: readonly Link[];
  readonly #clock: Clock;
  readonly #waiting: { call: Call; settle: (outcome: Promise<Outcome>) => void }[] = [];
  #facts: ServerFacts | null = null;
  #problem: Error | null = null;
  /** Since when nothing can be sent, by the monotonic clock; null while something can. */
  #downSince: number | null;
  #change: () => void = () => {};
  #changed: Promise<void> = Promise.resolve();

  /** @param onFacts called at each new connection */
  constructor(
    parts: Omit<LinkParts, 'onReady' | 'onDown'>,
    { onFacts, onDown }: { onFacts: (facts: ServerFacts) => void; onDown: (reason: Error) => void },
  ) {
    this.#parts = parts;
    this.#clock = parts.clock;
    this.#downSince = parts.clock.monotonic();
    this.#expectChange();
    const link = (): Link =>
      new Link({
        ...parts,
        onReady: (facts) => {
          this.#facts = facts;
          this.#announce();
          onFacts(facts);
        },
        onDown: (reason) => {
          this.#problem = reason;
          this.#announce();
          onDown(reason);
        },
      });
    this.#links = Array.from({ length: LINKS }, link);
  }

  start(): void {
    for (const link of this.#links) link.start();
  }

  stop(): void {
    this.#flush();
    this.#problem ??= new Error('it was stopped');
    for (const link of this.#links) link.stop();
    this.#announce();
  }

  /** Waits for the first connection. @throws Error why there is none */
  async ready(): Promise<ServerFacts> {
    while (this.#facts === null && this.#problem === null) await this.#changed;
    if (this.#facts === null) throw this.#problem;
    return this.#facts;
  }

  /** The last reason why a connection ended or was not made. */
  get problem(): Error | null {
    return this.#problem;
  }

  /** For how long nothing could be sent, ms; 0 where something can. */
  get downMs(): number {
    if (this.#links.some(({ isHealthy }) => isHealthy)) this.#downSince = null;
    else this.#downSince ??= this.#clock.monotonic();
    return this.#downSince === null ? 0 : this.#clock.monotonic() - this.#downSince;
  }

  get serverTime(): number {
    return (this.#freest() ?? this.#links[0])?.serverTime ?? 0;
  }

  noteServerTime(now: number): void {
    for (const link of this.#links) link.noteServerTime(now);
  }

  /** A connection of the caller's own, for subscriptions. @throws Error why there is none */
  async connect(timeoutMs: number): Promise<Connection> {
    const { locate, login, clock } = this.#parts;
    return Connection.open(await locate(), login, clock, timeoutMs);
  }

  /** Opens new connections: the server answered that it is no master any more. */
  renew(): void {
    for (const link of this.#links) link.renew();
  }

  async bringLibrary(): Promise<void> {
    await this.#freest()?.bringLibrary();
  }

  /** Never rejects. */
  submit(call: Call): Promise<Outcome> {
    queueMicrotask(() => this.#flush());
    return this.#enqueue(call);
  }

  /** The same for what nobody waits for: sent with what is sent next, at the end of this turn at the latest. */
  submitLater(call: Call): Promise<Outcome> {
    setImmediate(() => this.#flush());
    return this.#enqueue(call);
  }

  #enqueue(call: Call): Promise<Outcome> {
    return new Promise((resolve) => this.#waiting.push({ call, settle: resolve }));
  }

  #flush(): void {
    if (this.#waiting.length === 0) return;
    const waiting = this.#waiting.splice(0);
    const outcomes = this.#freest()?.send(waiting.map(({ call }) => call));
    for (const [i, { settle }] of waiting.entries()) settle(outcomes?.[i] ?? Promise.resolve(NOT_SENT));
  }

  /** The healthy connection with the least to do. */
  #freest(): Link | undefined {
    let freest: Link | undefined;
    for (const link of this.#links) {
      if (link.isHealthy && (freest === undefined || link.outstanding < freest.outstanding)) freest = link;
    }
    return freest;
  }

  #announce(): void {
    this.#change();
    this.#expectChange();
  }

  #expectChange(): void {
    this.#changed = new Promise((resolve) => {
      this.#change = resolve;
    });
  }
}
