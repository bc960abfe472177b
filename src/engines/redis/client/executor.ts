import { inTime, PendingCalls, unavailable } from '../../../engine/calls.ts';
import { QuaysideError } from '../../../model/errors.ts';
import type { Clock } from '../../../util/clock.ts';
import { LineLimit } from '../../../util/line-limit.ts';
import { Pause } from '../../../util/pause.ts';
import type { RedisContext } from '../context.ts';
import { type Arg, type Command, CommandLost, type Reply, ReplyError } from './connection.ts';
import { type Master, NotReplicated } from './master.ts';

/** A command for the master that has the slot, whichever that is. */
export interface RedisRequest {
  readonly slot: number;
  readonly name: string;
  /** Called for each attempt. @param mayBeDone an earlier attempt may have been executed */
  readonly args: (master: Master, mayBeDone: boolean) => readonly Arg[];
  readonly writes: boolean;
  /** Executing it twice has the effect of executing it once: an attempt without a reply is repeated. */
  readonly repeatable: boolean;
  /** Sent right behind the command, at each attempt. */
  readonly follower?: Command | null;
  /** There are no attempts after it, by the monotonic clock. One that is in flight then still waits for its reply. */
  readonly deadlineAt: number;
}

export interface Executed {
  readonly reply: Reply;
  readonly master: Master;
}

const FIRST_PAUSE_MS = 10;
const MAX_PAUSE_MS = 200;
/** This many attempts follow an error reply without a pause: servers may redirect to each other. */
const MAX_QUICK_ATTEMPTS = 3;
/** The end of an error reply that names the function and line of the library at which it occurred. */
const PLACE = / script: .*$/s;

/**
 * Executes requests: sends each to the master that has its slot, follows redirections, and repeats it through lost
 * connections until there is a reply or no time left. Tracks whether each may have been executed.
 */
export class Executor {
  /** The prefix of the names of the library's functions. */
  readonly library: string;
  /** The calls of queues. */
  readonly pending: PendingCalls;
  readonly #context: Pick<RedisContext, 'clock' | 'log' | 'settings' | 'topology'>;
  readonly #pauses = new Set<Pause>();
  /** Limits the lines about error replies: each call may get one. */
  readonly #errorReplies: LineLimit;
  #isStopped = false;

