import { randomBytes } from 'node:crypto';
import {
  inTime,
  isUnapplied,
  isUnknownOutcome,
  NOT_REACHABLE,
  PendingCall,
  UNREACHABLE_MS,
  unavailable,
  unknownOutcome,
} from '../../engine/calls.ts';
import type { ReadySignal } from '../../engine/signaller.ts';
import type { ElementId, NewElement } from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import type { CancelTimer } from '../../util/clock.ts';
import { messageOf } from '../../util/message-of.ts';
import type { RedisSignaller } from './channels.ts';
import type { Arg, Command } from './client/connection.ts';
import type { Execution } from './client/executor.ts';
import type { Master } from './client/master.ts';
import type { RedisContext } from './context.ts';
import { queueText } from './keys.ts';
import type { Registry } from './registry.ts';
import { type LibraryReply, type Result, readReply } from './reply.ts';

/**
 * A verb of the library (`library/*.lua`): encodes calls as arguments, and decodes its result into a value per call.
 * Consecutive calls with the same `join` are executed as one.
 */
export interface Verb<Call, Value> extends VerbTraits {
  readonly name: string;
  /** Keys in addition to those of the queue. */
  keys?(calls: readonly Call[]): readonly string[];
  encode(calls: readonly Call[]): readonly Arg[];
  /** One value per call, in their order; an error for a call that was rejected. */
  decode(result: Result, calls: readonly Call[]): readonly (Value | QuaysideError)[];
  /** For takes: the seqs(6) of the elements in a value. */
  numbersOf?(value: Value): readonly Buffer[];
}

/** How often the calls of a verb may be executed, and with which others. Calls of verbs without traits are numbered. */
interface VerbTraits {
  /** Executing it twice has the effect of executing it once. */
  readonly isRepeatable?: boolean;
  /**
   * It changes nothing that its caller depends on: it is repeatable, does not wait for replicas, and may share a batch
   * with numbered calls.
   */
  readonly isRead?: boolean;
}

/** A verb whose calls are not joined. */
export function single<Call, Value>(
  name: string,
  encode: (call: Call) => readonly Arg[],
  decode: (result: Result, call: Call) => Value | QuaysideError,
  traits: VerbTraits = {},
): Verb<Call, Value> {
  return {
    ...traits,
    name,
    encode: ([call]) => encode(call as Call),
    decode: (result, [call]) => [decode(result, call as Call)],
  };
}

/** What a batcher must know of a call in addition to its arguments. */
interface CallOptions {
  /** Consecutive calls with the same value are executed as one. Default: the call is not joined. */
  readonly join?: string | null;
  /** It needs memory: a server that is out of memory rejects it. */
  readonly stores?: boolean;
  /** It may create its queue. */
  readonly creates?: boolean;
  /** It moves elements to other queues, and resolves when they are there. */
  readonly moves?: boolean;
  /** It starts or extends leases, of which the first ends after this time: its queue must be swept by then. */
  readonly leaseMs?: number;
  /** The signal to publish when it is done, about the elements that it stores. */
  readonly ready?: { readonly signal: ReadySignal; readonly elements: readonly NewElement[] } | null;
  /** Deliveries that it creates or removes. Default: `items`. */
  readonly deliveries?: number;
  /** Elements or references that it sends (default: 1), and their bytes (default: 0). */
  readonly items?: number;
  readonly bytes?: number;
  /** Maximum bytes of the page that it returns. Takes need none: the library limits those of a batch together. */
  readonly pageBytes?: number;
  /** By the monotonic clock. Default: the timeout of a call from now on. */
  readonly deadlineAt?: number;
}

/** What batchers need in addition. */
export interface BatcherContext extends RedisContext {
  readonly registry: Registry;
  /** Publishes signals of stored elements. */
  readonly signaller: RedisSignaller;
  /**
   * Handles what a reply reports about other queues, before its calls resolve. Returns what the calls that move
   * elements wait for, up to their deadlines; null: nothing.
   * @param sentAt when the call was sent, by the monotonic clock: a node that was suspended reads its reply late
   * @param awaitedUntil the last of those deadlines; null: there are no such calls
   */
  readonly onReply: (
    queue: QueueKey,
    reply: LibraryReply,
    sentAt: number,
    awaitedUntil: number | null,
  ) => Promise<void> | null;
}

