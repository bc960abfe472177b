import { randomBytes } from 'node:crypto';
import { DeadlineQueue, Expiring, inTime, UNREACHABLE_MS } from '../../engine/calls.ts';
import type { ReadySignal } from '../../engine/signaller.ts';
import type { ElementId } from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import type { CancelTimer } from '../../util/clock.ts';
import type { RedisSignaller } from './channels.ts';
import type { Arg, Command, Reply } from './client/connection.ts';
import { type Execution, ExecutionError } from './client/executor.ts';
import type { Master } from './client/master.ts';
import { slotOf } from './client/topology.ts';
import type { RedisContext } from './context.ts';
import { queueText } from './keys.ts';
import type { Due, Registry } from './registry.ts';

/** One verb's part of a reply of the library. */
export interface Result {
  /** The queue's tag, with which its ids begin; zeros if it does not exist, as after it was deleted. */
  readonly tag: string;
  readonly text: Buffer;
  /** Stored values of elements, if the verb returns any. */
  readonly elements: readonly (Buffer | null)[];
}

/**
 * A verb of the library (`library/*.lua`): how calls of it become arguments, and its result theirs. Calls that
 * follow each other with the same `join` are executed as one.
 */
export interface Verb<Call, Value> {
  readonly name: string;
  /** Keys in addition to those of the queue. */
  keys?(calls: readonly Call[]): readonly string[];
  encode(calls: readonly Call[]): readonly Arg[];
  /** One value per call, in their order; an error for a call that was rejected. */
  decode(result: Result, calls: readonly Call[]): readonly (Value | QuaysideError)[];
  /** Of a take: the numbers(6) of the elements of a value. */
  numbersOf?(value: Value): readonly Buffer[];
}

/** A verb whose calls are not joined. */
export function single<Call, Value>(
  name: string,
  encode: (call: Call) => readonly Arg[],
  decode: (result: Result, call: Call) => Value | QuaysideError,
): Verb<Call, Value> {
  return {
    name,
    encode: ([call]) => encode(call as Call),
    decode: (result, [call]) => [decode(result, call as Call)],
  };
}

/** Entries of an outbox for one destination, the oldest first: see `library/outbox.lua`. */
interface Prefix {
  /** The full name of the destination, as `queueText` writes it. */
  readonly to: string;
  /** The number of the newest entry; zeros if there is none. */
  readonly last: Buffer;
  /** None also if the call did not wait for replicas: then they are to be read again. */
  readonly entries: readonly Buffer[];
}

interface Died {
  /** The full name of the dead-letter queue. */
  readonly to: string;
  readonly counts: readonly (readonly [group: string, count: number])[];
}

/** A reply of the library's `run`, taken apart: see `library/session.lua`. */
export interface LibraryReply {
  /** The server's time of the call. */
  readonly now: number;
  readonly tag: string;
  /** The call created the queue. */
  readonly isNew: boolean;
  readonly results: readonly Result[];
  /** Deliveries that went to the dead-letter queue; null: none. */
  readonly died: Died | null;
  readonly outbox: readonly Prefix[];
  /** The retention that the queue has by options of its own, 0 for none; null if it has no options. */
  readonly retentionMs: number | null;
}

/** What a storage operation says of a call, in addition to the call. */
interface CallOptions {
  /** Calls next to each other with the same are executed as one; not given: this one is alone. */
  readonly join?: string | null;
  /** Executing it twice has the effect of executing it once. All others are numbered. */
  readonly isRepeatable?: boolean;
  /** It changes nothing that its caller must know of: repeatable, and may be in a batch with numbered calls. */
  readonly isRead?: boolean;
  /** It stores what needs memory: rejected if the server has none left. */
  readonly stores?: boolean;
  /** If changes wait for replicas, this one does. Not given: if it is numbered. */
  readonly waits?: boolean;
  /** It may create its queue. */
  readonly creates?: boolean;
  /** It moves elements to other queues, and is answered when they are there. */
  readonly moves?: boolean;
  /** Queues that must be swept within a time, since leases, elements or retention may end by then. */
  readonly dues?: readonly Due[];
  /** Published when it is done. */
  readonly signal?: ReadySignal | null;
  /** Deliveries that it makes; not given: as many as items. */
  readonly deliveries?: number;
  /** Elements or references, and bytes that it sends. */
  readonly items?: number;
  readonly bytes?: number;
  /** That the page which it returns may have. Takes need none: those of a batch share a bound in the library. */
  readonly pageBytes?: number;
  /** Not given: its time begins now. */
  readonly deadlineAt?: number;
}

/** What batches need in addition. */
interface BatcherContext extends RedisContext {
  readonly registry: Registry;
  /** Publishes signals of stored elements. */
  readonly signaller: RedisSignaller;
  /**
   * What a reply says of other queues, before its calls are answered. Returns what the calls that move elements wait
   * for, up to their deadlines. @param awaitedUntil the last of those deadlines; null: there are no such calls
   */
  readonly onReply: (
    queue: QueueKey,
    reply: LibraryReply,
    awaitedUntil: number | null,
  ) => Promise<void> | null;
}

