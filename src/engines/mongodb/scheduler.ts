import { NOT_REACHABLE, unavailable } from '../../engine/store-failures.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import { QuaysideError } from '../../model/errors.ts';
import { Call, type InsertArgs, type LoneArgs, type SettleArgs, type TakeArgs } from './call.ts';
import { fromDriver, Lost } from './errors.ts';
import { Round } from './round.ts';
import { ANSWER_WITHIN_MS, FAIL_FAST_AFTER_MS, type Store } from './store.ts';

const CHECK_EVERY_MS = 250;
/** Rounds at once; calls that are made meanwhile gather for the next one. */
const MOST_ROUNDS = 4;
/** Calls at once that travel alone. */
const MOST_ALONE = 16;
/** What may wait for its turn or its answer, at most. */
const MOST_BYTES = 64 * 1024 * 1024;
/** What one call weighs beside its bodies. */
const CALL_BYTES = 500;

export interface SchedulerHost {
  readonly clock: Clock;
  readonly store: Store;
  /** Carries a round out, and settles each of its calls. Never throws. */
  run(round: Round): Promise<void>;
}

type RoundArgs = InsertArgs | TakeArgs | SettleArgs;

/**
 * Decides which calls are carried out now. Calls about the same queue keep their order: while one is under way, or an
 * earlier one waits, later ones wait. What waits gathers, for all queues, into the next round, so that a busy
 * node makes few round trips, and an idle one does not wait for company.
 */
export class Scheduler {
  readonly #host: SchedulerHost;
  #pending: Call[] = [];
  readonly #running = new Set<Call>();
  /** Per queue, what is under way: a number of questions, or something that admits nothing beside it. */
  readonly #busy = new Map<string, number | 'closed'>();
  #order = 0;
  #bytes = 0;
  #rounds = 0;
  #alone = 0;
  #isScheduled = false;
  #cancelCheck: CancelTimer | null = null;
  #onIdle: (() => void) | null = null;
  #isStopped = false;

  constructor(host: SchedulerHost) {
    this.#host = host;
  }

  /** @param bytes of the bodies that the call carries @throws QuaysideError as the Storage port says */
  call<R>(args: RoundArgs | LoneArgs<R>, bytes = 0): Promise<R> {
    return new Promise((resolve, reject) => {
      const weight = CALL_BYTES + bytes;
      const refusal = this.#refusal(weight);
      if (refusal !== null) {
        reject(refusal);
        return;
      }
      this.#bytes += weight;
      this.#order += 1;
      const renew = (): number => this.#host.clock.monotonic() + ANSWER_WITHIN_MS;
      const onSettled = (): void => {
        this.#bytes -= weight;
      };
      const end = { answerBy: renew(), bytes, renew, resolve, reject, onSettled };
      this.#pending.push(new Call<RoundArgs | LoneArgs<R>, R>(args, this.#order, end) as unknown as Call);
      this.#cancelCheck ??= this.#host.clock.after(CHECK_EVERY_MS, () => this.#check());
      this.#schedule();
    });
  }

  /** There is a primary again. */
  resume(): void {
    this.#schedule();
  }