/** Maximum size of a batch, unless a single call is larger. Redis serves nobody else while it executes one. */
const MAX_DELIVERIES = 1_000;
const MAX_BYTES = 4 * 1024 * 1024;
const MAX_PAGE_BYTES = 16 * 1024 * 1024;
/** If a queue has had no changes for this long, a call makes the server finish its last pops. */
const IDLE_MS = 5_000;
const SETTLE_AGAIN_MS = 500;
/** How long a stop waits for servers. */
const STOP_MS = 2_000;

const CLIENT_BYTES = 8;
const HEAD_BYTES = CLIENT_BYTES + 6 * 6 + 1;

type AnyVerb = Verb<unknown, unknown>;

/** The batchers of all queues in use. */
export class Batchers {
  readonly context: BatcherContext;
  /** Identifies this engine object to the server. */
  readonly client = randomBytes(CLIENT_BYTES);
  readonly #batchers = new Map<string, Batcher>();
  readonly #scheduled = new Set<Batcher>();
  #flushing: NodeJS.Immediate | null = null;
  #isStopped = false;
  /** The highest number used. A new batcher starts above it, so that a late call of a removed batcher is stale. */
  #highest = 0;

  constructor(context: BatcherContext) {
    this.context = context;
  }

  /** Calls a verb of a queue. @throws QuaysideError */
  call<Call, Value>(
    queue: QueueKey,
    verb: Verb<Call, Value>,
    args: Call,
    options: CallOptions = {},
  ): Promise<Value> {
    const { executor, keys, topology } = this.context;
    const known = this.#batchers.get(queueText(queue));
    const slot = known?.slot ?? topology.slotOf(keys.queue(queue).hash);
    const rejection = this.#isStopped ? unavailable('The engine is stopped.') : executor.rejection(slot);
    // Requests name queues, so a rejected call must leave no batcher.
    if (rejection !== null) return Promise.reject(rejection);
    const batcher = known ?? this.#open(queue, slot);
    const call = new VerbCall(batcher, verb as AnyVerb, args, options);
    batcher.enqueue(call);
    return call.outcome as Promise<Value>;
  }

  /** Whether calls of this queue were made that may not be over: others take effect after them only in its batcher. */
  isInUse(queue: QueueKey): boolean {
    return this.#batchers.has(queueText(queue));
  }

  /** Gives an operation of several calls the timeout of one call. @throws QuaysideError `outcome-unknown` */
  inTime<Value>(value: Promise<Value>): Promise<Value> {
    return inTime(this.context.clock, value, () => unknownOutcome());
  }

  /** Flushes a batcher when all calls of this turn of the event loop have been made. */
  schedule(batcher: Batcher): void {
    if (this.#isStopped) return;
    this.#scheduled.add(batcher);
    this.#flushing ??= setImmediate(() => {
      this.#flushing = null;
      const ready = [...this.#scheduled];
      this.#scheduled.clear();
      for (const batcher of ready) batcher.flush();
    });
  }

  /** The number that follows `number`. */
  nextNumber(number: number): number {
    this.#highest = Math.max(this.#highest, number + 1);
    return number + 1;
  }

  forget(batcher: Batcher): void {
    if (!batcher.isIdle) return;
    this.#batchers.delete(queueText(batcher.queue));
    this.#scheduled.delete(batcher);
  }

  /**
   * Before a stop: makes the servers undo takes of unknown outcome, as far as they reply soon. Otherwise the takes
   * become final in a sweep, a minute after the last call of this node.
   */
  async settle(): Promise<void> {
    const deadlineAt = this.context.executor.deadline(STOP_MS);
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
    this.context.executor.pending.stop();
  }

  #open(queue: QueueKey, slot: number): Batcher {
    const batcher = new Batcher(queue, slot, this, this.#highest);
    this.#batchers.set(queueText(queue), batcher);
    return batcher;
  }
}

/** Calls that are sent as one call of the library. */
interface Batch {
  /** Without those that expired before anything was sent. */
  calls: readonly VerbCall[];
  /** Of the last attempt. */
  bundles: readonly Bundle[];
  /** All of its calls are repeatable. */
  readonly isRepeatable: boolean;
  readonly creates: boolean;
  /** 0 if it is repeatable, or of the list variant. */
  readonly number: number;
  /** The number up to which the outcomes are known. */
  readonly received: number;
  /** The latest deadline of its calls, by the monotonic clock. */
  readonly deadlineAt: number;
  /** Publishes the signal of its inserts, when it is done; null: they have none. */
  readonly publication: Command | null;
  /** Null until it is sent. */
  execution: Execution | null;
  /** When it was first sent, by the monotonic clock. */
  sentAt: number;
  /** Its calls are settled; a later reply changes nothing here. */
  isOver: boolean;
}

