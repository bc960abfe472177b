import { NOT_REACHABLE, tooManyGroups, unavailable, unknownOutcome } from '../../engine/store-failures.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import { QuaysideError } from '../../model/errors.ts';
import { Backlog } from './backlog.ts';
import { type AnyStep, Call, type CallEnd, type CallKind, type Step } from './call.ts';
import type { Connection } from './connection.ts';
import { ConnectionLost, isReadOnly, isWorthRetry, Refused, refusedError } from './errors.ts';
import { gather } from './gather.ts';
import type { Link } from './link.ts';
import type { Names, Need, Queue } from './names.ts';
import { Round } from './round.ts';
import type { Query, Row } from './statement.ts';
import { transact } from './transaction.ts';

/** A caller has its answer, or a clear no, within this time. */
const ANSWER_WITHIN_MS = 4500;
/** A round that takes longer has lost its server: each of its statements would have ended before. */
const ROUND_TIMEOUT_MS = 4000;
const CHECK_EVERY_MS = 250;
/** Of a call that PostgreSQL refused to end a deadlock. */
const MOST_ATTEMPTS = 4;
const STOPPED = new ConnectionLost('The engine was stopped.');

export interface PipelineHost {
  readonly clock: Clock;
  readonly link: Link;
  readonly names: Names;
  /** A step that has to come before all others now, such as ending leases that ran out; null for none. */
  before(): AnyStep | null;
  /** A round was committed. */
  done(): void;
}

/**
 * The one ordered way to the database: gathers the calls that are made while a round is under way, arranges
 * them as few statements, and sends these as the next round, one transaction.
 *
 * - Calls about a queue take effect in the order in which they were made, since there is one connection and
 *   one round at a time. Several nodes, not several connections, are how more of PostgreSQL's cores are used.
 * - A round that PostgreSQL refuses was rolled back: its calls run again, each alone, so that one caller's
 *   failure is nobody else's. A round whose connection ended may have been committed: its changing calls are
 *   rejected with `outcome-unknown` and never sent again.
 */
export class Pipeline {
  readonly #host: PipelineHost;
  readonly #backlog: Backlog;
  #pending: Call[] = [];
  #sent: readonly Call[] = [];
  /** Of a round that was refused, the calls that have still to be made one by one. */
  #alone: Call[] = [];
  #sentAt = 0;
  /** Whether changes are on their way, and not only questions. */
  #mayBeApplied = false;
  #isRunning = false;
  #isScheduled = false;
  #cancelCheck: CancelTimer | null = null;
  #onIdle: (() => void) | null = null;
  #stopped = false;

  constructor(host: PipelineHost) {
    this.#host = host;
    this.#backlog = new Backlog(host.link);
  }

  /** Runs one step. @throws QuaysideError as the Storage port says */
  call<R>(kind: CallKind, step: Step<unknown, R>): Promise<R> {
    return new Promise((resolve, reject) => {
      const done = ([answered]: readonly AnyStep[]): null => {
        resolve(answered?.answer as R);
        return null;
      };
      this.#submit(kind, [step], { mayGoOn: false, done, fail: reject });
    });
  }

  /** Runs steps one after the other in one transaction. @throws as `call` */
  callAll<R>(kind: CallKind, steps: readonly Step<unknown, R>[]): Promise<R[]> {
    return new Promise((resolve, reject) => {
      const done = (answered: readonly AnyStep[]): null => {
        resolve(answered.map(({ answer }) => answer as R));
        return null;
      };
      this.#submit(kind, steps, { mayGoOn: false, done, fail: reject });
    });
  }

  /**
   * Runs a step, and then as many more as `next` asks for, each in a transaction of its own. Later calls
   * about the same queues wait until the last one is done. @throws as `call`
   */
  callUntilDone<R>(
    kind: CallKind,
    step: Step<unknown, R>,
    next: (answer: R) => Step<unknown, R> | null,
  ): Promise<void> {
    return new Promise((resolve, reject) => {
      const done = ([answered]: readonly AnyStep[]): AnyStep[] | null => {
        const more = next(answered?.answer as R);
        if (more === null) resolve();
        return more === null ? null : [more];
      };
      this.#submit(kind, [step], { mayGoOn: true, done, fail: reject });
    });
  }

  /** There is a connection again. */
  resume(): void {
    this.#schedule();
  }

