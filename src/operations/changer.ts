import { asGiven } from '../broker/engine-time.ts';
import { FINISH, type Queue, RELEASE } from '../broker/queue.ts';
import { isUnknownOutcome } from '../engine/calls.ts';
import { isKeySeen } from '../engine/request-keys.ts';
import { countPuts } from '../engine/stats.ts';
import type { MoveAction, ScannedDelivery, SettleAction, SettleItem } from '../engine/storage.ts';
import {
  type ElementHead,
  type ElementHeaders,
  type ElementId,
  type GroupName,
  type NewElement,
  WAITING_STATES,
} from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { checkHeaders, headerOf, withChanges } from '../model/headers.ts';
import { checkName, isGroup } from '../model/names.ts';
import {
  FROM_GROUP,
  FROM_QUEUE,
  MOVE_HEADERS,
  MOVED_FROM,
  SERVICE_HEADERS,
} from '../model/service-headers.ts';
import { fromByteString, toByteString } from '../util/byte-string.ts';
import { quote } from '../util/quote.ts';
import type { ElementChange, OperationQueues, OperationRequest } from './request.ts';

/** About how many bytes of bodies are read at once; a larger body is read alone. */
const MAX_BODY_BYTES = 4 * 1_048_576;

/** Returns the elements with their bodies, without those that are gone or reserved now. */
async function withBodies(
  queue: Queue,
  group: GroupName,
  deliveries: readonly ScannedDelivery[],
): Promise<ScannedDelivery[]> {
  const page = await queue.namespace.storage.scan(queue.key, {
    group,
    states: WAITING_STATES,
    ids: deliveries.map(({ id }) => id),
    after: null,
    limit: deliveries.length,
    bodies: true,
  });
  return page.deliveries;
}

/** Splits elements into chunks whose bodies may be in memory together. */
function chunksOf(deliveries: readonly ScannedDelivery[]): ScannedDelivery[][] {
  const chunks: ScannedDelivery[][] = [];
  let bytes = Number.POSITIVE_INFINITY;
  for (const delivery of deliveries) {
    if (bytes + delivery.bytes > MAX_BODY_BYTES) {
      chunks.push([]);
      bytes = 0;
    }
    chunks.at(-1)?.push(delivery);
    bytes += delivery.bytes;
  }
  return chunks;
}

/** Result of changing elements. An element that neither changed nor failed was taken by a consumer first. */
interface Changes {
  readonly changed: number;
  readonly failed: number;
  /** Why the last of the failed ones failed; null if none did. */
  readonly error: string | null;
}

/** Elements to change, some of which may have been changed already. */
interface ChangeBatch {
  readonly deliveries: readonly ScannedDelivery[];
  /** Whether an earlier attempt failed, here or on a node that is gone: missing elements were changed by it. */
  readonly isRepeated: boolean;
}

interface ChangerOptions {
  /** The operation's id. */
  readonly id: string;
  readonly request: OperationRequest;
  readonly queues: OperationQueues;
  /** For `delay`: the new maturity, by the engine's clock. */
  readonly dueAt: number;
  /** Whether the operation has run before, on another node or before a restart. */
  readonly isContinued: boolean;
}

/** Elements of the transit queue that are read at once. */
const TRANSIT_PAGE = 250;
/** Prefix of a transit queue's name, before the operation's id. It holds elements that move to another engine. */
export const TRANSIT_QUEUE = '__operation__';

const NONE: ReadonlySet<ElementId> = new Set();
const NOTHING: Changes = { changed: 0, failed: 0, error: null };
/** Removes the header that marks an element in transit. */
const WITHOUT_TRANSIT_HEADER: readonly (string | null)[] = [MOVED_FROM, null];
/** Removes the headers that mark a dead letter. */
const WITHOUT_DEAD_LETTER_HEADERS: readonly (string | null)[] = [
  ...[...MOVE_HEADERS].flatMap((name) => [name, null]),
  ...WITHOUT_TRANSIT_HEADER,
];

/**
 * Applies an operation's action to batches of elements. Each element is changed in one atomic step of the engine, which
 * does nothing if the element was changed before or is reserved, so a batch may be repeated at any time.
 *
 * An element that moves to another engine is first moved, in such a step, to a transit queue without consumers. From
 * there it is stored at its destination under a key derived from operation and element, and then finished.
 */
export class ElementChanger {
  readonly #options: ChangerOptions;
  /** Where dead letters of the present batch return to, by name; a string is the reason why they cannot. */
  readonly #returns = new Map<string, Queue | string>();