/** The arguments of a batch that are the same in each attempt. */
interface EncodedCalls {
  readonly keys: readonly string[];
  readonly args: readonly Arg[];
}

/** Consecutive calls that are executed as one verb. */
interface Bundle {
  readonly verb: AnyVerb;
  readonly calls: VerbCall[];
}

/**
 * Batches the calls of one queue. One batch is in flight at a time, and calls that are made until it ends are collected
 * for the next. So calls take effect in the order in which they were made, even if connections are lost, and batches
 * grow with the load. Reads are in the batches of the numbered calls between which they were made; only a page whose
 * reply was lost may be read after later calls.
 *
 * A batch waits for no other queue. Each call settles by its deadline, and a batch ends with the latest deadline of its
 * calls, whatever it is waiting for: the library then rejects it, because a later batch has a higher number.
 */
class Batcher {
  readonly queue: QueueKey;
  readonly slot: number;
  readonly owner: Batchers;
  readonly #keys: readonly string[];
  readonly #policy: string;
  readonly #context: BatcherContext;
  readonly #isList: boolean;
  readonly #waiting: VerbCall[] = [];
  /** The last number used, and the one up to which every outcome is known. */
  #number: number;
  #received: number;
  #inFlight: Batch | null = null;
  /**
   * The deliveries that the last numbered batch took for calls which had expired when its reply arrived, in the form of
   * `library/session.lua`: the server undoes them with the next numbered batch. Null: none.
   */
  #returned: Buffer | null = null;
  /** The server keeps the elements that the last batch popped until the next one. */
  #keepsPops = false;
  #cancelTimer: CancelTimer | null = null;

  constructor(queue: QueueKey, slot: number, owner: Batchers, number: number) {
    const { context } = owner;
    this.queue = queue;
    this.slot = slot;
    this.owner = owner;
    this.#context = context;
    this.#isList = context.settings.variant === 'list';
    const { hash, order } = context.keys.queue(queue);
    this.#keys = this.#isList ? [context.keys.list(queue)] : [hash, order];
    this.#policy = context.policies.encode(queue);
    this.#number = number;
    this.#received = number;
  }

  enqueue(call: VerbCall): void {
    this.#waiting.push(call);
    this.owner.schedule(this);
  }