/** What one batch carries at most, unless a single call is larger: a server with a larger one keeps others waiting. */
const MAX_DELIVERIES = 1_000;
const MAX_BYTES = 4 * 1024 * 1024;
const MAX_PAGE_BYTES = 16 * 1024 * 1024;
/** A queue that was not used for this long lets the server finish what it popped last. */
const IDLE_MS = 5_000;
const SETTLE_AGAIN_MS = 500;
/** A stop waits for servers no longer than this. */
const STOP_MS = 2_000;

const CLIENT_BYTES = 8;
const HEAD_BYTES = CLIENT_BYTES + 6 * 6 + 1;

type AnyVerb = Verb<unknown, unknown>;
type OnValue = (value: unknown) => void;

/** The batchers of all queues in use. */
export class Batchers {
  readonly context: BatcherContext;
  /** What names this engine object to the server. */
  readonly client = randomBytes(CLIENT_BYTES);
  readonly #deadlines: DeadlineQueue;
  readonly #batchers = new Map<string, Batcher>();
  readonly #scheduled = new Set<Batcher>();
  #flushing: NodeJS.Immediate | null = null;
  #isStopped = false;
  /** Numbers of a new batcher start above all that were used, so that a call of an older one stays stale. */
  #highest = 0;

  constructor(context: BatcherContext) {
    this.context = context;
    this.#deadlines = new DeadlineQueue(context.clock);
  }

  /** Calls a verb of a queue. @throws QuaysideError */
  call<Call, Value>(
    queue: QueueKey,
    verb: Verb<Call, Value>,
    args: Call,
    options: CallOptions = {},
  ): Promise<Value> {
    const batcher = this.#batcherOf(queue);
    return new Promise<Value>((resolve, reject) => {
      const rejection = this.#rejection(batcher);
      if (rejection !== null) reject(rejection);
      else {
        const call = new PendingCall(batcher, verb as AnyVerb, args, options, resolve as OnValue, reject);
        this.add(call);
        batcher.enqueue(call);
      }
    });
  }

  /** Several calls in the time of one, see `engine/calls.ts`. @throws QuaysideError `outcome-unknown` */
  inTime<Value>(value: Promise<Value>): Promise<Value> {
    const late = (): Error => new ExecutionError('outcome-unknown', 'Redis did not answer in time.');
    return inTime(this.context.clock, value, late);
  }

  /** The deadline of a call that is made now, and has so much of its time left. */
  deadline(leftMs?: number): number {
    return this.#deadlines.deadline(leftMs);
  }

  add(call: PendingCall): void {
    call.deadlineAt = call.options.deadlineAt ?? this.deadline();
    this.context.executor.pending.add(call.bytes);
    this.#deadlines.add(call);
  }

  onSettled(call: PendingCall): void {
    this.#deadlines.remove(call);
    this.context.executor.pending.remove(call.bytes);
  }

  /** Sends the batch of a queue when this turn's calls are all made. */
  schedule(batcher: Batcher): void {
    if (this.#isStopped) return;
    this.#scheduled.add(batcher);
    this.#flushing ??= setImmediate(() => {
      this.#flushing = null;
      const ready = [...this.#scheduled];
      this.#scheduled.clear();
      for (const each of ready) each.flush();
    });
  }

  /** The number that follows `number`. */
  nextNumber(number: number): number {
    this.#highest = Math.max(this.#highest, number + 1);
    return number + 1;
  }

