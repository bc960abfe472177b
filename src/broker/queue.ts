import type { DeliveryRef, SettleOutcome } from '../engine/storage.ts';
import {
  type Delivery,
  type ElementId,
  type GroupName,
  type NewElement,
  PLAIN_GROUP,
} from '../model/element.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import { Consumer, type GetRequest, type Sink } from './consumer.ts';
import { Line, type LineHost, MANY } from './line.ts';
import type { Namespace } from './namespace.ts';

/** A consumer that waits, as the spec shows it (2.3). */
export interface PendingConsumer {
  readonly tid: string;
  readonly since: string;
  readonly callback: 'set' | 'unset';
  readonly cleanup_timeout: 'set' | 'unset';
  readonly wakeup_timeout: 'set' | 'unset';
}

const ONE_PUT = { put: 1 } as const;
const ONE_GET = { get: 1 } as const;
const ONE_RESERVE = { reserve: 1 } as const;
const ONE_COMMIT = { commit: 1 } as const;
const ONE_ROLLBACK = { rollback: 1 } as const;

/**
 * One queue as its users see it. Knows who waits on this node; all else is in the engine.
 * Every verb answers after the engine said yes, or throws a `QuaysideError`.
 */
export class Queue {
  readonly key: QueueKey;
  readonly #ns: Namespace;
  readonly #lines = new Map<GroupName, Line>();
  /** Consumers that gave a tid: several may share one. */
  readonly #byTid = new Map<string, Set<Consumer>>();
  readonly #host: LineHost;
  #paused: boolean;

