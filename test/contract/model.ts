import type { NamespacePolicy } from '../../src/engine/engine.ts';
import {
  EXPIRED,
  type GroupCounts,
  LEASE_EXPIRED,
  type MoveAction,
  type QueueOptions,
  type SettleAction,
  type SettleOutcome,
} from '../../src/engine/storage.ts';
import type { NewElement } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';

/**
 * The promises of the Storage port as a sequential model: arrays and plain loops, nothing clever, so that it can be
 * compared with `docs/concepts.md`. It is independent of engines, so the same model serves a front end.
 */
export interface ModelElement {
  /** Order of insertion over all queues, which decides among equal maturities. */
  readonly order: number;
  readonly queue: QueueKey;
  readonly content: Pick<NewElement, 'body' | 'contentType' | 'contentEncoding' | 'headers'>;
  /** Null until the real system has returned it. */
  id: string | null;
}

export interface ModelDelivery {
  readonly element: ModelElement;
  readonly group: string;
  state: 'waiting' | 'reserved';
  dueAt: number;
  tries: number;
  /** Null: it does not expire. */
  readonly expiresAt: number | null;
  /** Of the last counted try, or of a dead letter; undefined: unknown, as an undone take may have lost it. */
  reason: string | null | undefined;
  /** Of the last reservation; null if it was rolled back, '' if the token is unknown. */
  token: string | null;
  /** The user of the last reservation. */
  owner: string | null;
  /** The tid of the last reservation, and when it was made. */
  tid: string | null;
  reservedAt: number;
  leaseUntil: number;
}

/** How a settling call references a delivery. */
export interface ModelRef {
  readonly id: string;
  readonly group: string;
  readonly token: string | null;
  readonly owner?: string | null;
}

interface State {
  now: number;
  inserted: number;
  deliveries: ModelDelivery[];
  /** Whether an element has expired since the last `sweep`. */
  hasExpired: boolean;
  /** The declared options by queue. */
  options: Record<string, QueueOptions>;
  dedup: {
    queue: string;
    key: string;
    fingerprint: string | null;
    element: ModelElement;
    seenAt: number;
  }[];
}

export class Model {
  readonly #policies: ReadonlyMap<string, NamespacePolicy>;
  readonly #dedupWindowMs: number;
  readonly #state: State;

  constructor(namespaces: readonly NamespacePolicy[], dedupWindowMs: number, now: number) {
    this.#policies = new Map(namespaces.map((policy) => [policy.name, policy]));
    this.#dedupWindowMs = dedupWindowMs;
    this.#state = { now, inserted: 0, deliveries: [], hasExpired: false, options: {}, dedup: [] };
  }

  get now(): number {
    return this.#state.now;
  }