  /**
   * Sends the waiting calls unless a batch is in flight. Called once per turn, so that the calls of a turn share a
   * batch.
   */
  flush(): void {
    if (this.#inFlight !== null) return;
    const calls = this.#gather();
    if (calls.length > 0) this.#send(calls);
    // Reads do not postpone the timer: a lost take must be settled even while the queue is being scanned.
    if (areRepeatable(calls)) this.#settleLater();
  }

  /** Rejects a call whose deadline has passed, with the error that fits the state of its batch. */
  expire(call: VerbCall): void {
    const { batch } = call;
    if (batch === null) {
      call.reject(unavailable('Earlier calls to the queue took too long.'));
      while (this.#waiting[0]?.isSettled === true) this.#waiting.shift();
    } else {
      const error = batch.execution?.failure() ?? unavailable(NOT_REACHABLE);
      if (call.deadlineAt < batch.deadlineAt) call.reject(error);
      else this.#onError(batch, error);
    }
  }

  /** No call is waiting or in flight, and every outcome is known. */
  get isIdle(): boolean {
    return this.#waiting.length === 0 && this.#inFlight === null && !this.isUnsettled;
  }

  /** A batch had no reply, or the server must still undo deliveries that it took. */
  get isUnsettled(): boolean {
    return this.#number !== this.#received || this.#returned !== null;
  }

  stop(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = null;
  }

  /** @param isPrepared the names and sweep entries that the calls need are registered, or none are needed */
  #send(calls: readonly VerbCall[], isPrepared = false): void {
    const isRepeatable = areRepeatable(calls);
    if (!isRepeatable) this.stop();
    const isNumbered = !isRepeatable && !this.#isList;
    if (isNumbered) this.#number = this.owner.nextNumber(this.#number);
    let deadlineAt = Number.NEGATIVE_INFINITY;
    for (const call of calls) deadlineAt = Math.max(deadlineAt, call.deadlineAt);
    const batch: Batch = {
      calls,
      bundles: [],
      isRepeatable,
      creates: calls.some(({ options }) => options.creates === true),
      number: isNumbered ? this.#number : 0,
      received: this.#received,
      deadlineAt,
      publication: this.#publicationOf(calls),
      execution: null,
      sentAt: 0,
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
   * Registers the queue's name before a batch that creates the queue, and an entry in a sweep list before a batch with
   * leases. Writes nothing for queues that do not exist. Null: there is nothing to do.
   *
   * Calls that need neither, also those of the following batches, must not wait for another server for long.
   */
  #prepare(batch: Batch): Promise<void> | null {
    const { registry } = this.#context;
    const deadlineAt = this.#registryDeadline(batch);
    if (!registry.isDeclared(this.queue)) return this.#prepareUnknown(batch, deadlineAt);
    registry.tidyLater(this.queue);
    registry.noteUse(this.queue);
    return this.#registerLeases(batch, deadlineAt);
  }

  async #prepareUnknown(batch: Batch, deadlineAt: number): Promise<void> {
    const { registry } = this.#context;
    if (batch.creates) await registry.declare([this.queue], deadlineAt);
    else if (!(await registry.isKnown(this.queue, deadlineAt))) return;
    registry.tidyLater(this.queue);
    await this.#registerLeases(batch, deadlineAt);
  }

  /**
   * On a cluster, names and entries may be on another server, which a batch waits for only until it counts as
   * unreachable.
   */
  #registryDeadline({ deadlineAt }: Batch): number {
    const { topology, clock } = this.#context;
    return topology.isCluster ? Math.min(deadlineAt, clock.monotonic() + UNREACHABLE_MS) : deadlineAt;
  }

  /** Whether the call needs its queue's name or a sweep entry to be registered first. */
  #needsPreparation({ options: { creates, leaseMs } }: VerbCall): boolean {
    return leaseMs !== undefined || (creates === true && !this.#context.registry.isDeclared(this.queue));
  }

