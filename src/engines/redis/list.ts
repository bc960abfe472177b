import { randomBytes } from 'node:crypto';
import type { ReadySignal } from '../../engine/signaller.ts';
import type {
  OnRepeat,
  PurgeStep,
  QueueCounts,
  ScanOptions,
  ScanPage,
  Storage,
  StorageCapabilities,
  SweepResult,
  TakeOptions,
  TakeResult,
  Usage,
} from '../../engine/storage.ts';
import type {
  Delivery,
  DeliveryState,
  ElementContent,
  ElementId,
  GroupName,
  NewElement,
} from '../../model/element.ts';
import { PLAIN_GROUP } from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import { isSameContent } from '../../model/fingerprint.ts';
import type { QueueKey } from '../../model/names.ts';
import { asString, type Reply } from './client/connection.ts';
import type { Executor } from './client/executor.ts';
import { slotOf } from './client/slots.ts';
import { decodeContent, encodeContent } from './content.ts';
import type { Forgetter } from './forgetter.ts';
import { elementId } from './ids.ts';
import { type Keys, queueText } from './keys.ts';
import type { Library } from './library.ts';
import type { Registry } from './registry.ts';
import type { GivenTime } from './settings.ts';
import { listUsage } from './usage.ts';

interface ListParts {
  readonly executor: Executor;
  readonly keys: Keys;
  readonly library: Library;
  readonly registry: Registry;
  readonly forgetter: Forgetter;
  readonly dedupWindowMs: number;
  readonly givenTime: GivenTime | null;
}

/**
 * The Storage port on plain lists, `LPUSH` and `RPOP`: the fastest, for elements that are due at once and
 * popped. Commands are never sent twice, so an insert or a pop without a reply is `outcome-unknown`; what
 * such a pop took is lost.
 */
export class ListStorage implements Storage {
  readonly capabilities: StorageCapabilities = {
    sched: false,
    reserve: false,
    pipeline: false,
    remove: false,
    expiry: false,
  };
  readonly undoesLostTakes = false;
  readonly ordersTransfers = true;
  readonly insertSignaller = null;
  readonly #parts: ListParts;
  readonly #order = new CallOrder();
  readonly #tag = randomBytes(6).toString('hex');
  #numbers = 0;