  constructor(ns: Namespace, key: QueueKey, paused: boolean) {
    this.#ns = ns;
    this.key = key;
    this.#paused = paused;
    const queue = this;
    this.#host = {
      key,
      storage: ns.storage,
      clock: ns.clock,
      random: ns.random,
      get paused() {
        return queue.#paused;
      },
      served: (consumer, deliveries) => this.#served(consumer, deliveries),
      released: (consumer) => this.#released(consumer),
      giveBack: (delivery) => this.giveBack(delivery),
      emptied: (line) => this.#forget(line),
    };
  }

  get paused(): boolean {
    return this.#paused;
  }

  /** Consumers that wait on this node. */
  get waiting(): number {
    let waiting = 0;
    for (const line of this.#lines.values()) waiting += line.consumers().length;
    return waiting;
  }

  /**
   * The groups that an insert is for (spec 4.3): those given, or the namespace's default.
   * @throws QuaysideError `invalid-parameter` where groups are given and the namespace has none
   */
  groups(given: readonly GroupName[] | null): readonly GroupName[] {
    if (given !== null && !this.#ns.isStream) throw this.#noGroups('groups');
    return given ?? this.#ns.defaultGroups;
  }

  /** Stores elements, all or none, and answers their ids (spec 4.1, Insert). */
  async insert(elements: readonly NewElement[]): Promise<ElementId[]> {
    const stored = this.#ns.meter.observe('insert', this.#ns.storage.insert(this.key, elements));
    // Before the answer, on purpose: the takes for those who wait share the insert's round trip.
    for (const element of elements) this.#wakeFor(element);
    const ids = await stored;
    for (const element of elements) this.#countPut(element);
    this.#ns.meter.count('insert', 'ok', elements.length);
    this.#ns.announce(this.key, elements.length);
    return ids;
  }

  /**
   * Waits for an element (spec 4.1, Get or reserve). The sink hears once, unless `leave` is called first.
   * @throws QuaysideError `invalid-parameter`, `too-many-consumers`, `shutting-down`
   */
  get(request: GetRequest, sink: Sink): Consumer {
    const group = this.#groupFor(request.group);
    const resolved = request.group === group ? request : { ...request, group };
    this.#ns.admission.enter(request.owner);
    this.#ns.noteUse(this.key);
    const consumer = new Consumer(resolved, sink, this.#ns.clock.now());
    if (consumer.tid !== null) this.#index(consumer, consumer.tid);
    this.#line(group).join(consumer);
    return consumer;
  }

  /** The client of this call is gone: it takes no element any more. Harmless when it was answered. */
  leave(consumer: Consumer): void {
    this.#lines.get(consumer.request.group ?? '')?.leave(consumer);
  }

  /**
   * Undoes a hand-out whose answer did not reach the client: a pop returns to its place, a reserve is
   * rolled back with no try counted. Never throws; a failure is logged, since nobody is left to hear it.
   */
  giveBack(delivery: Delivery): void {
    const { storage, stats } = this.#ns;
    const { lease, group, id } = delivery;
    const undone =
      lease === null
        ? storage.putBack(this.key, [delivery])
        : storage.rollback(this.key, [{ id, group, token: lease.token, delayMs: 0, countTry: false }]);
    stats.add(this.key, group, lease === null ? { get: -1 } : { reserve: -1 });
    this.#lines.get(group)?.match(1);
    undone.then(
      () => this.#ns.announce(this.key, 1),
      (error: unknown) =>
        this.#ns.log.warn({ err: error, queue: this.key, id }, 'an element could not go back'),
    );
  }

  /** Finishes a reserved element. @throws `element-not-found`, `not-reserved`, `lease-lost` */
  async commit(ref: SettleRef): Promise<void> {
    const settling = this.#ns.storage.commit(this.key, [this.#delivery(ref)]);
    const [outcome] = await this.#ns.meter.observe('commit', settling);
    this.#settled('commit', ref, outcome);
    this.#ns.stats.add(this.key, ref.group ?? this.#ns.defaultGroup, ONE_COMMIT);
  }

  /** Gives a reserved element back, eligible after `delayMs`; one failed try more. @throws as `commit` */
  async rollback(ref: SettleRef, delayMs: number): Promise<void> {
    const item = { ...this.#delivery(ref), delayMs, countTry: true };
    const settling = this.#ns.storage.rollback(this.key, [item]);
    this.#wake(item.group, delayMs);
    const [outcome] = await this.#ns.meter.observe('rollback', settling);
    this.#settled('rollback', ref, outcome);
    this.#ns.stats.add(this.key, item.group, ONE_ROLLBACK);
    if (outcome === 'dead-lettered') this.#ns.elementDied();
    else if (delayMs === 0) this.#ns.announce(this.key, 1);
  }

  /** Renews a lease to `leaseMs` from now (null: the namespace's) and answers its end. @throws as `commit` */
  async extend(ref: SettleRef, leaseMs: number | null): Promise<number> {
    const item = { ...this.#delivery(ref), leaseMs: leaseMs ?? this.#ns.leaseMs };
    const [result] = await this.#ns.meter.observe('extend', this.#ns.storage.extend(this.key, [item]));
    this.#settled('extend', ref, result?.outcome);
    return result?.outcome === 'done' ? result.until : 0;
  }

  /** Removes a waiting element (spec 4.1). @throws `not-supported`, `element-not-found`, `element-reserved` */
  async remove(id: ElementId): Promise<void> {
    if (!this.#ns.capabilities.remove) {
      throw new QuaysideError('not-supported', `Queues of ${this.#ns.name} do not support remove by id.`);
    }
    const [outcome] = await this.#ns.meter.observe('remove', this.#ns.storage.remove(this.key, [id]));
    if (outcome === 'reserved') {
      this.#ns.meter.count('remove', 'element-reserved');
      throw new QuaysideError('element-reserved', `Element ${id} is reserved; commit it or roll it back.`);
    }
    this.#settled('remove', { id, group: null, token: null }, outcome);
  }

  /** Holds back all consumers of the queue, on every node (spec 3.2). Durable; idempotent. */
  async pause(): Promise<void> {
    await this.#ns.meter.observe('pause', this.#ns.writePaused(this.key, true));
    this.#ns.meter.count('pause', 'ok');
    this.setPaused(true);
  }

  /** Lets them go on. */
  async resume(): Promise<void> {
    await this.#ns.meter.observe('resume', this.#ns.writePaused(this.key, false));
    this.#ns.meter.count('resume', 'ok');
    this.setPaused(false);
  }

  /** The pause flag as the engine has it; called by this node's own change and by the watch of all others. */
  setPaused(paused: boolean): void {
    if (this.#paused === paused) return;
    this.#paused = paused;
    for (const line of this.#lines.values()) {
      if (paused) line.pause();
      else line.match(MANY);
    }
  }

  /** The blocked calls of this node (spec 2.3), in the order in which they came, whatever their group. */
  consumers(): PendingConsumer[] {
    const pending: { consumer: Consumer; line: Line }[] = [];
    for (const line of this.#lines.values()) {
      for (const consumer of line.consumers()) pending.push({ consumer, line });
    }
    pending.sort((a, b) => a.consumer.since - b.consumer.since);
    return pending.map(({ consumer, line }) => ({
      tid: this.#tidOf(consumer),
      since: new Date(consumer.since).toISOString(),
      callback: 'set',
      cleanup_timeout: consumer.cancelTimeout === null ? 'unset' : 'set',
      wakeup_timeout: line.awaitsMaturity ? 'set' : 'unset',
    }));
  }

  /**
   * Ends every blocked call with this tid, on all nodes (spec 3.3). Where `owner` is given, only that user's.
   * Answers how many ended here; none is no error.
   */
  cancel(tid: string, owner: string | null): number {
    this.#ns.announceCancel(this.key, tid, owner);
    this.#ns.meter.count('cancel', 'ok');
    return this.cancelHere(tid, owner);
  }

  /** The part of `cancel` that each node does. */
  cancelHere(tid: string, owner: string | null): number {
    let cancelled = 0;
    for (const consumer of [...(this.#byTid.get(tid) ?? [])]) {
      if (owner !== null && consumer.request.owner !== owner) continue;
      this.#end(consumer, new QuaysideError('pop-cancelled', 'cancel'));
      cancelled += 1;
    }
    return cancelled;
  }

  /** Elements may have become eligible: up to `count` in each group, or {@link MANY}. */
  match(count: number): void {
    for (const line of this.#lines.values()) line.match(count);
  }

  /** Answers everybody who waits; used when the node stops. */
  endAll(reason: QuaysideError): void {
    for (const line of [...this.#lines.values()]) {
      for (const consumer of line.consumers()) line.end(consumer, reason);
    }
  }

  #end(consumer: Consumer, reason: QuaysideError): void {
    this.#lines.get(consumer.request.group ?? '')?.end(consumer, reason);
  }

  /** On a stream an element is put once, and once for each of its groups. */
  #countPut({ groups }: NewElement): void {
    this.#ns.stats.add(this.key, PLAIN_GROUP, ONE_PUT);
    if (!this.#ns.isStream) return;
    for (const group of groups) this.#ns.stats.add(this.key, group, ONE_PUT);
  }

  #wakeFor(element: NewElement): void {
    if (this.#lines.size === 0) return;
    const delayMs = element.matureAt === null ? element.delayMs : element.matureAt - this.#ns.clock.now();
    for (const group of element.groups) this.#wake(group, delayMs);
  }

  #wake(group: GroupName, delayMs: number): void {
    const line = this.#lines.get(group);
    if (line === undefined) return;
    if (delayMs <= 0) line.match(1);
    else line.matureAt(this.#ns.clock.now() + delayMs);
  }

  #line(group: GroupName): Line {
    let line = this.#lines.get(group);
    if (line === undefined) {
      line = new Line(this.#host, group);
      this.#lines.set(group, line);
    }
    return line;
  }

  /** Group names come from requests: a line that nobody waits in must not stay. */
  #forget(line: Line): void {
    if (line.group !== this.#ns.defaultGroup) this.#lines.delete(line.group);
  }

  #served(consumer: Consumer, deliveries: readonly Delivery[]): void {
    const reserved = consumer.request.leaseMs !== null;
    for (const { group, lease } of deliveries) {
      this.#ns.stats.add(this.key, group, reserved ? ONE_RESERVE : ONE_GET);
      if (lease !== null) this.#ns.leaseEndsAt(lease.until);
    }
    this.#ns.meter.count(reserved ? 'reserve' : 'get', 'ok', deliveries.length);
  }

  #released(consumer: Consumer): void {
    this.#ns.admission.exit(consumer.request.owner);
    if (consumer.tid === null) return;
    const sharing = this.#byTid.get(consumer.tid);
    sharing?.delete(consumer);
    if (sharing?.size === 0) this.#byTid.delete(consumer.tid);
  }

  #tidOf(consumer: Consumer): string {
    if (consumer.tid === null) {
      consumer.tid = this.#ns.makeTid();
      this.#index(consumer, consumer.tid);
    }
    return consumer.tid;
  }

  #index(consumer: Consumer, tid: string): void {
    const sharing = this.#byTid.get(tid);
    if (sharing === undefined) this.#byTid.set(tid, new Set([consumer]));
    else sharing.add(consumer);
  }

  #groupFor(given: GroupName | null): GroupName {
    if (given !== null && !this.#ns.isStream) throw this.#noGroups('group');
    return given ?? this.#ns.defaultGroup;
  }

  /** A group on a plain queue is not the reserve's group: such a ref finds nothing, and changes nothing. */
  #delivery(ref: SettleRef): DeliveryRef {
    return { id: ref.id, group: ref.group ?? this.#ns.defaultGroup, token: ref.token };
  }

  #settled(
    operation: 'commit' | 'rollback' | 'extend' | 'remove',
    ref: SettleRef,
    outcome: SettleOutcome | undefined,
  ): void {
    switch (outcome) {
      case 'done':
      case 'dead-lettered':
        this.#ns.meter.count(operation, 'ok');
        return;
      case 'lease-lost':
        this.#ns.meter.count(operation, 'lease-lost');
        throw new QuaysideError(
          'lease-lost',
          `The reservation of ${ref.id} that this token is of has ended; reserve the element again.`,
        );
      case 'not-reserved':
        this.#ns.meter.count(operation, 'not-reserved');
        throw new QuaysideError('not-reserved', `Element ${ref.id} is not reserved.`);
      case 'not-found':
      case undefined:
        this.#ns.meter.count(operation, 'element-not-found');
        throw new QuaysideError(
          'element-not-found',
          `There is no element ${ref.id} in ${this.key.name}${ref.group === null ? '' : ` for group ${ref.group}`}.`,
        );
      default:
        outcome satisfies never;
    }
  }

  #noGroups(parameter: string): QuaysideError {
    return invalidParameter(
      parameter,
      `Namespace ${this.#ns.name} has plain queues; leave ${parameter} out, or use a stream namespace.`,
    );
  }
}

/** What a client names when it settles: the id, and what the reserve was made with. */
export interface SettleRef {
  readonly id: ElementId;
  readonly group: GroupName | null;
  readonly token: string | null;
}