  constructor(context: Pick<RedisContext, 'clock' | 'log' | 'settings' | 'topology'>, library: string) {
    this.#context = context;
    this.library = library;
    this.pending = new PendingCalls(context.clock);
    const { log, settings } = context;
    this.#errorReplies = new LineLimit(context.clock, (cause, leftOut) => {
      log.warn(
        { engine: settings.maskedUrl, cause, leftOut },
        'Redis replied with further errors; their lines were left out',
      );
    });
    context.topology.onChange(() => this.#wake());
  }

  /** The deadline of a request that is made now, by the monotonic clock. */
  deadline(withinMs?: number): number {
    return this.pending.deadline(withinMs);
  }

  /** Why a request for this slot cannot succeed now; null: it may. */
  rejection(slot: number): QuaysideError | null {
    const master = this.#context.topology.masterOf(slot);
    return this.pending.rejection(master?.downMs ?? 0, master?.lastError ?? null);
  }

  /** Executes a command on one key that changes nothing. @throws QuaysideError */
  read(key: string, name: string, args: readonly Arg[], deadlineAt?: number): Promise<Reply> {
    return this.command(key, name, args, { writes: false, deadlineAt });
  }

  /**
   * Calls a function of the library.
   * @param name the end of the function's name
   * @param keys all in one slot
   * @throws QuaysideError
   */
  call(
    name: string,
    keys: readonly [string, ...string[]],
    args: readonly Arg[],
    options: CommandOptions = {},
  ): Promise<Reply> {
    return this.command(
      keys[0],
      'FCALL',
      [`${this.library}_${name}`, keys.length, ...keys, ...args],
      options,
    );
  }

  /** Executes a command on one key, or on several keys in its slot. @throws QuaysideError */
  async command(
    key: string,
    name: string,
    args: readonly Arg[],
    { writes = true, repeatable = true, deadlineAt = this.deadline() }: CommandOptions = {},
  ): Promise<Reply> {
    const slot = this.#context.topology.slotOf(key);
    const rejection = this.rejection(slot);
    if (rejection !== null) throw rejection;
    const execution = this.execute({ slot, name, args: () => args, writes, repeatable, deadlineAt });
    const failure = (): Error => execution.failure();
    const { reply } = await inTime(this.#context.clock, execution.done, failure, execution.leftMs);
    return reply;
  }

  /** Starts to execute a request. It may settle after its deadline: until then, its `failure` is the outcome. */
  execute(request: RedisRequest): Execution {
    const { clock, settings } = this.#context;
    return new Execution(request, clock, settings.maskedUrl, (execution) => this.#attempt(execution));
  }

  /** All requests fail from now on. */
  stop(): void {
    this.#isStopped = true;
    this.#wake();
    this.#errorReplies.flush();
  }

  /** @throws QuaysideError */
  async #attempt(execution: Execution): Promise<Executed> {
    const { topology } = this.#context;
    const { slot, name, args, writes, follower } = execution.request;
    let quickAttempts = 0;
    let pauseMs = FIRST_PAUSE_MS;
    while (execution.leftMs > 0 && !this.#isStopped) {
      const { redirect, mayBeDone } = execution;
      const master = redirect ?? topology.masterOf(slot);
      execution.redirect = null;
      if (master === null || master.downMs > 0) {
        execution.reason = master?.lastError?.message ?? execution.reason;
      } else {
        const command = { name, args: args(master, mayBeDone), writes, asking: redirect !== null, follower };
        try {
          execution.isWriteInFlight = writes;
          return { reply: await master.execute(command), master };
        } catch (error) {
          execution.isWriteInFlight = false;
          const isQuick = await this.#handleFailure(execution, master, error);
          if (isQuick && quickAttempts++ < MAX_QUICK_ATTEMPTS) continue;
        }
      }
      await this.#pause(Math.min(pauseMs, execution.leftMs));
      pauseMs = Math.min(2 * pauseMs, MAX_PAUSE_MS);
    }
    throw execution.failure();
  }

  /**
   * Handles a failed attempt. Resolves with whether the next one may follow without a pause.
   * @throws QuaysideError if there must be none
   */
  async #handleFailure(execution: Execution, master: Master, error: unknown): Promise<boolean> {
    const { writes, repeatable } = execution.request;
    if (error instanceof ReplyError) return this.#handleErrorReply(execution, master, error.message);
    if (error instanceof NotReplicated) {
      const hint = 'If its master has too few replicas, connect more, or set a lower wait.';
      throw new QuaysideError(
        'outcome-unknown',
        `The change on ${this.#context.settings.maskedUrl} did not reach enough replicas in time, so a failover may undo it. ${hint}`,
      );
    }
    if (!(error instanceof CommandLost)) throw error;
    execution.mayBeDone ||= writes && error.sent;
    if (execution.mayBeDone && !repeatable) throw execution.failure();
    return false;
  }

  /** Handles an error reply. None of the errors that are listed here changed anything. */
  async #handleErrorReply(execution: Execution, master: Master, message: string): Promise<boolean> {
    const { topology, log, settings } = this.#context;
    const { maskedUrl } = settings;
    const [code, second = '', address = ''] = message.split(' ');
    switch (code) {
      case 'MOVED':
        topology.moved(execution.request.slot, address, master);
        return true;
      case 'ASK':
        execution.redirect = topology.redirected(address, master);
        return true;
      // By the server's clock, it arrived long after it was sent: our estimate of that clock was wrong.
      case 'LATE':
        master.noteServerTime(Number(second));
        return true;
      case 'READONLY':
        master.reconnect();
        topology.refresh();
        return false;
      case 'CLUSTERDOWN':
      case 'LOADING':
      case 'BUSY':
      case 'MASTERDOWN':
      case 'NOREPLICAS':
      case 'MISCONF':
      case 'TRYAGAIN':
        execution.reason = message;
        // For TRYAGAIN, the keys of a moving slot are on two servers. In the other cases, the server serves no lease at
        // all.
        if (code !== 'TRYAGAIN') master.renewContact();
        topology.refresh(master);
        return false;
      case 'OOM':
        if (this.#errorReplies.admit(code)) {
          log.warn(
            { engine: maskedUrl, reply: message },
            'Redis is out of memory: inserts, copies and moves are rejected, everything else continues',
          );
        }
        throw new QuaysideError('storage-full', `${maskedUrl} is out of memory.`);
      case 'NOAUTH':
      case 'WRONGPASS':
      case 'NOPERM':
        execution.reason = message;
        throw execution.failure();
    }
    if (message.startsWith('ERR Function not found')) {
      return master.loadLibrary().then(
        () => true,
        (error: Error) => {
          execution.reason = error.message;
          return false;
        },
      );
    }
    // `STALE` does not occur here: the library returns it for calls that were given up, which are not attempted again.
    if (this.#errorReplies.admit(message.replace(PLACE, ''))) {
      log.warn({ engine: maskedUrl, reply: message }, 'Redis replied with an unexpected error');
    }
    const outcome = 'replied with an unexpected error; whether the call was executed is unknown';
    throw new QuaysideError('outcome-unknown', `${maskedUrl} ${outcome}.`);
  }

  /** A short pause, ended early by a change of the topology. */
  async #pause(ms: number): Promise<void> {
    const pause = new Pause(this.#context.clock);
    this.#pauses.add(pause);
    await pause.wait(ms);
    this.#pauses.delete(pause);
  }

  #wake(): void {
    for (const pause of this.#pauses) pause.end();
  }
}

interface CommandOptions {
  /** Default: true. */
  readonly writes?: boolean;
  /** False: it is never sent twice, and without a reply its outcome is unknown. */
  readonly repeatable?: boolean;
  readonly deadlineAt?: number | undefined;
}

/** One request, and the state of its attempts. */
export class Execution {
  /** @throws QuaysideError */
  readonly done: Promise<Executed>;
  readonly request: RedisRequest;
  /** An attempt may have been executed, although there was no reply. */
  mayBeDone = false;
  /** Where the next attempt goes instead of the master that has the slot. */
  redirect: Master | null = null;
  reason = 'there is no connection';
  /** A write was sent and has no outcome yet. */
  isWriteInFlight = false;
  readonly #clock: Clock;
  readonly #maskedUrl: string;

  constructor(
    request: RedisRequest,
    clock: Clock,
    maskedUrl: string,
    attempt: (execution: Execution) => Promise<Executed>,
  ) {
    this.request = request;
    this.#clock = clock;
    this.#maskedUrl = maskedUrl;
    this.done = attempt(this);
  }

  get leftMs(): number {
    return Math.max(0, this.request.deadlineAt - this.#clock.monotonic());
  }

  /** The error of a request that is given up now. */
  failure(): QuaysideError {
    if (!this.mayBeDone && !this.isWriteInFlight)
      return unavailable(`${this.#maskedUrl} cannot be used now: ${this.reason}.`);
    return new QuaysideError(
      'outcome-unknown',
      `${this.#maskedUrl} did not reply in time; whether the call was executed is unknown.`,
    );
  }
}