  /** Pushes of several calls are one command. */
  readonly #push: Work<PushCall, ElementId[]> = {
    run: async (calls, deadlineAt) => {
      const key = this.#keyOf(calls);
      const items = calls.flatMap((call) => call.items.map(({ item }) => item));
      await this.#parts.executor.writeOnce(key, 'LPUSH', [key, ...items], deadlineAt);
      return calls.map((call) => call.items.map(({ id }) => id));
    },
  };

  /** Pops of several calls are one command: the first call gets the first elements. */
  readonly #pop: Work<PopCall, Delivery[]> = {
    run: async (calls, deadlineAt) => {
      const key = this.#keyOf(calls);
      const count = calls.reduce((sum, call) => sum + call.count, 0);
      const reply = await this.#parts.executor.writeOnce(key, 'RPOP', [key, count], deadlineAt);
      const deliveries = Array.isArray(reply) ? reply.map(decodeItem) : [];
      let next = 0;
      return calls.map((call) => {
        const own = deliveries.slice(next, next + call.count);
        next += call.count;
        return own;
      });
    },
  };

  constructor(parts: ListParts) {
    this.#parts = parts;
  }

  now(queue?: QueueKey): number {
    const { executor, keys, givenTime } = this.#parts;
    return givenTime?.now() ?? executor.serverTime(queue === undefined ? keys.due : keys.list(queue));
  }

  async declare(queues: readonly QueueKey[]): Promise<void> {
    await this.#parts.registry.declare(queues);
  }

  queues(ns: string): Promise<string[]> {
    return this.#parts.registry.names(ns);
  }

  async insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    _signal?: ReadySignal | null,
    onRepeat: OnRepeat | null = null,
  ): Promise<ElementId[]> {
    if (elements.length === 0) return [];
    const now = this.now(queue);
    for (const element of elements) this.#check(element, now);
    const items = elements.map((element) => {
      const id = elementId(this.#tag, ++this.#numbers);
      const { dedupKey: key, fingerprint = null } = element;
      return { id, key, fingerprint: fingerprint ?? '', item: encodeItem({ ...element, id, matureAt: now }) };
    });
    const bytes = items.reduce((sum, { item }) => sum + item.length, 0);
    const work = items.some(({ key }) => key !== null) ? this.#pushOnce(queue, onRepeat) : this.#push;
    const prepare = this.#declaring(queue);
    return this.#run(queue, { work, call: { queue, items }, items: items.length, bytes, prepare });
  }

  async take(queue: QueueKey, { group, count, leaseMs, ids }: TakeOptions): Promise<TakeResult> {
    if (leaseMs !== null) throw notSupported('reserve');
    if (ids !== undefined) throw notSupported('takes by id');
    if (group !== PLAIN_GROUP) return { deliveries: [], nextDueAt: null };
    this.#parts.registry.noteUse(queue);
    const deliveries = await this.#run(queue, { work: this.#pop, call: { queue, count }, items: count });
    return { deliveries, nextDueAt: null };
  }

  settle(): Promise<never> {
    return Promise.reject(notSupported('settling'));
  }

  async undoTake(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    if (deliveries.length === 0) return;
    const key = this.#parts.keys.list(queue);
    const items = deliveries.map((delivery) => encodeItem(delivery)).reverse();
    const bytes = items.reduce((sum, { length }) => sum + length, 0);
    const push = (deadlineAt: number): Promise<unknown> =>
      this.#parts.executor.writeOnce(key, 'RPUSH', [key, ...items], deadlineAt);
    await this.#call(queue, push, bytes, this.#declaring(queue));
  }

  async scan(queue: QueueKey, options: ScanOptions): Promise<ScanPage> {
    const { group, states, after, limit, bodies, ids } = options;
    if (ids !== undefined) throw notSupported('scans by id');
    if (!states.includes('ready') || group !== PLAIN_GROUP) return { deliveries: [], next: null };
    const key = this.#parts.keys.list(queue);
    const skip = after !== null && /^\d{1,15}$/.test(after) ? Number(after) : 0;
    // One more than is returned tells whether there is another page.
    const range = [key, -(skip + limit + 1), -(skip + 1)];
    const reply = await this.#call(queue, (deadlineAt) =>
      this.#parts.executor.read(key, 'LRANGE', range, deadlineAt),
    );
    const items = Array.isArray(reply) ? reply.toReversed() : [];
    const deliveries = items.slice(0, limit).map((item) => {
      const delivery = decodeItem(item);
      return {
        ...delivery,
        body: bodies ? delivery.body : NO_BODY,
        bytes: delivery.body.byteLength,
        state: 'ready' as const,
        insertedAt: delivery.matureAt,
        expiresAt: null,
        reason: null,
      };
    });
    return { deliveries, next: items.length > limit ? String(skip + limit) : null };
  }

  async purge(queue: QueueKey, states?: readonly DeliveryState[]): Promise<PurgeStep> {
    if (states !== undefined && !states.includes('ready')) return { removed: 0, isDone: true };
    const { executor, keys, library } = this.#parts;
    const key = keys.list(queue);
    const call = [library.dropList, 1, key];
    const removed = await this.#call(queue, (deadlineAt) =>
      executor.writeOnce(key, 'FCALL', call, deadlineAt),
    );
    return { removed: Number(removed), isDone: true };
  }

  async counts(queue: QueueKey, group: GroupName = PLAIN_GROUP): Promise<QueueCounts> {
    const { executor, keys } = this.#parts;
    const key = keys.list(queue);
    return this.#call(queue, async (deadlineAt) => {
      const [count, head] = await Promise.all([
        executor.read(key, 'LLEN', [key], deadlineAt),
        executor.read(key, 'LINDEX', [key, -1], deadlineAt),
      ]);
      const ready = group === PLAIN_GROUP ? Number(count) : 0;
      const nextMatureAt = ready > 0 && Buffer.isBuffer(head) ? head.readUIntBE(0, 6) : null;
      return { ready, scheduled: 0, reserved: 0, nextMatureAt, groups: new Map() };
    });
  }

  usage(ns: string, needsBytes = true): Promise<Usage> {
    return listUsage(this.#parts, ns, needsBytes);
  }

  /** Dedup keys end by themselves, and there is no lease. */
  async sweep(): Promise<SweepResult> {
    await this.#parts.forgetter.step();
    return { affected: [], nextAt: null };
  }

  #check({ matureAt, delayMs, groups, expiresAt }: NewElement, now: number): void {
    if (expiresAt != null) throw notSupported('an expiry');
    if (matureAt === null ? delayMs > 0 : matureAt > now) throw notSupported('a maturity');
    if (groups.length !== 1 || groups[0] !== PLAIN_GROUP) throw notSupported('consumer groups');
  }

  #pushOnce(queue: QueueKey, onRepeat: OnRepeat | null): Work<PushCall, ElementId[]> {
    return alone(async ({ items }, deadlineAt) => {
      const { executor, keys, library, dedupWindowMs } = this.#parts;
      const list = keys.list(queue);
      const dedups = items.flatMap(({ key }) => (key === null ? [] : [keys.listDedup(queue, key)]));
      let next = 0;
      const args = items.flatMap(({ key, id, fingerprint, item }) => [
        key === null ? 0 : ++next,
        id + fingerprint,
        item,
      ]);
      const call = [library.pushOnce, 1 + dedups.length, list, ...dedups, dedupWindowMs, ...args];
      const ids = await executor.writeOnce(list, 'FCALL', call, deadlineAt);
      return Array.isArray(ids) ? ids.map((kept, index) => idOf(asString(kept), index, items, onRepeat)) : [];
    });
  }

  /** Calls that are executed together are all of one queue. */
  #keyOf(calls: readonly { readonly queue: QueueKey }[]): string {
    const [first] = calls;
    if (first === undefined) throw new Error('nothing was called');
    return this.#parts.keys.list(first.queue);
  }

  /** What makes a queue known before something is stored in it; null if it is. */
  #declaring(queue: QueueKey): Prepare | null {
    const { registry } = this.#parts;
    if (!registry.isDeclared(queue)) return (deadlineAt) => registry.declare([queue], deadlineAt);
    registry.noteUse(queue);
    return null;
  }

  /** A call that is executed alone. */
  #call<Result>(
    queue: QueueKey,
    call: (deadlineAt: number) => Promise<Result>,
    bytes = 0,
    prepare: Prepare | null = null,
  ): Promise<Result> {
    const work = alone((_call: null, deadlineAt) => call(deadlineAt));
    return this.#run(queue, { work, call: null, items: 1, bytes, prepare });
  }

  /** Runs a call in its turn, unless it would be in vain now. All of it is over by the deadline. */
  #run<Call, Result>(
    queue: QueueKey,
    { work, call, items, bytes = 0, prepare = null }: ListCall<Call, Result>,
  ): Promise<Result> {
    const { executor, keys } = this.#parts;
    const rejection = executor.rejection(slotOf(keys.list(queue)));
    if (rejection !== null) return Promise.reject(rejection);
    const deadlineAt = executor.deadline();
    const request = { work, call, items, bytes, deadlineAt, prepare: prepare && (() => prepare(deadlineAt)) };
    executor.addPending(bytes);
    return this.#order.run(queueText(queue), request).finally(() => executor.removePending(bytes));
  }
}