  /** Advances the time to `now`. Ended leases count as failed tries, in the order of their ends. */
  advanceTo(now: number): void {
    this.#state.now = now;
    const ended = this.#state.deliveries
      .filter(({ state, leaseUntil }) => state === 'reserved' && leaseUntil <= now)
      .sort((a, b) => a.leaseUntil - b.leaseUntil || a.element.order - b.element.order);
    for (const delivery of ended) {
      const { leaseUntil, token } = delivery;
      if (!this.#failTry(delivery, leaseUntil, LEASE_EXPIRED, leaseUntil)) delivery.token = token;
    }
    this.#expire();
  }

  /**
   * Removes expired waiting elements. Returns whether any expired since the last call: then the real system needs a
   * sweep, too.
   */
  sweep(): boolean {
    this.#expire();
    const { hasExpired } = this.#state;
    this.#state.hasExpired = false;
    return hasExpired;
  }

  #expire(): void {
    const { now, deliveries } = this.#state;
    const expired = deliveries
      .filter(({ state, expiresAt }) => state === 'waiting' && expiresAt !== null && expiresAt <= now)
      .sort((a, b) => (a.expiresAt ?? 0) - (b.expiresAt ?? 0) || a.element.order - b.element.order);
    for (const delivery of expired) {
      if (!this.#moveToDeadLetter(delivery, delivery.tries, EXPIRED)) this.#finish(delivery);
    }
    if (expired.length > 0) this.#state.hasExpired = true;
  }

  /** Deletes an empty queue with its options and dedup keys. Returns false if it is not empty. */
  drop(queue: QueueKey): boolean {
    if (this.deliveriesOf(queue).length > 0) return false;
    delete this.#state.options[keyOf(queue)];
    this.#state.dedup = this.#state.dedup.filter((one) => one.queue !== keyOf(queue));
    return true;
  }

  /** Replaces the options stored with the queue; null: none. */
  declare(queue: QueueKey, options: QueueOptions | null): void {
    this.#state.options[keyOf(queue)] = options ?? {};
  }

  /** An option of a queue: stored with it, or of the longest pattern that matches its name, or of its namespace. */
  #option<Name extends keyof QueueOptions>({ ns, name }: QueueKey, option: Name): QueueOptions[Name] | null {
    const policy = this.#policies.get(ns);
    const rule = policy?.queues
      ?.filter(({ pattern }) => name.startsWith(pattern.replace('*', '')))
      .sort((a, b) => b.pattern.length - a.pattern.length)[0];
    const stored = this.#state.options[keyOf({ ns, name })] ?? {};
    for (const options of [stored, rule?.options ?? {}, policy ?? {}]) {
      const value = (options as QueueOptions)[option];
      if (value !== undefined) return value;
    }
    return null;
  }

  /** Whether the element would repeat another one, with the same content or not; null if it would not. */
  repeatOf(queue: QueueKey, { dedupKey, fingerprint = null }: NewElement): { isSame: boolean } | null {
    const seen = this.#seen(queue, dedupKey);
    if (seen === undefined || seen.seenAt <= this.now - this.#dedupWindowMs) return null;
    return { isSame: fingerprint === null || seen.fingerprint === null || fingerprint === seen.fingerprint };
  }

  #seen(queue: QueueKey, key: string | null): State['dedup'][number] | undefined {
    return this.#state.dedup.find((one) => one.queue === keyOf(queue) && one.key === key);
  }

  /** The index of the first element whose key was used with other content, in this call or before; null: none. */
  mismatchIn(queue: QueueKey, elements: readonly NewElement[]): number | null {
    const fingerprints = new Map<string, string | null>();
    for (const [index, { dedupKey: key, fingerprint = null }] of elements.entries()) {
      if (key === null) continue;
      const seen = this.#seen(queue, key);
      const isRemembered = seen !== undefined && seen.seenAt > this.now - this.#dedupWindowMs;
      if (!fingerprints.has(key)) fingerprints.set(key, isRemembered ? seen.fingerprint : fingerprint);
      const first = fingerprints.get(key) ?? null;
      if (first !== null && fingerprint !== null && first !== fingerprint) return index;
    }
    return null;
  }

  /** Stores all elements of a call. If a key was used with other content, stores none and returns an empty array. */
  insertAll(queue: QueueKey, elements: readonly NewElement[]): ModelElement[] {
    if (this.mismatchIn(queue, elements) !== null) return [];
    return elements.map((element) => this.insert(queue, element));
  }