  /** The transit queue; null if the operation needs none. */
  readonly transit: Queue | null;
  /** Whether elements in transit may have arrived already: a reply was lost, or the node that stored them failed. */
  #mayHaveArrived: boolean;
  /** How many elements returned from the transit queue to the source. */
  returnedCount = 0;
  /** How many elements of the current batch were copied. */
  copied = 0;

  constructor(options: ChangerOptions) {
    this.#options = options;
    this.#mayHaveArrived = options.isContinued;
    const { source, target } = options.queues;
    const isNear = options.request.action !== 'move' || target === null || source.sharesEngineWith(target);
    this.transit = isNear ? null : source.namespace.visit(TRANSIT_QUEUE + options.id);
  }

  /** @throws QuaysideError as the engines do; some elements may have been changed then */
  async change(batch: ChangeBatch): Promise<Changes> {
    if (batch.deliveries.length === 0) return NOTHING;
    if (this.#options.request.action === 'copy') return this.#copy(batch);
    this.#returns.clear();
    const planned = batch.deliveries.map((delivery) => this.#plan(delivery));
    const failures = planned.filter((plan) => typeof plan === 'string');
    const plans = planned.filter((plan) => plan !== null && typeof plan !== 'string');
    const { changed, failed, error } = await this.#settleFitting(plans, batch.isRepeated);
    if (this.transit !== null) await this.forward();
    return { changed, failed: failed + failures.length, error: error ?? failures.at(-1) ?? null };
  }

  /** Returns the change of one element, or the reason why it cannot be changed; null if nothing has to change. */
  #plan(delivery: ScannedDelivery): PlannedChange | string | null {
    const { request, queues, dueAt } = this.#options;
    const { source, group, target } = queues;
    const waiting = (action: SettleAction, to: Queue | null = null): PlannedChange => ({
      delivery,
      to,
      item: waitingItem(source, delivery.id, group, action),
    });
    switch (request.action) {
      case 'delete':
        return waiting(FINISH);
      case 'delay':
        return waiting({ ...RELEASE, dueAt });
      case 'release':
        return { delivery, to: null, item: { ...waiting(RELEASE).item, from: 'reserved' } };
      case 'set':
        return this.#set(delivery, request.set, waiting);
      case 'redrive': {
        const to = this.#returnOf(delivery);
        if (typeof to === 'string') return to;
        const move = this.#moveTo(to, { tries: 0, head: headWith(delivery, WITHOUT_DEAD_LETTER_HEADERS) });
        return waiting({ ...move, groups: [this.#failedGroup(delivery)] }, to);
      }
      default: {
        const { transit } = this;
        const to = transit ?? target;
        if (to === null) return 'This action has no target.';
        const problem = transit === null || target === null ? null : unsupportedReason(delivery, target);
        return (
          problem ?? waiting(this.#moveTo(to, transit === null ? KEEP : this.#transitChanges(delivery)), to)
        );
      }
    }
  }

  /** Skips an element that needs no change: this operation may have stored it, if the engine's clock was set back. */
  #set(
    delivery: ScannedDelivery,
    change: ElementChange | null,
    waiting: (action: SettleAction, to: Queue) => PlannedChange,
  ): PlannedChange | string | null {
    if (change === null) return 'This action has nothing to set.';
    const { source } = this.#options.queues;
    const { headers, tries } = delivery;
    const head = headWith(delivery, change.headers);
    try {
      checkHeaders(head.headers, { exempt: SERVICE_HEADERS });
      const isSame = (change.tries === null || change.tries === tries) && isSamePairs(head.headers, headers);
      if (isSame) return null;
    } catch (error) {
      if (error instanceof QuaysideError) return error.message;
      throw error;
    }
    return waiting(this.#moveTo(source, { tries: change.tries, head }), source);
  }

  /** A move within the source's engine. Within the namespace, a stream's element keeps its group. */
  #moveTo(to: Queue, { tries, head }: CopyTerms): MoveAction {
    return { kind: 'move', to: to.key, groups: this.#groupsIn(to), tries, head };
  }

  #transitChanges(delivery: ScannedDelivery): CopyTerms {
    const { name } = this.#options.queues.source.key;
    return { tries: null, head: headWith(delivery, [MOVED_FROM, toByteString(name)]) };
  }

  #groupsIn(to: Queue): readonly GroupName[] {
    const { source, group } = this.#options.queues;
    return to.namespace === source.namespace ? [group] : to.namespace.defaultGroups;
  }

  /** The group for which a dead letter failed; if none is named, the one whose dead letters the operation changes. */
  #failedGroup({ headers }: ScannedDelivery): GroupName {
    const { source, group } = this.#options.queues;
    const failed = fromByteString(headerOf(headers, FROM_GROUP) ?? '') ?? '';
    return source.namespace.isStream && isGroup(failed) ? failed : group;
  }

  /** Returns the queue that a dead letter came from, or the reason why there is none. */
  #returnOf({ id, headers }: ScannedDelivery): Queue | string {
    const { namespace } = this.#options.queues.source;
    const origin = headerOf(headers, FROM_QUEUE);
    if (origin === null) return `Element ${id} has no header ${FROM_QUEUE}.`;
    const from = origin.startsWith(TRANSIT_QUEUE) ? headerOf(headers, MOVED_FROM) : origin;
    if (from === null)
      return `Element ${id} was in transit to another engine and has no header ${MOVED_FROM}.`;
    let found = this.#returns.get(from);
    if (found === undefined) {
      try {
        const name = checkName(FROM_QUEUE, fromByteString(from) ?? '');
        // Together with those of other dead letters of the batch, which may not exist yet either.
        const others = [...this.#returns.values()].filter((one) => typeof one !== 'string');
        namespace.checkQueueLimit([...others.map(({ key }) => key.name), name]);
        found = namespace.visit(name);
      } catch (error) {
        if (!(error instanceof QuaysideError)) throw error;
        found = error.message;
      }
      this.#returns.set(from, found);
    }
    return found;
  }

  /** Settles elements. Dead letters may name any groups: those that do not fit stay, and do not stop a redrive. */
  async #settleFitting(plans: readonly PlannedChange[], isRepeated: boolean): Promise<Changes> {
    try {
      return { changed: await this.#settle(plans, isRepeated), failed: 0, error: null };
    } catch (error) {
      const isRedrive = this.#options.request.action === 'redrive';
      if (!isRedrive || !(error instanceof QuaysideError) || error.code !== 'too-many-groups') throw error;
      const parts = [...Map.groupBy(plans, targetOf).values()];
      if (parts.length === 1) return { changed: 0, failed: plans.length, error: error.message };
      let all = NOTHING;
      for (const part of parts) {
        const { changed, failed, error: last } = await this.#settleFitting(part, isRepeated);
        all = { changed: all.changed + changed, failed: all.failed + failed, error: last ?? all.error };
      }
      return all;
    }
  }

  /** Returns how many elements were changed. */
  async #settle(plans: readonly PlannedChange[], isRepeated: boolean): Promise<number> {
    if (plans.length === 0) return 0;
    const { source } = this.#options.queues;
    const { storage } = source.namespace;
    const results = await this.#admit(plans, () => storage.settle(plans.map(({ item }) => item)));
    let changed = 0;
    let released = 0;
    const arrived: PlannedChange[] = [];
    for (const [i, plan] of plans.entries()) {
      const { to, item } = plan;
      const outcome = results[i]?.outcome;
      if (isRepeated && (outcome === 'not-found' || outcome === 'not-reserved')) changed += 1;
      if (outcome !== 'done') continue;
      changed += 1;
      if (to !== null) arrived.push(plan);
      else if (item.action.kind === 'release') released += 1;
    }
    for (const [queue, moved] of Map.groupBy(arrived, ({ to }) => to)) {
      if (queue !== null) this.#noteArrived(queue, moved);
    }
    if (released > 0) announce(source, released);
    if (changed > released) source.namespace.noteRemoved(source.key);
    source.namespace.activity.note(source.key.name);
    return changed;
  }

  /** Runs `settle` when the target has capacity: another namespace, or another queue with a bound. */
  #admit<T>(plans: readonly PlannedChange[], settle: () => Promise<T>): Promise<T> {
    const { source } = this.#options.queues;
    let call = settle;
    const to = plans[0]?.to?.namespace;
    if (to !== undefined && to.capacity !== null && to !== source.namespace) {
      const { capacity } = to;
      const bytes = plans.reduce((sum, { delivery }) => sum + delivery.bytes, 0);
      call = () => capacity.admitAmount({ elements: plans.length * to.defaultGroups.length, bytes }, settle);
    }
    for (const [queue, coming] of Map.groupBy(plans, (plan) => plan.to)) {
      if (queue === null || queue === source || queue === this.transit) continue;
      const bound = queue.namespace.capacityOf(queue);
      if (bound === null) continue;
      const elements = coming.length * this.#groupsIn(queue).length;
      const inner = call;
      call = () => bound.admitAmount({ elements, bytes: 0 }, inner);
    }
    return call();
  }