/** The id in what a dedup key holds: the id, and the fingerprint of the content if there was one. */
function idOf(kept: string, index: number, items: readonly Item[], onRepeat: OnRepeat | null): ElementId {
  const id = kept.slice(0, ID_LENGTH);
  const { id: own, fingerprint = '' } = items[index] ?? {};
  const seen = kept.slice(ID_LENGTH);
  if (id !== own) onRepeat?.(index, isSameContent(seen, fingerprint));
  return id;
}

function alone<Call, Result>(run: (call: Call, deadlineAt: number) => Promise<Result>): Work<Call, Result> {
  return { run: ([call], deadlineAt) => run(call as Call, deadlineAt).then((result) => [result]) };
}

type Prepare = (deadlineAt: number) => Promise<void>;

interface ListCall<Call, Result> {
  readonly work: Work<Call, Result>;
  readonly call: Call;
  readonly items: number;
  readonly bytes?: number;
  readonly prepare?: Prepare | null;
}

interface PushCall {
  readonly queue: QueueKey;
  readonly items: readonly Item[];
}

interface PopCall {
  readonly queue: QueueKey;
  readonly count: number;
}

interface Item {
  readonly id: ElementId;
  readonly key: string | null;
  readonly fingerprint: string;
  readonly item: Buffer;
}

function notSupported(what: string): QuaysideError {
  return new QuaysideError('not-supported', `Queues of the list variant do not support ${what}.`);
}

/** What a list holds per element: maturity(6) tries(4) id(22), then the content. */
const ITEM_HEAD = 32;
const ID_LENGTH = 22;
const NO_BODY = Buffer.alloc(0);