  /** Returns the new element, or the stored one with the same dedup key. */
  insert(queue: QueueKey, element: NewElement): ModelElement {
    const { dedupKey: key, fingerprint = null, matureAt, delayMs, tries, groups, expiresAt = null } = element;
    const { now, dedup } = this.#state;
    const seen = this.#seen(queue, key);
    if (seen !== undefined && this.repeatOf(queue, element) !== null) return seen.element;
    const { body, contentType, contentEncoding, headers } = element;
    const content = { body, contentType, contentEncoding, headers };
    const stored: ModelElement = { order: ++this.#state.inserted, queue, content, id: null };
    if (key !== null) {
      this.#state.dedup = dedup.filter((one) => one !== seen);
      this.#state.dedup.push({ queue: keyOf(queue), key, fingerprint, element: stored, seenAt: now });
    }
    const dueAt = matureAt ?? now + delayMs;
    for (const group of new Set(groups)) {
      this.#state.deliveries.push({ ...newDelivery(stored, group), dueAt, tries, expiresAt });
    }
    return stored;
  }

  /** The deliveries that a take must return, in order. `leaseMs` null: they are popped. */
  take(
    queue: QueueKey,
    group: string,
    count: number,
    leaseMs: number | null,
    owner: string | null = null,
    tids: readonly (string | null)[] | null = null,
  ): ModelDelivery[] {
    const taken = this.#waiting(queue, group)
      .filter(({ dueAt }) => dueAt <= this.now)
      .slice(0, count);
    for (const [place, delivery] of taken.entries()) {
      if (leaseMs === null) this.#finish(delivery);
      else {
        const holder = { owner, tid: tids?.[place] ?? null, reservedAt: this.now };
        Object.assign(delivery, { state: 'reserved', token: '', ...holder, leaseUntil: this.now + leaseMs });
      }
    }
    return taken;
  }

  undoTake(popped: ModelDelivery): void {
    const reason = popped.reason === null ? null : undefined;
    this.#state.deliveries.push({ ...popped, reason, token: null });
  }

  commit(queue: QueueKey, ref: ModelRef): SettleOutcome {
    const delivery = this.#find(queue, ref);
    if (delivery === undefined) return 'not-found';
    // A waiting delivery that still has a token is one whose lease expired.
    if (delivery.token === null) return ref.token === null ? 'not-reserved' : 'lease-lost';
    if (ref.token !== null && ref.token !== delivery.token) return 'lease-lost';
    if (isOwnedByAnother(delivery, ref)) return 'token-required';
    this.#finish(delivery);
    return 'done';
  }

  rollback(
    queue: QueueKey,
    ref: ModelRef,
    delayMs: number,
    countTry: boolean,
    isDefaultDelay = false,
  ): SettleOutcome {
    return this.settle(queue, ref, { kind: 'release', delayMs, countTry, isDefaultDelay });
  }

  extend(queue: QueueKey, ref: ModelRef, leaseMs: number): SettleOutcome {
    return this.settle(queue, ref, { kind: 'extend', leaseMs });
  }

  /** Any action except a commit, on a reserved delivery. */
  settle(queue: QueueKey, ref: ModelRef, action: SettleAction): SettleOutcome {
    const delivery = this.#find(queue, ref);
    const outcome = this.#checkReserved(delivery, ref);
    return delivery === undefined || outcome !== 'done' ? outcome : this.#apply(delivery, action);
  }

  /** An action on a waiting delivery. */
  settleWaiting(queue: QueueKey, ref: Pick<ModelRef, 'id' | 'group'>, action: SettleAction): SettleOutcome {
    const delivery = this.#find(queue, { ...ref, token: null });
    if (delivery === undefined) return 'not-found';
    return delivery.state === 'reserved' ? 'reserved' : this.#apply(delivery, action);
  }

  #apply(delivery: ModelDelivery, action: SettleAction): SettleOutcome {
    const { now } = this;
    switch (action.kind) {
      case 'finish':
        this.#finish(delivery);
        return 'done';
      case 'extend':
        delivery.leaseUntil = now + action.leaseMs;
        return 'done';
      case 'move':
        this.#move(delivery, action);
        return 'done';
      case 'dead-letter': {
        const tries = delivery.tries + (action.countTry ? 1 : 0);
        if (this.#moveToDeadLetter(delivery, tries, action.reason)) return 'dead-lettered';
        const reason = action.countTry ? action.reason : delivery.reason;
        Object.assign(delivery, { state: 'waiting', dueAt: now, tries, reason, token: null });
        return 'done';
      }
      case 'release': {
        const { delayMs, dueAt = null, countTry, reason = null, isDefaultDelay = false } = action;
        if (countTry) {
          const retryFrom = isDefaultDelay ? now : null;
          return this.#failTry(delivery, dueAt ?? now + delayMs, reason, retryFrom)
            ? 'dead-lettered'
            : 'done';
        }
        const keepsPlace = delivery.state === 'reserved' && delayMs === 0;
        const moment = dueAt ?? (keepsPlace ? delivery.dueAt : now + delayMs);
        Object.assign(delivery, { state: 'waiting', dueAt: moment, token: null });
        return 'done';
      }
      default:
        return action satisfies never;
    }
  }

  #move(delivery: ModelDelivery, { to, groups, tries, head }: MoveAction): void {
    const { element, dueAt, expiresAt } = delivery;
    this.#finish(delivery);
    this.insert(to, {
      ...element.content,
      ...head,
      matureAt: dueAt,
      delayMs: 0,
      tries: tries ?? delivery.tries,
      groups,
      dedupKey: null,
      expiresAt,
    });
  }