  #registerLeases({ calls }: Batch, deadlineAt: number): Promise<void> | null {
    let firstMs = Number.POSITIVE_INFINITY;
    for (const { options } of calls) firstMs = Math.min(firstMs, options.leaseMs ?? firstMs);
    if (firstMs === Number.POSITIVE_INFINITY) return null;
    return this.#context.registry.requireSweep(this.queue, firstMs, deadlineAt);
  }

  /** One signal for all calls: those of a queue have the same. */
  #publicationOf(calls: readonly VerbCall[]): Command | null {
    const ready = calls.flatMap(({ options }) => options.ready ?? []);
    const [first] = ready;
    if (first === undefined) return null;
    const elements = ready.flatMap((each) => each.elements);
    const groups = new Set(elements.flatMap((element) => element.groups));
    const message = first.signal.messageFor(elements.length, groups);
    return this.#context.signaller.command(first.signal.topic, message);
  }

  #execute(batch: Batch): Execution['done'] {
    const { executor, topology, clock } = this.#context;
    const { calls, isRepeatable, deadlineAt } = batch;
    batch.sentAt = clock.monotonic();
    const run = `${executor.library}${this.#isList ? '_list' : ''}`;
    let encoded: EncodedCalls | null = null;
    batch.execution = executor.execute({
      slot: this.slot,
      name: 'FCALL',
      args: (master, mayBeDone) => {
        // An expired call was rejected, so it must not be executed unless an earlier attempt may have done so.
        if (!mayBeDone && batch.calls.some(({ isSettled }) => isSettled)) {
          batch.calls = batch.calls.filter(({ isSettled }) => !isSettled);
          encoded = null;
        }
        encoded ??= this.#encode(batch);
        const { keys, args } = encoded;
        const stores = batch.calls.some(({ options }) => options.stores === true);
        // If Redis is out of memory, it rejects `run` before executing it, but not `run_full`, which is for calls that
        // free memory or need little.
        const name = stores && !mayBeDone ? run : `${run}_full`;
        return [name, keys.length, ...keys, this.#head(batch, master, mayBeDone), ...args];
      },
      writes: calls.some(({ isRead }) => !isRead),
      repeatable: !this.#isList || isRepeatable,
      follower: topology.isCluster ? null : batch.publication,
      deadlineAt,
    });
    return batch.execution.done;
  }

  #encode(batch: Batch): EncodedCalls {
    const args: Arg[] = [this.#policy];
    let keys = this.#keys;
    batch.bundles = bundlesOf(batch.calls);
    for (const { verb, calls } of batch.bundles) {
      const callArgs = calls.map((call) => call.args);
      if (verb.keys !== undefined) keys = [...keys, ...verb.keys(callArgs)];
      args.push(verb.name);
      for (const arg of verb.encode(callArgs)) args.push(arg);
    }
    return { keys, args };
  }

  /** The head of this attempt's arguments: see `library/session.lua`. */
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
      this.#onError(batch, new QuaysideError('outcome-unknown', 'The reply of Redis cannot be decoded.'));
      return;
    }
    if (settings.givenTime === null) master.noteServerTime(read.now);
    if (batch.publication !== null) signaller.onStored(batch.publication);
    if (batch.isOver) return;
    batch.isOver = true;
    const retried: VerbCall[] = [];
    const decoded = batch.bundles.flatMap((bundle, i) => {
      const result = read.results[i];
      if (!isMissingPage(bundle, result)) return [{ ...bundle, ...decode(bundle, result) }];
      retried.push(...bundle.calls);
      return [];
    });
    const failed = decoded.find(({ error }) => error !== null);
    if (failed !== undefined) this.#undoUndecodable(batch, failed.error);
    else if (batch.number > 0) this.#received = batch.number;
    if (batch.number > 0) {
      this.#keepsPops = batch.calls.some(isTake);
      this.#returned = failed === undefined ? returnedOf(batch.number, decoded) : null;
      if (this.#returned !== null) this.#waiting.push(this.#internalCall(SETTLE_SESSION, undefined));
    }
    const registered = this.#registerAfter(batch, read);
    const last = batch.calls.findLast(({ options }) => options.moves === true);
    const moved = onReply(this.queue, read, batch.sentAt, last?.deadlineAt ?? null);
    const registeredAndMoved = moved === null ? registered : Promise.all([registered, moved]).then(() => {});
    for (const { calls, values, error } of decoded) {
      for (const [at, call] of calls.entries()) {
        const { moves, creates, leaseMs } = call.options;
        let awaited: Promise<void> | null = null;
        if (moves === true) awaited = registeredAndMoved;
        // Other calls must not wait for another server because of those in their batch.
        else if (creates === true || leaseMs !== undefined) awaited = registered;
        call.settleAfter(awaited, error ?? values[at]);
      }
    }
    for (const call of retried) call.batch = null;
    this.#waiting.unshift(...retried);
    this.#next();
  }

  /**
   * Registers what a reply shows to be missing outside the queue's slot: the name of a queue that was created again,
   * because it may have lost its name with its data, or another node may have deleted it; sweeps of a queue that was
   * unknown before, and of added elements.
   */
  #registerAfter(batch: Batch, { now, isNew, tag, dueAt }: LibraryReply): Promise<void> | null {
    const { registry } = this.#context;
    if (this.#isList) {
      // Inserts do not wait for the server of the names.
      if (isNew) registry.nameMissing(this.queue).catch(() => {});
      return null;
    }
    if (tag === '' || (batch.number === 0 && !batch.creates)) return null;
    registry.noteTag(this.queue, tag);
    const { creates } = batch;
    const deadlineAt = this.#registryDeadline(batch);
    // A repeated reply shows neither whether the lost attempt created the queue nor what it added.
    const isRepeated = batch.execution?.mayBeDone === true;
    const isDeclared = registry.isDeclared(this.queue);
    // Even if it was registered before the batch: another node may have dropped the queue and its name in between. A
    // call that stored nothing may then have created the queue without a name.
    const isNaming = creates && (isNew || isRepeated || !isDeclared);
    const naming = isNaming ? registry.declare([this.queue]) : null;
    const listing: (Promise<void> | null)[] = [];
    if (!isDeclared) {
      registry.tidyLater(this.queue);
      listing.push(this.#registerLeases(batch, deadlineAt));
    }
    if (isRepeated || dueAt > 0) {
      const leftMs = isRepeated ? 1 : Math.max(1, dueAt - now);
      listing.push(registry.requireSweep(this.queue, leftMs, deadlineAt));
    }
    if (naming === null && listing.every((each) => each === null)) return null;
    // While the lists cannot be written, the name is still relied on: inserts do not depend on its server.
    const listed = Promise.all(listing).catch(() => registry.tidyBySweep(this.queue));
    const named = naming?.catch(() => registry.forgetWritten(this.queue));
    return Promise.all([named, listed]).then(() => {});
  }

  /**
   * A reply that cannot be decoded counts as not received, so the next batch of the queue makes the server undo all
   * takes of this one. That batch also postpones the elements that cannot be decoded, or they would be taken again
   * immediately.
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
    if (deliveries.length > 0) this.#waiting.unshift(this.#internalCall(POSTPONE, deliveries));
  }

  /**
   * Rejects the calls of a failed batch, but sends those again that may succeed without the others: if the server was
   * out of memory, calls that need none; if the preparation failed, calls that need no preparation; else reads, which
   * must not fail because of other calls.
   */
  #onError(batch: Batch, error: unknown): void {
    if (batch.isOver) return;
    batch.isOver = true;
    // If the preparation failed, the batch was not sent, whatever the outcome of the preparation.
    const isPrepared = batch.execution !== null;
    const failure = isPrepared ? error : unavailable(preparationMessage(error));
    // A batch that was not executed needs no reply. But `received` must not pass an earlier unknown outcome: the server
    // would treat its reply as received and make its takes final.
    if (isUnapplied(failure) && this.#received === batch.number - 1) this.#received = batch.number;
    const isFull = failure instanceof QuaysideError && failure.code === 'storage-full';
    const hasChanges = batch.calls.some(({ isRead }) => !isRead);
    const now = this.#context.clock.monotonic();
    const retried = batch.calls.filter((call) => {
      const { isSettled, isRead, options, deadlineAt } = call;
      if (isSettled) return false;
      if (isFull) return options.stores !== true;
      if (deadlineAt <= now) return false;
      if (!isPrepared) return !this.#needsPreparation(call);
      return isRead && hasChanges;
    });
    for (const call of batch.calls) if (!retried.includes(call)) call.reject(failure);
    if (retried.length > 0) this.#send(retried, true);
    else this.#next();
  }

  #next(): void {
    this.#inFlight = null;
    this.owner.schedule(this);
  }

  /**
   * Removes calls from the front of the queue: as many as fit, without expired ones. Apart from reads, they are either
   * all numbered or all repeatable: the reply to a relay's step has outbox entries, which a session does not keep.
   */
  #gather(): VerbCall[] {
    const calls: VerbCall[] = [];
    let isRepeatable: boolean | null = null;
    let deliveries = 0;
    let bytes = 0;
    let pageBytes = 0;
    let removed = 0;
    for (const call of this.#waiting) {
      if (!call.isSettled) {
        deliveries += call.options.deliveries ?? call.items;
        bytes += call.bytes;
        pageBytes += call.options.pageBytes ?? 0;
        const isFull = deliveries > MAX_DELIVERIES || bytes > MAX_BYTES || pageBytes > MAX_PAGE_BYTES;
        const isOther = !call.isRead && isRepeatable !== null && call.isRepeatable !== isRepeatable;
        if (calls.length > 0 && (isFull || isOther)) break;
        if (!call.isRead) isRepeatable = call.isRepeatable;
        calls.push(call);
      }
      removed++;
    }
    this.#waiting.splice(0, removed);
    return calls;
  }

  /**
   * No change is waiting. After a pause, a batch without other effect makes the server undo takes of unknown outcome,
   * or finish pops; then the batcher is removed. A sweep removes the session that remains.
   */
  #settleLater(): void {
    if (this.#cancelTimer !== null) return;
    const isUnsettled = this.isUnsettled;
    this.#cancelTimer = this.#context.clock.after(isUnsettled ? SETTLE_AGAIN_MS : IDLE_MS, () => {
      this.#cancelTimer = null;
      if (isUnsettled || this.#keepsPops) this.enqueue(this.#internalCall(SETTLE_SESSION, undefined));
      else this.owner.forget(this);
    });
  }

  #internalCall<Call>(verb: Verb<Call, undefined>, args: Call): VerbCall {
    const call = new VerbCall(this, verb as AnyVerb, args, {});
    call.outcome.catch(() => {});
    return call;
  }
}

