import type { EngineLog } from '../../../engine/engine.ts';
import type { Clock } from '../../../model/clock.ts';
import { QuaysideError } from '../../../model/errors.ts';
import { type Refusal, refusalOf } from '../refusals.ts';
import type { Arg, Reply } from './connection.ts';
import type { Node } from './node.ts';
import type { Command, Outcome } from './outcome.ts';
import type { Router } from './router.ts';

/** A command on its way to whoever has the slot. */
export interface Cargo {
  readonly slot: number;
  readonly name: string;
  /** Made anew for each try. @param mayBeDone an earlier try may have been done */
  readonly args: (node: Node, mayBeDone: boolean) => readonly Arg[];
  readonly writes: boolean;
  /** Doing it twice is as doing it once: a try without an answer is repeated. */
  readonly repeatable: boolean;
  /** Sent behind it, at each try. */
  readonly behind?: readonly Command[];
  /** Kept up to date, for a caller that does not wait for the end. */
  readonly progress?: Progress;
  /** By the monotonic clock. */
  readonly deadlineAt: number;
}

export interface Progress {
  /** What to tell a caller that waits no longer; null while nothing was tried. */
  giveUp: (() => CarryError) | null;
}

export interface Carried {
  readonly reply: Reply;
  readonly node: Node;
  /** It was sent more than once: the first one may still be on its way. */
  readonly repeated: boolean;
}

/** A command that failed. */
export class CarryError extends QuaysideError {
  /** Whether it is certain that nothing happened. */
  readonly certain: boolean;

  constructor(code: 'storage-unavailable' | 'storage-full' | 'outcome-unknown', why: string) {
    super(code, why, code === 'storage-full' ? {} : { retryAfterMs: 1_000 });
    this.certain = code !== 'outcome-unknown';
  }
}

interface CarrierParts {
  readonly clock: Clock;
  readonly router: Router;
  readonly log: EngineLog;
  /** The store without credentials, for messages. */
  readonly shown: string;
}

const FIRST_PAUSE_MS = 10;
const LAST_PAUSE_MS = 200;
const REDIRECTS_AT_ONCE = 3;

/** What one try taught: whether to try again at once, and where, if not where the map says. */
interface Lesson {
  readonly atOnce: boolean;
  readonly node?: Node;
}

/** Brings commands to their node, through redirections and reconnections, until there is an answer or no time left. */
export class Carrier {
  readonly #parts: CarrierParts;
  readonly #pausing = new Set<() => void>();
  #stopped = false;

  constructor(parts: CarrierParts) {
    this.#parts = parts;
    parts.router.onChange(() => this.#wake());
  }

  /** For how long the node of a slot has been out of reach, ms. */
  downMs(slot: number): number {
    return this.#parts.router.nodeFor(slot)?.downMs ?? 0;
  }

  /** The clock of the server that has this slot, as far as we know. */
  serverTime(slot: number): number {
    return this.#parts.router.nodeFor(slot)?.serverTime ?? this.#parts.clock.now();
  }

  /** From now on everything fails. */
  stop(): void {
    this.#stopped = true;
    this.#wake();
  }

  /** @throws CarryError */
  async carry(cargo: Cargo): Promise<Carried> {
    const tries = new Tries(cargo, this.#parts.clock);
    if (cargo.progress !== undefined) cargo.progress.giveUp = () => this.#gaveUp(tries);
    while (tries.leftMs > 0 && !this.#stopped) {
      const node = tries.redirect ?? this.#parts.router.nodeFor(cargo.slot);
      if (node === null || node.downMs > 0) {
        tries.redirect = undefined;
        tries.reason = node?.problem?.message ?? tries.reason;
        await this.#pause(tries);
        continue;
      }
      const outcome = await this.#try(cargo, node, tries);
      if (outcome?.kind === 'answered') return { reply: outcome.reply, node, repeated: tries.mayBeDone };
      const lesson = this.#learn(outcome, node, cargo, tries);
      if (lesson === 'bring-library') {
        await this.#inTime(
          node.bringLibrary().catch(() => this.#pause(tries)),
          tries,
        );
      } else {
        tries.redirect = lesson.node;
        if (!lesson.atOnce) await this.#pause(tries);
      }
    }
    throw this.#gaveUp(tries);
  }

  /** The outcome, or null if the time is over before. */
  async #try(cargo: Cargo, node: Node, tries: Tries): Promise<Outcome | null> {
    const { name, writes, behind = [] } = cargo;
    const args = cargo.args(node, tries.mayBeDone);
    const call = { name, args, writes, asking: tries.redirect !== undefined, behind };
    tries.isOpen = writes;
    try {
      return await this.#inTime(node.submit(call), tries);
    } finally {
      tries.isOpen = false;
    }
  }

  /** What the promise resolves with, or null if the time is over before. */
  async #inTime<T>(promise: Promise<T>, tries: Tries): Promise<T | null> {
    let cancel: () => void = () => {};
    const over = new Promise<null>((resolve) => {
      cancel = this.#parts.clock.after(tries.leftMs, () => resolve(null));
    });
    try {
      return await Promise.race([promise, over]);
    } finally {
      cancel();
    }
  }