  remove(queue: QueueKey, id: string): SettleOutcome {
    const deliveries = this.deliveriesOf(queue).filter(({ element }) => element.id === id);
    if (deliveries.length === 0) return 'not-found';
    if (deliveries.some(({ state }) => state === 'reserved')) return 'reserved';
    for (const delivery of deliveries) this.#finish(delivery);
    return 'done';
  }

  purge(queue: QueueKey, states: readonly (keyof GroupCounts)[]): number {
    const purged = this.deliveriesOf(queue).filter((delivery) => states.includes(this.#phase(delivery)));
    for (const delivery of purged) this.#finish(delivery);
    return purged.length;
  }

  /** The waiting deliveries of a group in a state, in the order of delivery. */
  browse(queue: QueueKey, group: string, state: 'ready' | 'scheduled'): ModelDelivery[] {
    return this.#waiting(queue, group).filter((delivery) => this.#phase(delivery) === state);
  }

  /** Reserved deliveries with a running lease, in the order in which the leases end. */
  reserved(queue: QueueKey, group: string): ModelDelivery[] {
    return this.deliveriesOf(queue)
      .filter((one) => one.group === group && one.state === 'reserved' && one.leaseUntil > this.now)
      .sort((a, b) => a.leaseUntil - b.leaseUntil || a.element.order - b.element.order);
  }

  deliveriesOf(queue: QueueKey): ModelDelivery[] {
    return this.#state.deliveries.filter(({ element }) => keyOf(element.queue) === keyOf(queue));
  }

  nextDueAt(queue: QueueKey, group?: string): number | null {
    const waiting = this.#waiting(queue, group);
    return waiting[0]?.dueAt ?? null;
  }

  /** Counts the deliveries of a group or, without a group, the elements, each in its most advanced state. */
  sizes(queue: QueueKey, group?: string): GroupCounts {
    const phases = new Map<ModelDelivery | number, Set<string>>();
    for (const delivery of this.deliveriesOf(queue)) {
      if (group !== undefined && delivery.group !== group) continue;
      const unit = group === undefined ? delivery.element.order : delivery;
      phases.set(unit, (phases.get(unit) ?? new Set()).add(this.#phase(delivery)));
    }
    const counts = { ready: 0, scheduled: 0, reserved: 0 };
    for (const states of phases.values()) {
      counts[states.has('ready') ? 'ready' : states.has('scheduled') ? 'scheduled' : 'reserved']++;
    }
    return { ...counts, nextMatureAt: this.nextDueAt(queue, group) };
  }

  #phase({ state, dueAt }: ModelDelivery): 'ready' | 'scheduled' | 'reserved' {
    return state === 'reserved' ? 'reserved' : dueAt <= this.now ? 'ready' : 'scheduled';
  }

  #waiting(queue: QueueKey, group?: string): ModelDelivery[] {
    return this.deliveriesOf(queue)
      .filter((delivery) => delivery.state === 'waiting' && (group === undefined || delivery.group === group))
      .sort((a, b) => a.dueAt - b.dueAt || a.element.order - b.element.order);
  }

  #find(queue: QueueKey, { id, group }: ModelRef): ModelDelivery | undefined {
    return this.deliveriesOf(queue).find(
      (delivery) => delivery.element.id === id && delivery.group === group,
    );
  }

  #checkReserved(delivery: ModelDelivery | undefined, ref: ModelRef): SettleOutcome {
    if (delivery === undefined) return 'not-found';
    const isReserved = delivery.state === 'reserved';
    if (ref.token !== null) return isReserved && ref.token === delivery.token ? 'done' : 'lease-lost';
    if (!isReserved) return 'not-reserved';
    return isOwnedByAnother(delivery, ref) ? 'token-required' : 'done';
  }

