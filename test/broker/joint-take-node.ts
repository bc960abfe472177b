import type { Scheduler } from 'fast-check';
import { Broker } from '../../src/broker/broker.ts';
import { type JointRequest, JointTake } from '../../src/broker/joint-take.ts';
import type { NamespaceSetup } from '../../src/broker/ports.ts';
import type { Queue } from '../../src/broker/queue.ts';
import {
  type GroupCounts,
  SETTLED,
  type SettleItem,
  type Storage,
  type TakeOptions,
  type TakeResult,
} from '../../src/engine/storage.ts';
import type { Delivery, NewElement } from '../../src/model/element.ts';
import type { QuaysideError } from '../../src/model/errors.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { plain, SILENT_LOG } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { newElement } from '../support/elements.ts';

interface Stored {
  readonly id: string;
  readonly matureAt: number;
  readonly bytes: number;
}

/**
 * Two namespaces on fake engines: takes and counts see everything inserted before they were called, and return when the
 * test decides, in any order.
 */
export class JointTakeNode {
  readonly clock = new FakeClock();
  readonly broker: Broker;
  readonly engines: Readonly<Record<string, FakeEngine>>;
  readonly paused = new Set<string>();
  /** Pending takes and counts in the order of calls; empty if there is a scheduler, which chooses the order. */
  readonly pending: (() => void)[] = [];
  readonly scheduler: Scheduler | null;
  inserted = 0;
  /** The next random numbers; 0.5 once they are used up. */
  randoms: number[] = [];

  constructor(scheduler: Scheduler | null = null, limit = 1000) {
    this.scheduler = scheduler;
    this.engines = { A: new FakeEngine(this), B: new FakeEngine(this) };
    this.broker = new Broker({
      namespaces: Object.entries(this.engines).map(([name, engine]) => setup(name, engine)),
      clock: this.clock,
      random: () => this.randoms.shift() ?? 0.5,
      waiting: { total: limit, perUser: limit },
      log: SILENT_LOG,
    });
    for (const namespace of this.broker.namespaces()) {
      const has = (name: string): boolean => this.paused.has(`${namespace.name}/${name}`);
      Object.assign(namespace, { pausedNames: { has } });
    }
  }

  /** The queue with a path such as `A/name`. */
  queue(path: string): Queue {
    const [ns = '', name = ''] = path.split('/');
    return this.broker.namespace(ns).queue(name);
  }

  insert(path: string, { delayMs = 0, bytes = 1 } = {}): void {
    void this.queue(path).insert([newElement({ delayMs, body: Buffer.alloc(bytes) })]);
  }

  /** Stores an element as another node whose signal was lost. */
  insertSilently(path: string): void {
    const { key } = this.queue(path);
    this.engines[key.ns]?.store(key, [newElement()]);
  }

  setPaused(path: string, paused: boolean): void {
    if (paused) this.paused.add(path);
    else this.paused.delete(path);
    this.queue(path).onPaused(paused);
  }

  join(options: JointOptions): JointWaiter {
    return new JointWaiter(this, options);
  }

  /** The ids of all stored elements. */
  left(): string[] {
    return Object.values(this.engines).flatMap(({ queues }) =>
      [...queues.values()].flat().map(({ id }) => id),
    );
  }

  /** Completes takes and counts until none is in flight and nothing reacts any more. */
  async settle(): Promise<void> {
    for (let quiet = 0; quiet < 4; quiet += 1) {
      const next = this.pending.shift();
      if (next !== undefined) {
        next();
        quiet = 0;
      }
      await new Promise(setImmediate);
    }
  }

  /** Advances the clock in steps, and settles after each. */
  async pass(ms: number, step = 20): Promise<void> {
    for (let passed = 0; passed < ms; passed += step) {
      this.clock.advance(Math.min(step, ms - passed));
      await this.settle();
    }
  }
}

export class FakeEngine {
  readonly queues = new Map<string, Stored[]>();
  failure: QuaysideError | null = null;
  takes = 0;
  counted = 0;
  /** Taken elements that were not returned, by id. */
  readonly taken = new Map<string, Stored>();
  /** Ids of returned elements, one entry per return. */
  readonly returned: string[] = [];
  readonly #node: JointTakeNode;

  constructor(node: JointTakeNode) {
    this.#node = node;
  }

  store({ name }: QueueKey, elements: readonly NewElement[]): string[] {
    return elements.map(({ delayMs, body }) => {
      const id = `e${++this.#node.inserted}`;
      this.#add(name, { id, matureAt: this.#node.clock.now() + delayMs, bytes: body.byteLength });
      return id;
    });
  }

  take({ name }: QueueKey, options: TakeOptions): Promise<TakeResult> {
    this.takes += 1;
    return this.#later('take', () => this.#take(name, options));
  }