/** One call of a verb, from when it is made until its caller has a result. */
class VerbCall extends PendingCall {
  readonly verb: AnyVerb;
  readonly args: unknown;
  readonly options: CallOptions;
  readonly items: number;
  /** The batch in which it is sent; null before. */
  batch: Batch | null = null;
  /** The result of a call that is executed but still waits for something else. */
  #result: { readonly value: unknown } | null = null;
  readonly #batcher: Batcher;

  constructor(batcher: Batcher, verb: AnyVerb, args: unknown, options: CallOptions) {
    const { pending } = batcher.owner.context.executor;
    super(pending, options.deadlineAt ?? pending.deadline(), options.bytes);
    this.verb = verb;
    this.args = args;
    this.options = options;
    this.items = options.items ?? 1;
    this.#batcher = batcher;
    pending.add(this);
  }

  get isRead(): boolean {
    return this.verb.isRead === true;
  }

  get isRepeatable(): boolean {
    return this.isRead || this.verb.isRepeatable === true;
  }

  override reject(error: unknown): void {
    super.reject(this.isRead ? readError(error) : error);
  }

  /** Settles an executed call with its result after `others`, or at the deadline. An error rejects it immediately. */
  settleAfter(others: Promise<void> | null, value: unknown): void {
    if (value instanceof Error) this.reject(value);
    else if (others === null) this.resolve(value);
    else {
      this.#result = { value };
      void others.then(() => this.resolve(value));
    }
  }