  /** Returns whether the delivery was moved to the dead-letter queue. */
  #failTry(
    delivery: ModelDelivery,
    givenDueAt: number,
    reason: string | null = null,
    retryFrom: number | null = null,
  ): boolean {
    const { queue } = delivery.element;
    const maxTries = this.#option(queue, 'deadLetter')?.maxTries ?? Number.POSITIVE_INFINITY;
    const tries = delivery.tries + 1;
    if (tries >= maxTries && this.#moveToDeadLetter(delivery, tries, reason)) return true;
    const retry = this.#option(queue, 'retryDelay');
    // The histories have no jitter.
    const delay = retry == null ? null : Math.min(retry.maxMs, retry.firstMs * retry.factor ** (tries - 1));
    const dueAt = retryFrom === null || delay === null ? givenDueAt : retryFrom + delay;
    Object.assign(delivery, { state: 'waiting', tries, dueAt, reason, token: null });
    return false;
  }

  /** Moves the delivery to the dead-letter queue. Returns false if there is none, or if it is in that queue already. */
  #moveToDeadLetter(delivery: ModelDelivery, tries: number, reason: string | null): boolean {
    const { ns, name } = delivery.element.queue;
    const policy = this.#option(delivery.element.queue, 'deadLetter') ?? null;
    if (policy === null || name === policy.queue) return false;
    const { content, id } = delivery.element;
    const at = new Date(this.now).toISOString();
    const group = delivery.group === '' ? [] : ['x-dl-group', delivery.group];
    const headers = ['x-dl-from-queue', name, ...group, 'x-dl-at', at, 'x-dl-tries', String(tries)];
    if (reason !== null) headers.push('x-dl-reason', reason);
    this.#finish(delivery);
    this.insert(
      { ns, name: policy.queue },
      {
        ...content,
        headers: [...content.headers, ...headers, 'x-ks-origin-id', id ?? ''],
        matureAt: this.now,
        delayMs: 0,
        tries: 0,
        groups: this.#policies.get(ns)?.groups ?? [''],
        dedupKey: null,
      },
    );
    return true;
  }

  #finish(delivery: ModelDelivery): void {
    this.#state.deliveries = this.#state.deliveries.filter((one) => one !== delivery);
  }
}

/** Whether the reference has no token although another user reserved the delivery. */
function isOwnedByAnother({ owner }: ModelDelivery, ref: ModelRef): boolean {
  return ref.token === null && (ref.owner ?? null) !== null && owner !== null && owner !== ref.owner;
}

function newDelivery(element: ModelElement, group: string): ModelDelivery {
  return {
    element,
    group,
    state: 'waiting',
    dueAt: 0,
    tries: 0,
    expiresAt: null,
    reason: null,
    token: null,
    owner: null,
    tid: null,
    reservedAt: 0,
    leaseUntil: 0,
  };
}

function keyOf({ ns, name }: QueueKey): string {
  return `${ns}/${name}`;
}