  forget(batcher: Batcher): void {
    const text = queueText(batcher.queue);
    // Another one may have taken its place. That one must stay: two batchers of one queue would use the same numbers.
    if (!batcher.isIdle || this.#batchers.get(text) !== batcher) return;
    this.#batchers.delete(text);
    this.#scheduled.delete(batcher);
    batcher.stop();
  }

  /**
   * Before a stop: has the servers undo what calls took whose outcome is unknown, as far as they reply soon. A minute
   * after the last call of this node, a sweep makes it final.
   */
  async settle(): Promise<void> {
    const deadlineAt = this.deadline(STOP_MS);
    const unsettled = [...this.#batchers.values()].filter(({ isUnsettled }) => isUnsettled);
    await Promise.allSettled(
      unsettled.map(({ queue }) => this.call(queue, SETTLE_SESSION, undefined, { deadlineAt })),
    );
  }

  stop(): void {
    this.#isStopped = true;
    if (this.#flushing !== null) clearImmediate(this.#flushing);
    for (const batcher of this.#batchers.values()) batcher.stop();
    this.#batchers.clear();
    this.#deadlines.stop();
  }

  #batcherOf(queue: QueueKey): Batcher {
    const text = queueText(queue);
    let batcher = this.#batchers.get(text);
    if (batcher === undefined) {
      batcher = new Batcher(queue, this, this.#highest);
      this.#batchers.set(text, batcher);
    }
    return batcher;
  }

  /** Why a call would be in vain now; null: it may succeed. */
  #rejection(batcher: Batcher): QuaysideError | null {
    if (this.#isStopped) return new ExecutionError('storage-unavailable', 'The engine is stopped.');
    const rejection = this.context.executor.rejection(batcher.slot);
    // Names come from requests: a batcher that never sent anything must not stay.
    if (rejection !== null && batcher.isUnused) this.forget(batcher);
    return rejection;
  }
}

/** Calls that are sent as one call of the library. */
interface Batch {
  /** Without those that expired before anything was sent: see `encode`. */
  calls: readonly PendingCall[];
  bundles: readonly Bundle[];
  /** All of its calls are. */
  readonly isRepeatable: boolean;
  readonly creates: boolean;
  /** 0 if it may be repeated. */
  readonly number: number;
  /** The number up to which the outcomes are known. */
  readonly received: number;
  /** The last one of its calls, by the monotonic clock. */
  readonly deadlineAt: number;
  /** Published when it is done. */
  readonly signals: readonly Command[];
  /** Null until it is sent. */
  execution: Execution | null;
  /** Its calls are settled; what comes later changes nothing here. */
  isOver: boolean;
}

/** What the library is called with for a batch, without what differs from attempt to attempt. */
interface EncodedCalls {
  readonly keys: readonly string[];
  readonly args: readonly Arg[];
}

/** Calls next to each other that one verb serves. */
interface Bundle {
  readonly verb: AnyVerb;
  readonly calls: PendingCall[];
}

/**
 * The calls of one queue. One batch is in flight at a time, and what is called until it ends gathers for the next: so
 * calls take effect in the order in which they were made, through whatever reconnections, and batches grow with the
 * load. Reads are in the batches of the numbered calls between which they were made: only a page whose reply was lost
 * may be read after calls that were made later.
 *
 * A batch waits for no other queue. Each call settles by its deadline, and a batch ends with the last deadline
 * of its calls, whatever it waits for: the library rejects it from then on, since a later one has a higher number.
 */
class Batcher {
  readonly queue: QueueKey;
  readonly slot: number;
  readonly owner: Batchers;
  readonly #keys: readonly string[];
  readonly #policy: string;
  readonly #context: BatcherContext;
  readonly #isList: boolean;
  readonly #waiting: PendingCall[] = [];
  readonly #firstNumber: number;
  /** The last number used, and the one up to which every outcome is known. */
  #number: number;
  #received: number;
  #inFlight: Batch | null = null;
  /**
   * What the last numbered batch took for calls that had expired when its reply came, in the form of
   * `library/session.lua`: the server undoes it with the next numbered batch. Null: nothing.
   */
  #returned: Buffer | null = null;
  /** The server keeps what the last batch popped until the next one. */
  #keepsPops = false;
  readonly #policyRetentionMs: number;
  /** By the namespace's policy, or the queue's own as its replies say. */
  #retentionMs: number;
  #cancelTimer: CancelTimer | null = null;

  constructor(queue: QueueKey, owner: Batchers, firstNumber: number) {
    const { context } = owner;
    this.queue = queue;
    this.owner = owner;
    this.#context = context;
    this.#isList = context.settings.variant === 'list';
    const { hash, order } = context.keys.queue(queue);
    this.#keys = this.#isList ? [context.keys.list(queue)] : [hash, order];
    this.slot = slotOf(hash);
    this.#policy = context.policies.encode(queue);
    this.#policyRetentionMs = context.policies.retentionMs(queue);
    this.#retentionMs = this.#policyRetentionMs;
    this.#firstNumber = firstNumber;
    this.#number = firstNumber;
    this.#received = firstNumber;
  }

  enqueue(call: PendingCall): void {
    this.#waiting.push(call);
    this.owner.schedule(this);
  }

  /** Sends what waits, unless a batch is in flight. Called once a turn, so that the turn's calls go together. */
  flush(): void {
    if (this.#inFlight !== null) return;
    const calls = this.#gather();
    if (calls.length > 0) this.#send(calls);
    // Calls that only read put nothing off: while a queue is scanned, what became of a lost take must be settled all
    // the same.
    if (areRepeatable(calls)) this.#rest();
  }

  /** The deadline of a call has passed: it is settled with what is known of it. */
  expire(call: PendingCall): void {
    const { batch } = call;
    if (batch === null) {
      call.reject(new ExecutionError('storage-unavailable', 'The calls before this one took too long.'));
      while (this.#waiting[0]?.isSettled === true) this.#waiting.shift();
    } else {
      const unsent = new ExecutionError('storage-unavailable', 'Redis cannot be reached now.');
      const error = batch.execution?.failure() ?? unsent;
      if (call.deadlineAt < batch.deadlineAt) call.reject(error);
      else this.#onError(batch, error);
    }
  }

  /** Nothing waits, and every outcome is known. */
  get isIdle(): boolean {
    return this.#waiting.length === 0 && this.#inFlight === null && !this.isUnsettled;
  }

  /** The server must still undo what a batch took, or did not reply to one. */
  get isUnsettled(): boolean {
    return this.#number !== this.#received || this.#returned !== null;
  }

  /** Nothing was ever sent, nor waits to be. */
  get isUnused(): boolean {
    return this.isIdle && this.#number === this.#firstNumber;
  }

  stop(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = null;
  }

  /** @param isPrepared what must be there before has been written, or is not needed */
  #send(calls: readonly PendingCall[], isPrepared = false): void {
    const isRepeatable = areRepeatable(calls);
    if (!isRepeatable) this.stop();
    const isNumbered = !isRepeatable && !this.#isList;
    if (isNumbered) this.#number = this.owner.nextNumber(this.#number);
    let deadlineAt = Number.NEGATIVE_INFINITY;
    for (const call of calls) deadlineAt = Math.max(deadlineAt, call.deadlineAt);
    const batch: Batch = {
      calls,
      bundles: bundlesOf(calls),
      isRepeatable,
      creates: calls.some(({ options }) => options.creates === true),
      number: isNumbered ? this.#number : 0,
      received: this.#received,
      deadlineAt,
      signals: this.#signalsOf(calls),
      execution: null,
      isOver: false,
    };
    for (const call of calls) call.batch = batch;
    this.#inFlight = batch;
    const preparing = isPrepared || (isRepeatable && !batch.creates) ? null : this.#prepare(batch);
    const sending = preparing === null ? this.#execute(batch) : preparing.then(() => this.#execute(batch));
    sending.then(
      (executed) => this.#onExecuted(batch, executed),
      (error: unknown) => this.#onError(batch, error),
    );
  }

  /**
   * Before a batch that creates its queue, the name is made known; before one that needs a sweep, the entry by which a
   * sweep finds the queue. For queues that do not exist nothing is written. Null: nothing is to be done.
   *
   * Names and entries may be on another server of a cluster. Calls that need neither, those behind the batch included,
   * wait for that one only until it counts as unreachable.
   */
  #prepare(batch: Batch): Promise<void> | null {
    const { registry, topology, clock } = this.#context;
    const soon = topology.isCluster ? clock.monotonic() + UNREACHABLE_MS : Number.POSITIVE_INFINITY;
    const deadlineAt = Math.min(batch.deadlineAt, soon);
    if (!registry.isDeclared(this.queue)) return this.#prepareUnknown(batch, deadlineAt).catch(notPrepared);
    this.#tidyLater();
    registry.noteUse(this.queue);
    return this.#registerDues(batch, deadlineAt);
  }

  async #prepareUnknown(batch: Batch, deadlineAt: number): Promise<void> {
    const { registry } = this.#context;
    if (batch.creates) await registry.declare([this.queue], deadlineAt);
    else if (!(await registry.isKnown(this.queue, deadlineAt))) return;
    this.#tidyLater();
    await this.#registerDues(batch, deadlineAt);
  }

  /** Whether something must be written before the call. */
  #needsPreparation({ options: { creates = false, dues = [] } }: PendingCall): boolean {
    if (dues.length > 0) return true;
    return creates && (this.#retentionMs > 0 || !this.#context.registry.isDeclared(this.queue));
  }

  /** What a list remembers ends by itself. */
  #tidyLater(): void {
    if (!this.#isList) this.#context.registry.tidyLater(this.queue);
  }

  #registerDues({ calls }: Batch, deadlineAt: number): Promise<void> | null {
    const { registry } = this.#context;
    let needed: Promise<void>[] | null = null;
    const register = (queue: QueueKey, ms: number): void => {
      const registering = registry.dueIn(queue, ms, deadlineAt);
      if (registering !== null) needed = [...(needed ?? []), registering];
    };
    for (const { options } of calls) {
      if (options.creates === true && this.#retentionMs > 0) register(this.queue, this.#retentionMs);
      for (const { queue, ms } of options.dues ?? []) register(queue, ms);
    }
    return needed === null ? null : Promise.all(needed).then(() => {}, notPrepared);
  }

  /** The commands that publish the signals of calls, one for all that have the same. */
  #signalsOf(calls: readonly PendingCall[]): readonly Command[] {
    let counts: Map<ReadySignal, number> | null = null;
    for (const { options, items } of calls) {
      const signal = options.signal ?? null;
      if (signal === null) continue;
      counts ??= new Map();
      counts.set(signal, (counts.get(signal) ?? 0) + items);
    }
    if (counts === null) return NO_SIGNALS;
    const { signaller } = this.#context;
    return Array.from(counts, ([signal, count]) => signaller.command(signal.topic, signal.messageFor(count)));
  }

  #execute(batch: Batch): Execution['done'] {
    const { executor, topology } = this.#context;
    const { calls, isRepeatable, deadlineAt } = batch;
    const run = `${executor.library}${this.#isList ? '_list' : ''}`;
    let encoded: EncodedCalls | null = null;
    batch.execution = executor.execute({
      slot: this.slot,
      name: 'FCALL',
      args: (master, mayBeDone) => {
        // One that expired was rejected, and nothing of it may happen any more.
        const isLess = !mayBeDone && dropExpired(batch);
        if (encoded === null || isLess) encoded = this.#encode(batch);
        const { keys, args } = encoded;
        const stores = batch.calls.some(({ options }) => options.stores === true);
        // Redis rejects `run`, before anything happens, if it is out of memory; what frees memory or needs little
        // passes then.
        const name = stores && !mayBeDone ? run : `${run}_full`;
        return [name, keys.length, ...keys, this.#head(batch, master, mayBeDone), ...args];
      },
      writes: calls.some(({ options }) => options.waits ?? !isRepeatable),
      repeatable: !this.#isList || isRepeatable,
      followers: topology.isCluster ? NO_SIGNALS : batch.signals,
      deadlineAt,
    });
    return batch.execution.done;
  }

  #encode({ bundles }: Batch): EncodedCalls {
    const args: Arg[] = [this.#policy];
    let keys = this.#keys;
    for (const { verb, calls } of bundles) {
      const own = calls.map((call) => call.args);
      if (verb.keys !== undefined) keys = [...keys, ...verb.keys(own)];
      args.push(verb.name);
      for (const arg of verb.encode(own)) args.push(arg);
    }
    return { keys, args };
  }

  /** What the server must know of this attempt: see `library/session.lua`. */
  #head({ number, received }: Batch, master: Master, mayBeDone: boolean): Buffer {
    const { settings, topology } = this.#context;
    const givenTime = settings.givenTime?.now();
    const head = Buffer.alloc(HEAD_BYTES);
    head.set(this.owner.client);
    head.writeUIntBE(number, CLIENT_BYTES, 6);
    head.writeUIntBE(received, CLIENT_BYTES + 6, 6);
    head.writeUIntBE(givenTime ?? Math.max(0, master.serverTime), CLIENT_BYTES + 12, 6);
    head.writeUIntBE(givenTime ?? 0, CLIENT_BYTES + 18, 6);
    const { since, excusedUntil } = master.contact;
    head.writeUIntBE(since, CLIENT_BYTES + 24, 6);
    head.writeUIntBE(excusedUntil, CLIENT_BYTES + 30, 6);
    head.writeUInt8((topology.isCluster ? 1 : 0) + (mayBeDone ? 2 : 0), CLIENT_BYTES + 36);
    return this.#returned === null ? head : Buffer.concat([head, this.#returned]);
  }

  #onExecuted(batch: Batch, { reply, master }: Awaited<Execution['done']>): void {
    const { settings, signaller, log, onReply } = this.#context;
    let read: LibraryReply;
    try {
      read = readReply(reply);
    } catch (error) {
      log.warn({ queue: queueText(this.queue), err: error }, 'a reply of Redis cannot be decoded');
      this.#onError(batch, new ExecutionError('outcome-unknown', 'The reply of Redis cannot be decoded.'));
      return;
    }
    if (settings.givenTime === null) master.noteServerTime(read.now);
    for (const signal of batch.signals) signaller.onStored(signal);
    if (batch.isOver) return;
    batch.isOver = true;
    const again: PendingCall[] = [];
    const decoded = batch.bundles.flatMap((bundle, i) => {
      const result = read.results[i];
      if (!isUnkeptRead(bundle, result)) return [{ ...bundle, ...decode(bundle, result) }];
      again.push(...bundle.calls);
      return [];
    });
    const failed = decoded.find(({ error }) => error !== null);
    if (failed !== undefined) this.#undoUndecodable(batch, failed.error);
    else if (batch.number > 0) this.#received = batch.number;
    if (batch.number > 0) {
      this.#keepsPops = batch.calls.some(isTake);
      this.#returned = failed === undefined ? returnedOf(batch.number, decoded) : null;
      if (this.#returned !== null) this.#waiting.push(this.#ownCall(SETTLE_SESSION, undefined));
    }
    const registered = this.#afterwards(batch, read);
    const last = batch.calls.findLast(({ options }) => options.moves === true);
    const moved = onReply(this.queue, read, last?.deadlineAt ?? null);
    const both = moved === null ? registered : Promise.all([registered, moved]).then(() => {});
    for (const { calls, values, error } of decoded) {
      for (const [at, call] of calls.entries()) {
        call.settleAfter(call.options.moves === true ? both : registered, error ?? values[at]);
      }
    }
    for (const call of again) call.batch = null;
    this.#waiting.unshift(...again);
    this.#next();
  }

  /**
   * What a batch turned out to need outside its slot: the name of a queue that lost its data, and perhaps its name with
   * them; sweeps of a queue that was unknown before, or has a retention of its own.
   */
  #afterwards(batch: Batch, { isNew, tag, retentionMs }: LibraryReply): Promise<void> | null {
    const { registry } = this.#context;
    const current = retentionMs ?? this.#policyRetentionMs;
    const isOtherRetention = current !== this.#retentionMs;
    this.#retentionMs = current;
    if (tag === '' || (batch.number === 0 && !batch.creates)) return null;
    registry.noteTag(this.queue, tag);
    const isKnown = registry.isDeclared(this.queue);
    // A repeated reply does not tell that the attempt whose reply was lost created the queue.
    const mayBeNew = isNew || batch.execution?.mayBeDone === true;
    if (isKnown && !isOtherRetention && !mayBeNew) return null;
    // Also if that was done before the batch: another node may have dropped the queue, and removed the name, in
    // between.
    const naming = mayBeNew && batch.creates ? registry.declare([this.queue]) : null;
    if (!isKnown) this.#tidyLater();
    return Promise.all([naming, this.#registerDues(batch, batch.deadlineAt)]).then(
      () => {},
      () => registry.forgetWritten(this.queue),
    );
  }

  /**
   * A reply that cannot be decoded counts as not received, so that the next batch of the queue makes the server undo
   * the takes of this one: all of them. What cannot be decoded is postponed in that batch, or it would be taken again
   * at once.
   */
  #undoUndecodable(batch: Batch, error: unknown): void {
    const elements = error instanceof UndecodableElements ? error.elements : [];
    const { log } = this.#context;
    const queue = queueText(this.queue);
    if (elements.length === 0) log.warn({ queue, err: error }, 'a reply of Redis cannot be decoded');
    for (const { id, cause } of elements) {
      log.warn({ queue, id, err: cause }, 'the content of an element cannot be decoded; it is postponed');
    }
    if (batch.number === 0) return;
    for (const call of batch.calls) if (isTake(call)) call.reject(error);
    const deliveries = elements.map(({ delivery }) => delivery);
    if (deliveries.length > 0) this.#waiting.unshift(this.#ownCall(POSTPONE, deliveries));
  }