  #learn(
    outcome: Exclude<Outcome, { kind: 'answered' }> | null,
    node: Node,
    cargo: Cargo,
    tries: Tries,
  ): Lesson | 'bring-library' {
    if (outcome === null || outcome.kind === 'lost') {
      if (cargo.writes && (outcome === null || outcome.sent)) tries.mayBeDone = true;
      if (tries.mayBeDone && !cargo.repeatable) throw this.#gaveUp(tries);
      return { atOnce: false };
    }
    if (outcome.kind === 'unreplicated') throw this.#unreplicated();
    return this.#learnRefusal(refusalOf(outcome.message), outcome.message, node, cargo, tries);
  }

  #learnRefusal(
    refusal: Refusal,
    message: string,
    node: Node,
    { slot }: Cargo,
    tries: Tries,
  ): Lesson | 'bring-library' {
    const { router } = this.#parts;
    const [, second = '', address = ''] = message.split(' ');
    switch (refusal) {
      case 'moved':
        router.moved(slot, address);
        return { atOnce: tries.isRedirectedAtOnce() };
      case 'ask':
        return { atOnce: tries.isRedirectedAtOnce(), node: router.nodeAt(address) };
      case 'replica':
        node.renew();
        router.doubt();
        return { atOnce: false };
      case 'wait':
      case 'away':
        tries.reason = message;
        if (refusal === 'away') node.renewContact();
        router.doubt();
        return { atOnce: false };
      case 'no-library':
        return 'bring-library';
      case 'late':
        node.noteServerTime(Number(second));
        return { atOnce: tries.isRedirectedAtOnce() };
      case 'full':
        // What may be done is asked for even so, for its answer: flights in a form that a full server runs, others until
        // there is room. At once, those came to 8,000 tries in a second.
        if (tries.mayBeDone) return { atOnce: false };
        throw new CarryError('storage-full', `${this.#parts.shown} is out of memory.`);
      case 'denied':
        tries.reason = message;
        throw this.#gaveUp(tries);
      case 'stale':
      case 'fault':
        throw this.#fault(message);
      default:
        return refusal satisfies never;
    }
  }

  #fault(message: string): CarryError {
    const { log, shown } = this.#parts;
    log.warn({ engine: shown, reply: message }, 'Redis answered with an error that was not expected');
    return new CarryError(
      'outcome-unknown',
      `${shown} answered with an error; whether it was done is unknown.`,
    );
  }

  #unreplicated(): CarryError {
    const why = 'did not reach a replica in time; whether it lasts is unknown';
    return new CarryError('outcome-unknown', `The change on ${this.#parts.shown} ${why}.`);
  }

  #gaveUp({ mayBeDone, isOpen, reason }: Tries): CarryError {
    const { shown } = this.#parts;
    if (!mayBeDone && !isOpen)
      return new CarryError('storage-unavailable', `${shown} cannot be used now: ${reason}.`);
    return new CarryError(
      'outcome-unknown',
      `${shown} did not answer in time; whether it was done is unknown.`,
    );
  }

  /** A short rest, ended early by news of the servers. */
  #pause(tries: Tries): Promise<void> {
    const ms = Math.max(0, Math.min(tries.nextPauseMs(), tries.leftMs));
    return new Promise((resolve) => {
      const done = (): void => {
        cancel();
        this.#pausing.delete(done);
        resolve();
      };
      const cancel = this.#parts.clock.after(ms, done);
      this.#pausing.add(done);
    });
  }

  #wake(): void {
    for (const wake of [...this.#pausing]) wake();
  }
}

/** What the tries of one command have come to. */
class Tries {
  /** Some try may have been done without our hearing of it. */
  mayBeDone = false;
  /** One was sent that changes things, and has no outcome yet. */
  isOpen = false;
  reason = 'there is no connection';
  redirect: Node | undefined;
  readonly #deadlineAt: number;
  readonly #clock: Clock;
  #pauseMs = FIRST_PAUSE_MS;
  #redirects = 0;

  constructor({ deadlineAt }: Cargo, clock: Clock) {
    this.#deadlineAt = deadlineAt;
    this.#clock = clock;
  }

  get leftMs(): number {
    return this.#deadlineAt - this.#clock.monotonic();
  }

  nextPauseMs(): number {
    const pauseMs = this.#pauseMs;
    this.#pauseMs = Math.min(2 * pauseMs, LAST_PAUSE_MS);
    return pauseMs;
  }

  /** A few redirections are followed at once; servers that point at each other are not chased. */
  isRedirectedAtOnce(): boolean {
    this.#redirects++;
    return this.#redirects <= REDIRECTS_AT_ONCE;
  }
}
