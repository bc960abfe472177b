import type { Clock } from '../../../model/clock.ts';
import type { GivenTime } from '../settings.ts';
import { Connection } from './connection.ts';
import type { ServerFacts } from './greeting.ts';
import { Link, type LinkParts } from './link.ts';
import { type Call, NOT_SENT, type Outcome } from './outcome.ts';

/**
 * Connections to one server. Two, so that one works while the other waits for replicas; which of them a call
 * takes does not matter, as calls that must keep an order are never under way together.
 */
const LINKS = 2;

/** A server that answered nothing for this long was away: it is asked something every two seconds. */
const AWAY_MS = 3_000;
/** Leases that end so soon after a server is back could hardly be settled or extended. */
const GRACE_MS = 5_000;

/** Since when a server has been in reach. Moments are by its clock. */
export interface Contact {
  readonly since: number;
  /** Leases from before `since` that end before this moment count no try. */
  readonly excusedUntil: number;
}

const ALWAYS: Contact = { since: 0, excusedUntil: 0 };

export interface NodeParts extends Omit<LinkParts, 'onReady' | 'onDown' | 'onReply'> {
  /** The time that the library goes by, in tests. */
  readonly givenTime: GivenTime | null;
  /** It takes the place of a server that failed. */
  readonly isSuccessor: boolean;
}

/** One master: what is asked of it in the same turn leaves together. */
export class Node {
  readonly #parts: NodeParts;
  readonly #links: readonly Link[];
  readonly #clock: Clock;
  readonly #waiting: { call: Call; settle: (outcome: Promise<Outcome>) => void }[] = [];
  #facts: ServerFacts | null = null;
  #problem: Error | null = null;
  /** Since when nothing can be sent, by the monotonic clock; null while something can. */
  #downSince: number | null;
  /** When it last answered, by the monotonic clock. */
  #repliedAt: number | null = null;
  /** When it answered again after it had been away; null while it never was. */
  #contact: { readonly at: number; readonly givenAt: number | null } | null = null;
  #change: () => void = () => {};
  #changed: Promise<void> = Promise.resolve();

  /** @param onFacts called at each new connection */
  constructor(
    parts: NodeParts,
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
        onReply: () => this.#noteReply(),
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

  get contact(): Contact {
    if (this.#contact === null) return ALWAYS;
    const { at, givenAt } = this.#contact;
    const link = this.#freest() ?? this.#links[0];
    const since = Math.max(0, givenAt ?? link?.serverTimeAt(at) ?? 0);
    return { since, excusedUntil: since + GRACE_MS };
  }

  /** Until now the server was away, or could change nothing. */
  renewContact(): void {
    this.#contact = { at: this.#clock.monotonic(), givenAt: this.#parts.givenTime?.now() ?? null };
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

  #noteReply(): void {
    const now = this.#clock.monotonic();
    // What was before the first reply this process cannot know, except of a server that failed.
    const wasAway = this.#repliedAt === null ? this.#parts.isSuccessor : now - this.#repliedAt > AWAY_MS;
    if (wasAway) this.renewContact();
    this.#repliedAt = now;
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