  expire(): void {
    if (this.#result !== null) this.resolve(this.#result.value);
    else this.#batcher.expire(this);
  }
}

function areRepeatable(calls: readonly VerbCall[]): boolean {
  return calls.every(({ isRepeatable }) => isRepeatable);
}

/** Whether this is the empty page of a repeated reply: sessions keep no pages (`library/session.lua`). */
function isMissingPage({ verb }: Bundle, result: Result | undefined): boolean {
  return verb.isRead === true && result?.text.length === 0;
}

/** The message for calls that were not sent. That of an unknown outcome would not be true of them. */
function preparationMessage(error: unknown): string {
  return isUnknownOutcome(error) ? 'A step before the call failed; nothing was changed.' : messageOf(error);
}

/** The error of a read, whose outcome is never unknown: it changed nothing. */
function readError(error: unknown): unknown {
  return isUnknownOutcome(error) ? unavailable('Redis did not reply in time.') : error;
}

/** Only numbered batches have takes. */
function isTake({ verb }: VerbCall): boolean {
  return verb.name === 'take';
}

function bundlesOf(calls: readonly VerbCall[]): Bundle[] {
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

/** The values of the calls of a bundle, or the error of all of them. */
interface Decoded {
  readonly values: readonly unknown[];
  readonly error: unknown;
}

/** The deliveries that a batch took for expired calls, in the form of `library/session.lua`. Null: none. */
function returnedOf(batchNumber: number, decoded: readonly (Bundle & Decoded)[]): Buffer | null {
  const takes = decoded.filter(({ verb }) => verb.numbersOf !== undefined);
  const references: Buffer[] = [];
  for (const [index, { verb, calls, values }] of takes.entries()) {
    for (const [at, call] of calls.entries()) {
      if (!call.isSettled) continue;
      const place = Buffer.alloc(2);
      place.writeUInt16BE(index + 1);
      for (const number of verb.numbersOf?.(values[at]) ?? []) references.push(place, number);
    }
  }
  if (references.length === 0) return null;
  const number = Buffer.alloc(6);
  number.writeUIntBE(batchNumber, 0, 6);
  return Buffer.concat([number, ...references]);
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

/** A delivery of a take whose content cannot be decoded. */
export interface Undecodable {
  readonly id: ElementId;
  /** gid(2) and seq(6). */
  readonly delivery: Buffer;
  readonly cause: unknown;
}

const POSTPONE_MS = 60_000;

/** The error of a take that contains elements which this version cannot decode. */
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

/** Does nothing itself: the call settles the node's previous batch. */
const SETTLE_SESSION = single<undefined, undefined>(
  'settle-session',
  () => [],
  () => undefined,
);