  #noteArrived(queue: Queue, moved: readonly PlannedChange[]): void {
    const { key, namespace } = queue;
    const { queues } = this.#options;
    if (queue !== queues.source && queue !== this.transit) {
      for (const { item } of moved) {
        if (item.action.kind === 'move') countPuts(namespace.stats, key, item.action.groups, 1);
      }
    }
    namespace.noteStored(key);
    announce(queue, moved.length);
  }

  async #copy({ deliveries, isRepeated }: ChangeBatch): Promise<Changes> {
    const { source, group, target } = this.#options.queues;
    if (target === null) return NOTHING;
    this.copied = 0;
    let failed = 0;
    let error: string | null = null;
    for (const chunk of chunksOf(deliveries)) {
      const found = await withBodies(source, group, chunk);
      const fit = found.filter((delivery) => {
        const problem = unsupportedReason(delivery, target);
        if (problem === null) return true;
        error = problem;
        failed += 1;
        return false;
      });
      const { stored, repeated } = await this.#store(target, fit);
      // An element that matured during the operation is found twice: scheduled, then ready.
      this.copied += isRepeated ? stored + repeated : stored;
    }
    const changed = this.copied;
    this.copied = 0;
    return { changed, failed, error };
  }

  /** Stores copies of elements under derived keys. */
  async #store(
    target: Queue,
    deliveries: readonly ScannedDelivery[],
  ): Promise<{ stored: number; repeated: number }> {
    if (deliveries.length === 0) return { stored: 0, repeated: 0 };
    let repeated = 0;
    const copies = deliveries.map((delivery) => this.#copyOf(delivery, target));
    const onRepeat = (): void => {
      repeated += 1;
    };
    await target.insert(copies, { onRepeat, keepsExpiry: true });
    return { stored: copies.length - repeated, repeated };
  }

  #copyOf(delivery: ScannedDelivery, target: Queue): NewElement {
    const { body, contentType, contentEncoding, headers, matureAt, expiresAt, tries, id } = delivery;
    const isNow = delivery.state === 'ready' && !target.namespace.capabilities.sched;
    const { namespace } = this.#options.queues.source;
    return {
      body,
      contentType,
      contentEncoding,
      headers: this.transit === null ? headers : withChanges(headers, WITHOUT_TRANSIT_HEADER),
      matureAt: isNow ? null : asGiven(matureAt, namespace),
      delayMs: 0,
      tries,
      groups: this.#groupsIn(target),
      dedupKey: this.#keyOf(id),
      expiresAt: expiresAt === null ? null : asGiven(expiresAt, namespace),
    };
  }

  /** Notes that another node runs the operation, too: elements in transit may have arrived already. */
  noteOtherNode(): void {
    this.#mayHaveArrived = true;
  }

  /**
   * Stores the elements in transit at their destination, and finishes them.
   * @throws QuaysideError as the destination's engine; the elements stay in the transit queue
   */
  async forward(): Promise<void> {
    const { transit } = this;
    const { target } = this.#options.queues;
    if (transit === null || target === null) return;
    const group = this.#groupsIn(transit)[0] ?? '';
    for await (const found of pagesToEmpty(transit, group)) {
      for (const chunk of chunksOf(found)) await this.#deliver(transit, target, group, chunk);
    }
    this.#mayHaveArrived = false;
  }

  async #deliver(
    transit: Queue,
    target: Queue,
    group: GroupName,
    chunk: readonly ScannedDelivery[],
  ): Promise<void> {
    const deliveries = await withBodies(transit, group, chunk);
    const mayHaveArrived = this.#mayHaveArrived;
    this.#mayHaveArrived = true;
    try {
      await this.#store(target, deliveries);
    } catch (error) {
      if (error instanceof QuaysideError && !isUnknownOutcome(error)) this.#mayHaveArrived = mayHaveArrived;
      throw error;
    }
    await transit.namespace.storage.settle(
      deliveries.map(({ id }) => waitingItem(transit, id, group, FINISH)),
    );
    transit.namespace.noteRemoved(transit.key);
    this.#mayHaveArrived = mayHaveArrived;
  }

  /**
   * Returns elements in transit to the source, except those that have arrived, when an operation cannot be completed.
   * @throws QuaysideError also as the destination's engine, which must tell whether elements have arrived
   */
  async returnTransit(): Promise<void> {
    const { transit } = this;
    const { source, group, target } = this.#options.queues;
    if (transit === null || target === null) return;
    const { storage } = transit.namespace;
    const back = (delivery: ScannedDelivery): MoveAction => ({
      kind: 'move',
      to: source.key,
      groups: [group],
      tries: null,
      head: headWith(delivery, WITHOUT_TRANSIT_HEADER),
    });
    for await (const found of pagesToEmpty(transit, group)) {
      const arrived = this.#mayHaveArrived ? await this.#arrivedOf(found, target) : NONE;
      await storage.settle(
        found.map((delivery) =>
          waitingItem(transit, delivery.id, group, arrived.has(delivery.id) ? FINISH : back(delivery)),
        ),
      );
      const count = found.length - arrived.size;
      this.returnedCount += count;
      announce(source, count);
    }
  }

  /** Deletes the transit queue if it is empty. If that fails, it is deleted later as an unused queue. Never rejects. */
  async dropTransit(): Promise<void> {
    await this.transit?.namespace.drop(this.transit.key).catch(() => {});
  }

  /** The elements whose copies are stored at the destination. */
  async #arrivedOf(deliveries: readonly ScannedDelivery[], target: Queue): Promise<ReadonlySet<ElementId>> {
    const { storage } = target.namespace;
    const arrived = new Set<ElementId>();
    await Promise.all(
      deliveries.map(async ({ id }) => {
        if (await isKeySeen(storage, target.key, this.#keyOf(id))) arrived.add(id);
      }),
    );
    return arrived;
  }

  /** The idempotency key of an element's copy in another queue. */
  #keyOf(id: ElementId): string {
    const { id: operation, queues } = this.#options;
    return JSON.stringify(['operation', operation, queues.source.key.ns, id]);
  }
}