  /**
   * If a full server rejected the batch, what stores nothing is sent again without what does; if it could not be
   * prepared, what needs no preparation without what does. Reads of a failed batch are sent again by themselves: they
   * fail for no other call.
   */
  #onError(batch: Batch, error: unknown): void {
    if (batch.isOver) return;
    batch.isOver = true;
    const certain = error instanceof ExecutionError && error.certain;
    // What was not done needs no reply. But while an earlier outcome is unknown, no number may pass it: the server
    // would take the lost reply for received, and keep for good what it handed out.
    if (certain && this.#received === batch.number - 1) this.#received = batch.number;
    const isFull = error instanceof ExecutionError && error.code === 'storage-full';
    const now = this.#context.clock.monotonic();
    const rest = batch.calls.filter((call) => {
      const { isSettled, options, deadlineAt } = call;
      if (isSettled) return false;
      if (isFull) return options.stores !== true;
      if (deadlineAt <= now) return false;
      if (error instanceof NotPrepared) return !this.#needsPreparation(call);
      return options.isRead === true && !batch.isRepeatable;
    });
    for (const call of batch.calls) if (!rest.includes(call)) call.reject(error);
    if (rest.length > 0) this.#send(rest, true);
    else this.#next();
  }

  #next(): void {
    this.#inFlight = null;
    this.owner.schedule(this);
  }

  /**
   * Calls from the front, as many as fit; without those that have expired. Of what is not a read, either numbered calls
   * or repeatable ones: the reply of a relay's step has outbox entries, which a session does not keep.
   */
  #gather(): PendingCall[] {
    const calls: PendingCall[] = [];
    let isRepeatable: boolean | null = null;
    let deliveries = 0;
    let bytes = 0;
    let pageBytes = 0;
    let used = 0;
    for (const call of this.#waiting) {
      if (!call.isSettled) {
        deliveries += call.options.deliveries ?? call.items;
        bytes += call.bytes;
        pageBytes += call.options.pageBytes ?? 0;
        const isFull = deliveries > MAX_DELIVERIES || bytes > MAX_BYTES || pageBytes > MAX_PAGE_BYTES;
        const isRead = call.options.isRead === true;
        const isOther = !isRead && isRepeatable !== null && call.isRepeatable !== isRepeatable;
        if (calls.length > 0 && (isFull || isOther)) break;
        if (!isRead) isRepeatable = call.isRepeatable;
        calls.push(call);
      }
      used++;
    }
    this.#waiting.splice(0, used);
    return calls;
  }

  /**
   * Nothing that changes the queue waits. A batch without effect of its own makes the server undo what it never
   * replied, or finish what it popped; then the batcher is forgotten. The session that remains is removed by a sweep.
   */
  #rest(): void {
    if (this.#cancelTimer !== null) return;
    const isUnsettled = this.isUnsettled;
    this.#cancelTimer = this.#context.clock.after(isUnsettled ? SETTLE_AGAIN_MS : IDLE_MS, () => {
      this.#cancelTimer = null;
      if (isUnsettled || this.#keepsPops) this.enqueue(this.#ownCall(SETTLE_SESSION, undefined));
      else this.owner.forget(this);
    });
  }

  #ownCall<Call>(verb: Verb<Call, undefined>, args: Call): PendingCall {
    const done = (): void => {};
    const call = new PendingCall(this, verb as AnyVerb, args, {}, done, done);
    this.owner.add(call);
    return call;
  }
}