  counts({ name }: QueueKey): Promise<GroupCounts> {
    this.counted += 1;
    return this.#later('counts', () => {
      const all = this.queues.get(name) ?? [];
      const ready = all.filter(({ matureAt }) => matureAt <= this.#node.clock.now()).length;
      const nextMatureAt = all[0]?.matureAt ?? null;
      return { ready, scheduled: all.length - ready, reserved: 0, nextMatureAt };
    });
  }

  returnTaken({ name }: QueueKey, ids: readonly string[]): void {
    for (const id of ids) {
      const stored = this.taken.get(id);
      if (stored === undefined) throw new Error(`${id} was returned twice or never taken`);
      this.taken.delete(id);
      this.returned.push(id);
      this.#add(name, stored);
    }
  }

  /** Executes the call immediately and delivers its outcome later. */
  #later<T>(what: string, call: () => T): Promise<T> {
    const { failure } = this;
    const outcome = failure === null ? Promise.resolve(call()) : Promise.reject(failure);
    const { scheduler, pending } = this.#node;
    if (scheduler !== null) return scheduler.schedule(outcome, what);
    outcome.catch(() => {});
    return new Promise((resolve, reject) => pending.push(() => outcome.then(resolve, reject)));
  }

  #add(name: string, stored: Stored): void {
    const all = this.queues.get(name) ?? [];
    this.queues.set(
      name,
      [...all, stored].sort((a, b) => a.matureAt - b.matureAt || number(a) - number(b)),
    );
  }

  #take(name: string, { count, leaseMs, maxBytes }: TakeOptions): TakeResult {
    const all = this.queues.get(name) ?? [];
    const due = all.filter(({ matureAt }) => matureAt <= this.#node.clock.now());
    const chosen: Stored[] = [];
    let bytes = 0;
    let isCut = false;
    for (const stored of due.slice(0, count)) {
      isCut = maxBytes !== undefined && chosen.length > 0 && bytes + stored.bytes > maxBytes;
      if (isCut) break;
      chosen.push(stored);
      bytes += stored.bytes;
    }
    const rest = all.filter((stored) => !chosen.includes(stored));
    this.queues.set(name, rest);
    for (const stored of chosen) this.taken.set(stored.id, stored);
    const until = this.#node.clock.now() + (leaseMs ?? 0);
    const deliveries = chosen.map(({ id, matureAt, bytes }) => ({
      id,
      matureAt,
      group: '',
      tries: 0,
      body: new Uint8Array(bytes),
      contentType: null,
      contentEncoding: null,
      headers: [],
      lease: leaseMs === null ? null : { token: 't', until },
    }));
    return { deliveries, nextDueAt: chosen.length < count ? (rest[0]?.matureAt ?? null) : null, isCut };
  }
}

function number({ id }: Stored): number {
  return Number(id.slice(1));
}

function setup(name: string, engine: FakeEngine): NamespaceSetup {
  const storage = {
    capabilities: { sched: true, reserve: true, pipeline: true, remove: true, expiry: true },
    undoesLostTakes: false,
    insertSignaller: null,
    now: () => Number.NEGATIVE_INFINITY,
    declare: async () => {},
    insert: async (queue: QueueKey, elements: readonly NewElement[]) => engine.store(queue, elements),
    take: (queue: QueueKey, options: TakeOptions) => engine.take(queue, options),
    counts: (queue: QueueKey) => engine.counts(queue),
    sweep: async () => null,
    takeAffected: () => [],
    undoTake: async (queue: QueueKey, deliveries: readonly Delivery[]) =>
      engine.returnTaken(
        queue,
        deliveries.map(({ id }) => id),
      ),
    settle: async (items: readonly SettleItem[]) => {
      for (const { queue, id } of items) engine.returnTaken(queue, [id]);
      return items.map(() => SETTLED.done);
    },
  } as unknown as Storage;
  return {
    policy: plain(name),
    configured: {},
    maxQueues: 100,
    maxElements: null,
    maxBytes: null,
    leaseMs: 60_000,
    storage,
    definitions: {},
    signaller: { type: 'local', publish: () => {} },
    stats: { add: () => {} },
    shown: { signaller: { channel: name } },
  } as unknown as NamespaceSetup;
}

export interface JointOptions extends Partial<Omit<JointRequest, 'sources' | 'from'>> {
  /** Paths of queues, such as `A/q`. */
  readonly from: readonly string[];
  readonly leaseMs?: number | null;
  readonly weights?: readonly number[];
}

/** A joint take that records how it was answered. */
export class JointWaiter {
  readonly take: JointTake;
  readonly count: number;
  readonly min: number;
  readonly from: readonly string[];
  /** The ids received per queue, such as `A/q`. */
  readonly got: (readonly [queue: string, ids: readonly string[]])[] = [];
  ended: QuaysideError | null = null;
  answers = 0;
  hasLeft = false;
  /** What its sink throws on delivery. */
  failure: Error | null = null;

  constructor(node: JointTakeNode, { from, leaseMs = null, weights = [], ...rest }: JointOptions) {
    const { count = 1, min = 1 } = rest;
    this.count = count;
    this.min = min;
    this.from = from;
    const request: JointRequest = {
      order: 'strict',
      maxBytes: 1000,
      timeoutMs: null,
      tid: null,
      owner: 'u',
      from: { protocol: 'http', address: '' },
      ...rest,
      count,
      min,
      sources: from.map((path, i) => ({
        queue: node.queue(path),
        group: null,
        leaseMs,
        weight: weights[i] ?? 1,
      })),
    };
    this.take = new JointTake(request, {
      deliver: (portions) => {
        this.answers += 1;
        if (this.failure !== null) throw this.failure;
        for (const { queue, deliveries } of portions) {
          this.got.push([`${queue.key.ns}/${queue.key.name}`, deliveries.map(({ id }) => id)]);
        }
      },
      end: (reason) => {
        this.answers += 1;
        this.ended = reason;
      },
    });
  }

  get ids(): string[] {
    return this.got.flatMap(([, ids]) => ids);
  }

  get isOver(): boolean {
    return this.answers > 0 || this.hasLeft;
  }

  leave(): void {
    this.hasLeft = true;
    this.take.leave();
  }
}