/** The change of one element, and the queue that receives it; null if it is deleted, or stays in its queue. */
interface PlannedChange {
  readonly delivery: ScannedDelivery;
  readonly to: Queue | null;
  readonly item: SettleItem;
}

type CopyTerms = Pick<MoveAction, 'tries' | 'head'>;

const KEEP: CopyTerms = { tries: null, head: null };

/** The head of a delivery's copy with some headers replaced. @param changes see {@link withChanges} */
function headWith(
  { contentType, contentEncoding, headers }: ScannedDelivery,
  changes: readonly (string | null)[],
): ElementHead {
  return { contentType, contentEncoding, headers: withChanges(headers, changes) };
}

/** The queue and the groups that receive an element. */
function targetOf({ to, item: { action } }: PlannedChange): string {
  return JSON.stringify([to?.key.name, action.kind === 'move' ? action.groups : null]);
}

/** Notifies consumers, here and on other nodes, of elements that are eligible or scheduled. */
function announce(queue: Queue, count: number): void {
  queue.match(count);
  queue.namespace.announce(queue.key, count);
}

function waitingItem(queue: Queue, id: ElementId, group: GroupName, action: SettleAction): SettleItem {
  return { queue: queue.key, id, group, from: 'waiting', token: null, action };
}

/** The first waiting elements of a queue, again and again until there are none: the caller removes each page. */
async function* pagesToEmpty(queue: Queue, group: GroupName): AsyncGenerator<readonly ScannedDelivery[]> {
  for (;;) {
    const { deliveries } = await queue.namespace.storage.scan(queue.key, {
      group,
      states: WAITING_STATES,
      after: null,
      limit: TRANSIT_PAGE,
      bodies: false,
    });
    if (deliveries.length === 0) return;
    yield deliveries;
  }
}

/** Returns why another engine's namespace cannot store an element; null if it can. */
function unsupportedReason({ id, state, expiresAt }: ScannedDelivery, { namespace }: Queue): string | null {
  const lacks = (what: string): string =>
    `Element ${id} has ${what}, which queues of namespace ${quote(namespace.name)} do not support.`;
  if (state === 'scheduled' && !namespace.capabilities.sched) return lacks('a maturity in the future');
  return expiresAt !== null && !namespace.hasExpiry ? lacks('a time to live') : null;
}

/** Whether two lists contain the same headers, in any order. */
function isSamePairs(a: ElementHeaders, b: ElementHeaders): boolean {
  if (a.length !== b.length) return false;
  const values = new Map<string, string>();
  for (let at = 0; at + 1 < a.length; at += 2) values.set(a[at] as string, a[at + 1] as string);
  for (let at = 0; at + 1 < b.length; at += 2) if (values.get(b[at] as string) !== b[at + 1]) return false;
  return true;
}