  /** Resolves when all calls are settled and nothing is under way; later calls are refused. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    if (this.#pending.length > 0 || this.#running.size > 0) {
      await new Promise<void>((resolve) => {
        this.#onIdle = resolve;
      });
    }
    this.#cancelCheck?.();
    this.#cancelCheck = null;
  }

  #refusal(weight: number): Error | null {
    if (this.#isStopped) return unavailable(NOT_REACHABLE, new Lost('The engine was stopped.'));
    if (this.#host.store.awayMs > FAIL_FAST_AFTER_MS) return away();
    if (this.#bytes + weight > MOST_BYTES && this.#bytes > 0) {
      return unavailable(NOT_REACHABLE, new Lost('Too many calls wait.'));
    }
    return null;
  }

  /** After the current turn, so that what it still asks for shares the round. */
  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      if (this.#host.store.isUp) this.#begin();
    });
  }

  #begin(): void {
    const left: Call[] = [];
    const blocked = new Set<string>();
    const round = new Round();
    for (const call of this.#pending) {
      if (call.isSettled) continue;
      const isFree = call.queues.every((queue) => !blocked.has(queue));
      if (isFree && this.#joins(call, round)) continue;
      if (isFree && this.#beginsAlone(call, round)) continue;
      for (const queue of call.queues) blocked.add(queue);
      left.push(call);
    }
    this.#pending = left;
    if (round.calls.length > 0) void this.#runRound(round);
    this.#restIfIdle();
  }

  #joins(call: Call, round: Round): boolean {
    if (this.#rounds >= MOST_ROUNDS || call.queues.some((queue) => this.#busy.has(queue))) return false;
    return round.add(call);
  }

  #beginsAlone(call: Call, round: Round): boolean {
    const { args, queues } = call;
    if (!('run' in args) || this.#alone >= MOST_ALONE) return false;
    const mayShare = args.kind === 'question';
    for (const queue of queues) {
      const under = this.#busy.get(queue);
      if (round.queues.has(queue) || (under !== undefined && (under === 'closed' || !mayShare))) return false;
    }
    void this.#runAlone(call, args);
    return true;
  }

  async #runRound(round: Round): Promise<void> {
    this.#rounds += 1;
    for (const queue of round.queues) this.#busy.set(queue, 'closed');
    for (const call of round.calls) this.#running.add(call);
    try {
      await this.#host.run(round);
    } catch (error) {
      for (const call of round.calls) call.fail(faultOf(error));
    }
    this.#rounds -= 1;
    for (const call of round.calls) this.#running.delete(call);
    for (const queue of round.queues) this.#busy.delete(queue);
    this.#goOn();
  }

  async #runAlone(call: Call, { kind, run }: LoneArgs<unknown>): Promise<void> {
    this.#alone += 1;
    this.#running.add(call);
    for (const queue of call.queues) {
      const under = this.#busy.get(queue);
      this.#busy.set(queue, kind === 'question' ? (typeof under === 'number' ? under + 1 : 1) : 'closed');
    }
    try {
      call.succeed(await run(call));
    } catch (error) {
      if (error instanceof QuaysideError) call.fail(error);
      else call.failBy(fromDriver(error));
    }
    this.#alone -= 1;
    this.#running.delete(call);
    for (const queue of new Set(call.queues)) this.#release(queue, call.queues);
    this.#goOn();
  }

  #release(queue: string, all: readonly string[]): void {
    const under = this.#busy.get(queue);
    const left = typeof under === 'number' ? under - all.filter((one) => one === queue).length : 0;
    if (left > 0) this.#busy.set(queue, left);
    else this.#busy.delete(queue);
  }

  #goOn(): void {
    if (this.#pending.length > 0) this.#schedule();
    this.#restIfIdle();
  }

  /** Answers whoever has waited too long; what was begun for them ends by the driver's own limits. */
  #check(): void {
    const { clock, store } = this.#host;
    const now = clock.monotonic();
    const isInVain = store.awayMs > FAIL_FAST_AFTER_MS;
    for (const call of this.#pending) if (isInVain || now >= call.answerBy) call.fail(away());
    this.#pending = this.#pending.filter(({ isSettled }) => !isSettled);
    for (const call of this.#running) {
      if (now >= call.answerBy) call.failBy(new Lost('No answer in time.'));
    }
    const isBusy = this.#pending.length > 0 || this.#running.size > 0;
    this.#cancelCheck = isBusy ? clock.after(CHECK_EVERY_MS, () => this.#check()) : null;
    this.#restIfIdle();
  }

  #restIfIdle(): void {
    if (this.#pending.length === 0 && this.#running.size === 0) this.#onIdle?.();
  }
}

function away(): Error {
  return unavailable(NOT_REACHABLE, new Lost('There is no primary.'));
}

/** A fault of ours. */
function faultOf(error: unknown): QuaysideError {
  return new QuaysideError('internal', 'The engine failed.', { cause: error });
}