function encodeItem(fields: ElementContent & Pick<Delivery, 'id' | 'matureAt' | 'tries'>): Buffer {
  const head = Buffer.alloc(ITEM_HEAD);
  head.writeUIntBE(fields.matureAt, 0, 6);
  head.writeUInt32BE(fields.tries, 6);
  head.write(fields.id, 10, ID_LENGTH, 'latin1');
  return Buffer.concat([head, encodeContent(fields)]);
}

function decodeItem(item: Reply): Delivery {
  if (!Buffer.isBuffer(item)) throw new Error('a list holds something else than items');
  return {
    id: item.toString('latin1', 10, ITEM_HEAD),
    group: PLAIN_GROUP,
    matureAt: item.readUIntBE(0, 6),
    tries: item.readUInt32BE(6),
    lease: null,
    ...decodeContent(item, ITEM_HEAD),
  };
}

/** What calls of one kind do. Those next to each other are executed as one. */
interface Work<Call, Result> {
  /**
   * Resolves with a result for each call, or rejects all. Its commands must be sent before it first waits for anything
   * else.
   */
  run(calls: readonly Call[], deadlineAt: number): Promise<readonly Result[]>;
}

/** One call, and what it needs. */
interface ListRequest<Call, Result> {
  readonly work: Work<Call, Result>;
  readonly call: Call;
  readonly items: number;
  readonly bytes: number;
  /** By the monotonic clock. */
  readonly deadlineAt: number;
  /** Done before the calls that are executed together, once for all of them; null: nothing to do. */
  readonly prepare: (() => Promise<void>) | null;
}

interface Entry extends ListRequest<unknown, unknown> {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: unknown) => void;
}

/** What one command has at most, unless a single call is larger. */
const MAX_ITEMS = 1_000;
const MAX_BYTES = 4 * 1024 * 1024;

/**
 * Keeps the calls of one queue in order: those made in one turn are sent together, over one connection, which
 * keeps them in order; later ones wait until these have their results.
 */
class CallOrder {
  readonly #waiting = new Map<string, Entry[]>();

  /** Runs a request in its turn. */
  run<Call, Result>(name: string, request: ListRequest<Call, Result>): Promise<Result> {
    return new Promise((resolve, reject) => {
      const entry = { ...request, resolve, reject } as Entry;
      const waiting = this.#waiting.get(name);
      if (waiting === undefined) {
        this.#waiting.set(name, [entry]);
        setImmediate(() => void this.#flush(name));
      } else {
        waiting.push(entry);
      }
    });
  }

  async #flush(name: string): Promise<void> {
    for (;;) {
      const group = this.#waiting.get(name)?.splice(0) ?? [];
      if (group.length === 0) break;
      const failure = await preparing(group);
      const ready = failure === null ? group : group.filter(({ prepare }) => prepare === null);
      for (const { prepare, reject } of group) if (failure !== null && prepare !== null) reject(failure);
      await Promise.all(bundled(ready).map(runTogether));
    }
    this.#waiting.delete(name);
  }
}

/** Returns what went wrong; null: nothing. */
async function preparing(group: readonly Entry[]): Promise<unknown> {
  try {
    await group.find(({ prepare }) => prepare !== null)?.prepare?.();
    return null;
  } catch (error) {
    return error;
  }
}

/** Neighbours of the same work, as many as one command may carry. */
function bundled(entries: readonly Entry[]): Entry[][] {
  const bundles: Entry[][] = [];
  let [items, bytes] = [0, 0];
  for (const entry of entries) {
    const last = bundles.at(-1);
    items += entry.items;
    bytes += entry.bytes;
    if (last !== undefined && last[0]?.work === entry.work && items <= MAX_ITEMS && bytes <= MAX_BYTES) {
      last.push(entry);
    } else {
      bundles.push([entry]);
      [items, bytes] = [entry.items, entry.bytes];
    }
  }
  return bundles;
}

/** Never rejects. */
async function runTogether(bundle: readonly Entry[]): Promise<void> {
  const [first] = bundle;
  if (first === undefined) return;
  try {
    const results = await first.work.run(
      bundle.map(({ call }) => call),
      first.deadlineAt,
    );
    for (const [i, { resolve }] of bundle.entries()) resolve(results[i]);
  } catch (error) {
    for (const { reject } of bundle) reject(error);
  }
}