/** One call of a verb, from when it is made until its caller has a result. */
class PendingCall extends Expiring {
  readonly verb: AnyVerb;
  readonly args: unknown;
  readonly options: CallOptions;
  readonly isRepeatable: boolean;
  readonly items: number;
  readonly bytes: number;
  deadlineAt = 0;
  /** The batch in which it is sent; null before. */
  batch: Batch | null = null;
  isSettled = false;
  /** The result, while what the caller waits for is not done. */
  #result: { readonly value: unknown } | null = null;
  readonly #batcher: Batcher;
  readonly #resolve: OnValue;
  readonly #reject: (error: unknown) => void;

  constructor(
    batcher: Batcher,
    verb: AnyVerb,
    args: unknown,
    options: CallOptions,
    resolve: OnValue,
    reject: (error: unknown) => void,
  ) {
    super();
    this.verb = verb;
    this.args = args;
    this.options = options;
    this.isRepeatable = options.isRepeatable === true || options.isRead === true;
    this.items = options.items ?? 1;
    this.bytes = options.bytes ?? 0;
    this.#batcher = batcher;
    this.#resolve = resolve;
    this.#reject = reject;
  }

  reject(error: unknown): void {
    if (this.#settle()) this.#reject(this.options.isRead === true ? unread(error) : error);
  }

  /** It is done and cannot be undone, so this is the result, after `others` or at the deadline. An error is at once. */
  settleAfter(others: Promise<void> | null, value: unknown): void {
    if (value instanceof Error) {
      this.reject(value);
    } else if (others === null) {
      if (this.#settle()) this.#resolve(value);
    } else {
      this.#result = { value };
      void others.then(() => this.settleAfter(null, value));
    }
  }

  expire(): void {
    if (this.#result !== null) this.settleAfter(null, this.#result.value);
    else this.#batcher.expire(this);
  }

  #settle(): boolean {
    if (this.isSettled) return false;
    this.isSettled = true;
    this.#batcher.owner.onSettled(this);
    return true;
  }
}

function areRepeatable(calls: readonly PendingCall[]): boolean {
  return calls.every(({ isRepeatable }) => isRepeatable);
}

/** The reply is that of a session, which keeps no page (`library/session.lua`). */
function isUnkeptRead({ calls: [call] }: Bundle, result: Result | undefined): boolean {
  return call?.options.isRead === true && result?.text.length === 0;
}

/** Why a read failed: it changed nothing, whatever became of the batch. */
function unread(error: unknown): unknown {
  if (!(error instanceof ExecutionError) || error.certain) return error;
  return new ExecutionError('storage-unavailable', 'Redis did not answer in time.');
}

/** Only a numbered batch has one. */
function isTake({ verb }: PendingCall): boolean {
  return verb.name === 'take';
}

/** Returns whether there was any. */
function dropExpired(batch: Batch): boolean {
  const left = batch.calls.filter(({ isSettled }) => !isSettled);
  if (left.length === batch.calls.length) return false;
  batch.calls = left;
  batch.bundles = bundlesOf(left);
  return true;
}

function bundlesOf(calls: readonly PendingCall[]): Bundle[] {
  const bundles: Bundle[] = [];
  let last: string | null = null;
  for (const call of calls) {
    const join = call.options.join ?? null;
    if (join !== null && join === last) bundles.at(-1)?.calls.push(call);
    else bundles.push({ verb: call.verb, calls: [call] });
    last = join;
  }
  return bundles;
}

/** The values of the calls of a bundle, or why there are none. */
interface Decoded {
  readonly values: readonly unknown[];
  readonly error: unknown;
}

/** What a batch took for calls that have expired: see `library/session.lua`. Null: nothing. */
function returnedOf(batchNumber: number, decoded: readonly (Bundle & Decoded)[]): Buffer | null {
  const takes = decoded.filter(({ verb }) => verb.numbersOf !== undefined);
  const named: Buffer[] = [];
  for (const [index, { verb, calls, values }] of takes.entries()) {
    for (const [at, call] of calls.entries()) {
      if (!call.isSettled) continue;
      const place = Buffer.alloc(2);
      place.writeUInt16BE(index + 1);
      for (const number of verb.numbersOf?.(values[at]) ?? []) named.push(place, number);
    }
  }
  if (named.length === 0) return null;
  const number = Buffer.alloc(6);
  number.writeUIntBE(batchNumber, 0, 6);
  return Buffer.concat([number, ...named]);
}

function decode({ verb, calls }: Bundle, result: Result | undefined): Decoded {
  try {
    if (result === undefined) throw new Error('a result of the library is missing');
    const args = calls.map((call) => call.args);
    return { values: verb.decode(result, args), error: null };
  } catch (error) {
    return { values: [], error };
  }
}

const NO_SIGNALS: readonly Command[] = [];

/** Whatever became of the preparation: what was to follow it was not sent. */
class NotPrepared extends ExecutionError {}

function notPrepared(error: unknown): never {
  const why = error instanceof Error ? error.message : String(error);
  throw new NotPrepared('storage-unavailable', why);
}

const NO_ELEMENTS: readonly (Buffer | null)[] = [];
const TAG_OF_NONE = '0'.repeat(12);

function readReply(reply: Reply): LibraryReply {
  const [now, tag, isNew, texts, elements, died, outbox, options] = list(reply);
  const tagText = bytes(tag).toString('latin1');
  const resultTag = tagText === '' ? TAG_OF_NONE : tagText;
  const elementLists = list(elements);
  const [retentionMs] = list(options);
  return {
    now: Number(now),
    tag: tagText,
    isNew: isNew === 1,
    results: list(texts).map((text, i) => ({
      tag: resultTag,
      text: bytes(text),
      elements: readElements(elementLists[i]),
    })),
    died: readDied(list(died)),
    outbox: list(outbox).map(readPrefix),
    retentionMs: retentionMs === undefined ? null : Number(retentionMs),
  };
}

/** Elements as a list, or packed (MessagePack) if they are small: ioredis takes 0.7 µs for each item of a list. */
function readElements(elements: Reply | undefined): readonly (Buffer | null)[] {
  if (Array.isArray(elements)) return elements;
  if (!Buffer.isBuffer(elements)) return NO_ELEMENTS;
  const values: (Buffer | null)[] = [];
  let at = ARRAY_HEADS.get(elements[0] as number) ?? 1;
  while (at < elements.length) {
    const form = elements[at++] as number;
    if (form === FALSE) {
      values.push(null);
      continue;
    }
    let size = form & 0x1f;
    const width = STRING_WIDTHS.get(form) ?? 0;
    if (width > 0) size = elements.readUIntBE(at, width);
    at += width;
    values.push(elements.subarray(at, at + size));
    at += size;
  }
  return values;
}

/**
 * What begins a long array in MessagePack, and how long the beginning is; false; and what begins a string, and of how
 * many bytes its length is. A string of up to 31 bytes has its length in the first byte.
 */
const ARRAY_HEADS: ReadonlyMap<number, number> = new Map([
  [0xdc, 3],
  [0xdd, 5],
]);
const FALSE = 0xc2;
const STRING_WIDTHS: ReadonlyMap<number, number> = new Map([
  [0xd9, 1],
  [0xda, 2],
  [0xdb, 4],
]);

function readDied([to, ...flat]: readonly Reply[]): Died | null {
  if (to === undefined) return null;
  const counts: [string, number][] = [];
  for (let i = 0; i < flat.length; i += 2) counts.push([bytes(flat[i]).toString(), Number(flat[i + 1])]);
  return { to: bytes(to).toString(), counts };
}

function readPrefix(prefix: Reply): Prefix {
  const [to, last, ...entries] = list(prefix).map(bytes);
  return { to: bytes(to).toString(), last: bytes(last), entries };
}

function list(reply: Reply | undefined): readonly Reply[] {
  if (Array.isArray(reply)) return reply;
  throw new Error('a reply of the library has the wrong form');
}

function bytes(reply: Reply | undefined): Buffer {
  if (Buffer.isBuffer(reply)) return reply;
  throw new Error('a reply of the library has the wrong form');
}

/** A delivery of a take whose content cannot be decoded. */
export interface Undecodable {
  readonly id: ElementId;
  /** The number of its group(2) and its own(6). */
  readonly delivery: Buffer;
  readonly cause: unknown;
}

const POSTPONE_MS = 60_000;

/** Why a take failed that contains elements which this version cannot decode. */
export class UndecodableElements extends QuaysideError {
  readonly elements: readonly Undecodable[];

  constructor(first: Undecodable, elements: readonly Undecodable[]) {
    const message = `The content of element ${first.id} cannot be decoded; it was returned to its queue and is ready again in ${POSTPONE_MS / 1_000} s.`;
    super('storage-unavailable', message, { retryAfterMs: 1_000, cause: first.cause });
    this.elements = elements;
  }
}

/** Delays waiting deliveries, so that those behind them can be taken. */
const POSTPONE = single<readonly Buffer[], undefined>(
  'postpone',
  (deliveries) => [POSTPONE_MS, Buffer.concat(deliveries)],
  () => undefined,
);

/** Settles the client's previous batch, whatever became of it, and returns nothing. */
const SETTLE_SESSION = single<undefined, undefined>(
  'settle-session',
  () => [],
  () => undefined,
);