  /** Resolves when all calls are settled; later ones are refused. */
  async stop(): Promise<void> {
    this.#stopped = true;
    if (this.#pending.length > 0 || this.#isRunning) {
      await new Promise<void>((resolve) => {
        this.#onIdle = resolve;
      });
    }
    this.#cancelCheck?.();
    this.#cancelCheck = null;
  }

  #submit(kind: CallKind, steps: readonly AnyStep[], end: CallEnd): void {
    const { clock } = this.#host;
    const refusal = this.#stopped ? unavailable(NOT_REACHABLE, STOPPED) : this.#backlog.refusal();
    if (refusal !== null) {
      end.fail(refusal);
      this.#forgetNames();
      return;
    }
    const answerBy = clock.monotonic() + ANSWER_WITHIN_MS;
    this.#pending.push(new Call(kind, steps, end, { answerBy, onSettled: this.#backlog.add(kind) }));
    this.#cancelCheck ??= clock.after(CHECK_EVERY_MS, () => this.#check());
    this.#schedule();
  }

  /** After the current turn, so that what it still asks for shares the round. */
  #schedule(): void {
    if (this.#isScheduled || this.#isRunning) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      void this.#pump();
    });
  }

  async #pump(): Promise<void> {
    if (this.#isRunning) return;
    this.#isRunning = true;
    for (;;) {
      const { connection } = this.#host.link;
      if (connection === null) break;
      const { calls, left } = gather(this.#pending);
      this.#pending = left;
      if (calls.length === 0) break;
      await this.#runTogether(connection, calls);
      this.#forgetNames();
      // Answers lead to new calls; those made before the next turn share the next round.
      await turn();
    }
    this.#isRunning = false;
    this.#restIfIdle();
  }

  async #runTogether(connection: Connection, calls: readonly Call[]): Promise<void> {
    const fault = await this.#run(connection, calls);
    if (fault === null) return;
    if (fault instanceof ConnectionLost) {
      this.#putBack(calls);
      return;
    }
    const [only] = calls;
    if (only !== undefined && calls.length === 1 && !isWorthRetry(fault)) {
      this.#refuse(only, fault);
      return;
    }
    this.#alone = [...calls];
    for (let call = this.#alone.shift(); call !== undefined; call = this.#alone.shift()) {
      if (await this.#runAlone(call)) continue;
      this.#putBack([call, ...this.#alone]);
      this.#alone = [];
    }
  }

  /** Runs one call until it is settled. Answers false where there is no connection for it any more. */
  async #runAlone(call: Call): Promise<boolean> {
    for (let attempt = 1; ; attempt++) {
      const { connection } = this.#host.link;
      if (call.settled) return true;
      if (connection === null) return false;
      const fault = await this.#run(connection, [call]);
      if (fault === null) return true;
      if (fault instanceof ConnectionLost) return false;
      if (attempt < MOST_ATTEMPTS && isWorthRetry(fault)) continue;
      this.#refuse(call, fault);
      return true;
    }
  }

  /**
   * One transaction. Answers null where all calls are taken care of, else why none of them happened:
   * `ConnectionLost` where they were not even sent, and can wait for the next connection.
   */
  async #run(connection: Connection, calls: readonly Call[]): Promise<Error | null> {
    this.#sent = calls;
    this.#sentAt = this.#host.clock.monotonic();
    try {
      const fault = await this.#resolveNames(connection, calls);
      if (fault !== null) return fault;
      // A caller that was told meanwhile that it is too late must not have its element taken after all.
      const inTime = calls.filter((call) => !call.settled);
      return inTime.length === 0 ? null : await this.#send(connection, inTime);
    } finally {
      this.#sent = [];
      this.#mayBeApplied = false;
    }
  }

  async #send(connection: Connection, calls: readonly Call[]): Promise<Error | null> {
    let round: Round;
    let queries: Query[];
    try {
      round = new Round(calls, this.#host.before());
      queries = round.queries();
    } catch (error) {
      // A call that makes no sense; alone, it harms nobody else.
      return error instanceof Error ? error : new Error(String(error));
    }
    this.#mayBeApplied = true;
    const ended = await transact(connection, queries);
    if (ended.how === 'refused') return ended.error;
    if (ended.how === 'lost') {
      this.#settleLost(calls, ended.error);
      this.#host.link.drop('it did not answer');
    } else this.#settleDone(round, ended.results);
    return null;
  }

  /** Nothing of the calls themselves is sent here. */
  async #resolveNames(connection: Connection, calls: readonly Call[]): Promise<Error | null> {
    const { names } = this.#host;
    const unmet = this.#unmetBy(calls);
    if (unmet.length === 0) return null;
    try {
      await this.#refuseGroups(connection, calls);
      const left = this.#unmetBy(calls.filter((call) => !call.settled));
      if (left.length > 0) await names.resolve(connection, left);
      return null;
    } catch (error) {
      return error instanceof Error ? error : new Error(String(error));
    }
  }

  #unmetBy(calls: readonly Call[]): Need[] {
    const { names } = this.#host;
    const unmet: Need[] = [];
    for (const call of calls) {
      for (const step of call.steps) for (const need of step.needs) if (!names.isMet(need)) unmet.push(need);
    }
    return unmet;
  }

  /** A call that would make more groups than a queue may have is not sent. */
  async #refuseGroups(connection: Connection, calls: readonly Call[]): Promise<void> {
    const inserting = calls.filter(({ kind }) => kind.inserts);
    const needs = inserting.flatMap((call) => call.needs());
    const refused = await this.#host.names.beyondLimits(connection, needs);
    if (refused.size === 0) return;
    for (const call of inserting) {
      const { queue } = call.needs().find((need) => refused.has(need)) ?? {};
      if (queue?.limit) call.fail(tooManyGroups(queue.key.name, queue.limit.most));
    }
  }

  #settleDone(round: Round, results: readonly (readonly Row[])[]): void {
    try {
      round.read(results);
    } catch (error) {
      // An answer that makes no sense; it is too late to say that nothing happened.
      for (const call of round.calls) call.fail(faultOf(error));
      return;
    }
    this.#host.done();
    const answerBy = this.#host.clock.monotonic() + ANSWER_WITHIN_MS;
    const more = round.calls.filter((call) => call.succeed(answerBy));
    if (more.length > 0) this.#putBack(more);
  }

  #settleLost(calls: readonly Call[], error: ConnectionLost): void {
    for (const call of calls)
      call.fail(call.kind.changes ? unknownOutcome(error) : unavailable(NOT_REACHABLE, error));
  }

  #refuse(call: Call, error: Error): void {
    if (!(error instanceof Refused)) {
      call.fail(faultOf(error));
      return;
    }
    call.fail(refusedError(error, call.kind));
    if (isReadOnly(error)) this.#host.link.drop('it became read-only');
  }

  #putBack(calls: readonly Call[]): void {
    this.#pending = [...calls, ...this.#pending];
  }

  /** Ends what waits too long, and the connection if the server has stopped answering. */
  #check(): void {
    const { clock, link } = this.#host;
    const now = clock.monotonic();
    const isAway = this.#backlog.isInVain;
    const tooLate = new ConnectionLost('No answer in time.');
    for (const call of [...this.#alone, ...this.#pending]) {
      if (isAway || now >= call.answerBy) call.fail(unavailable(NOT_REACHABLE, tooLate));
    }
    this.#pending = this.#pending.filter((call) => !call.settled);
    const late = this.#sent.filter((call) => now >= call.answerBy);
    if (this.#mayBeApplied) this.#settleLost(late, tooLate);
    else for (const call of late) call.fail(unavailable(NOT_REACHABLE, tooLate));
    if (this.#sent.length > 0 && now - this.#sentAt > ROUND_TIMEOUT_MS) link.drop('it does not answer');
    const isBusy = this.#pending.length > 0 || this.#sent.length > 0;
    this.#cancelCheck = isBusy ? clock.after(CHECK_EVERY_MS, () => this.#check()) : null;
    this.#restIfIdle();
  }

  /** Names come from requests, refused ones included. */
  #forgetNames(): void {
    this.#host.names.prune(() => {
      const used = new Set<Queue>();
      for (const call of [...this.#sent, ...this.#alone, ...this.#pending])
        for (const queue of call.queues()) used.add(queue);
      return used;
    });
  }

  #restIfIdle(): void {
    if (this.#pending.length === 0 && !this.#isRunning) this.#onIdle?.();
  }
}

/** A fault of ours, or of the caller's values. */
function faultOf(error: unknown): QuaysideError {
  return new QuaysideError('internal', 'The engine failed.', { cause: error });
}

function turn(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve);
  });
}
