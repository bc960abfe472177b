import type { Scheduler } from 'fast-check';
import { Broker } from '../../src/broker/broker.ts';
import type { Consumer } from '../../src/broker/consumer.ts';
import type { NamespaceSetup } from '../../src/broker/ports.ts';
import type { Queue } from '../../src/broker/queue.ts';
import type { SettleItem, Storage, TakeOptions, TakeResult } from '../../src/engine/storage.ts';
import { SETTLED } from '../../src/engine/storage.ts';
import type { Delivery, NewElement } from '../../src/model/element.ts';
import type { QuaysideError } from '../../src/model/errors.ts';
import { plain, SILENT_LOG } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { newElement } from '../support/elements.ts';

interface Options {
  /** Chooses the order in which takes succeed; null: the order of calls, when the test calls `settle`. */
  readonly scheduler?: Scheduler | null;
  readonly undoesLostTakes?: boolean;
  readonly isShared?: boolean;
}

/**
 * A queue on a fake engine: elements are numbers that become eligible, and each `take` returns when the test decides.
 * It keeps the storage port's promise on the order of effect: a take sees everything inserted before it was called.
 */
export class WaitQueueNode {
  readonly clock = new FakeClock();
  readonly queue: Queue;
  failure: QuaysideError | null = null;
  paused = false;
  /** Stored elements in the order of delivery. */
  readonly eligible: { id: string; matureAt: number }[] = [];
  /** Ids of elements whose delivery was undone. */
  readonly undone: string[] = [];
  readonly sinkErrors: unknown[] = [];
  takes = 0;
  /** The tids of the last take. */
  lastTids: TakeOptions['tids'];
  readonly #scheduler: Scheduler | null;
  readonly #taken = new Map<string, number>();
  #inserted = 0;
  /** Pending takes in the order of calls. */
  readonly #pending: (() => void)[] = [];

  constructor({ scheduler = null, undoesLostTakes = false, isShared = false }: Options = {}) {
    this.#scheduler = scheduler;
    const storage = {
      capabilities: { sched: true, reserve: true, pipeline: true, remove: true, expiry: true },
      undoesLostTakes,
      insertSignaller: null,
      now: () => this.clock.now(),
      declare: async () => {},
      insert: async (_queue: unknown, elements: readonly NewElement[]) =>
        elements.map(({ delayMs }) => this.#store(this.clock.now() + delayMs)),
      take: (_queue: unknown, options: TakeOptions) => this.#take(options),
      sweep: async () => null,
      takeAffected: () => [],
      undoTake: async (_queue: unknown, deliveries: readonly Delivery[]) => {
        for (const { id } of deliveries) this.#undo(id);
      },
      settle: async (items: readonly SettleItem[]) => {
        for (const { id } of items) this.#undo(id);
        return items.map(() => SETTLED.done);
      },
    } as unknown as Storage;
    const broker = new Broker({
      namespaces: [
        {
          policy: plain('N'),
          configured: {},
          maxQueues: 10,
          maxElements: null,
          maxBytes: null,
          storage,
          definitions: {},
          signaller: { type: isShared ? 'shared' : 'local', publish: () => {} },
          stats: { add: () => {} },
          shown: { signaller: { channel: 'N' } },
        } as unknown as NamespaceSetup,
      ],
      clock: this.clock,
      random: () => 0.5,
      waiting: { total: 10_000, perUser: 10_000 },
      log: { ...SILENT_LOG, warn: ({ err }: { err?: unknown }) => this.sinkErrors.push(err) },
    });
    const namespace = broker.namespace('N');
    Object.assign(namespace, { pausedNames: { has: () => this.paused } });
    this.queue = namespace.queue('q');
  }

  get isIdle(): boolean {
    return [...(this.queue.namespace.waitQueues.get('q')?.values() ?? [])].every(({ isEmpty }) => isEmpty);
  }

  /** Returns the id before the engine has confirmed the insert. */
  insert(delayMs = 0, bytes = 0): string {
    void this.queue.insert([newElement({ delayMs, body: new Uint8Array(bytes) })]);
    return `e${this.#inserted}`;
  }

  /** Stores an element as another node whose signal was lost. */
  insertSilently(): void {
    this.#store(this.clock.now());
  }

  join(options: WaiterOptions = {}): Waiter {
    return new Waiter(this.queue, options);
  }

  setPaused(paused: boolean): void {
    this.paused = paused;
    this.queue.onPaused(paused);
  }

  /** Completes takes one after the other, until none is in flight and nothing reacts any more. */
  async settle(): Promise<void> {
    for (let quiet = 0; quiet < 3; quiet += 1) {
      const next = this.#pending.shift();
      if (next !== undefined) {
        next();
        quiet = 0;
      }
      await new Promise(setImmediate);
    }
  }

  #store(matureAt: number): string {
    this.#inserted += 1;
    const id = `e${this.#inserted}`;
    this.#add(id, matureAt);
    return id;
  }

  #add(id: string, matureAt: number): void {
    this.eligible.push({ id, matureAt });
    this.eligible.sort((a, b) => a.matureAt - b.matureAt);
  }

  #undo(id: string): void {
    this.undone.push(id);
    this.#add(id, this.#taken.get(id) ?? this.clock.now());
  }

  #take({ count, leaseMs, tids }: TakeOptions): Promise<TakeResult> {
    this.takes += 1;
    this.lastTids = tids;
    const { failure } = this;
    if (failure !== null) return new Promise((_, reject) => this.#pending.push(() => reject(failure)));
    const result = this.#deliver(count, leaseMs);
    if (this.#scheduler !== null) return this.#scheduler.schedule(Promise.resolve(result), 'take');
    return new Promise((resolve) => this.#pending.push(() => resolve(result)));
  }

  #deliver(count: number, leaseMs: number | null): TakeResult {
    const due = this.eligible.filter(({ matureAt }) => matureAt <= this.clock.now()).slice(0, count);
    this.eligible.splice(0, due.length);
    for (const { id, matureAt } of due) this.#taken.set(id, matureAt);
    const next = this.eligible[0];
    return {
      deliveries: due.map(({ id, matureAt }) => ({
        id,
        matureAt,
        group: '',
        tries: 0,
        body: new Uint8Array(),
        contentType: null,
        contentEncoding: null,
        headers: [],
        lease: leaseMs === null ? null : { token: 't', until: this.clock.now() + leaseMs },
      })),
      nextDueAt: due.length < count ? (next?.matureAt ?? null) : null,
    };
  }
}

interface WaiterOptions {
  readonly leaseMs?: number;
  readonly timeoutMs?: number;
  readonly count?: number;
  readonly tid?: string;
}

/** A consumer that records how it was answered. */
export class Waiter {
  readonly consumer: Consumer;
  readonly count: number;
  readonly got: string[] = [];
  ended: QuaysideError | null = null;
  /** What its sink throws when it is called. */
  failure: Error | null = null;
  readonly #queue: Queue;

  constructor(queue: Queue, options: WaiterOptions) {
    const { leaseMs = null, timeoutMs = null, count = 1, tid = null } = options;
    this.#queue = queue;
    this.count = count;
    this.consumer = queue.get(
      { group: null, leaseMs, timeoutMs, count, tid, owner: null },
      {
        deliver: (delivery, more) => {
          if (this.failure !== null) throw this.failure;
          this.got.push(delivery.id, ...more.map(({ id }) => id));
        },
        end: (reason) => {
          if (this.failure !== null) throw this.failure;
          this.ended = reason;
        },
      },
    );
  }

  leave(): void {
    this.#queue.leave(this.consumer);
  }
}
