import assert from 'node:assert/strict';
import type { NewElement } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import type { ModelDelivery } from '../contract/model.ts';
import {
  ERROR_CODES,
  isRejection,
  MAX_TURNS,
  NUMBER_HEADER,
  numberOf,
  refOf,
  type Sent,
  SessionWorld,
  UNLIMITED_MS,
} from '../session/model-world.ts';
import { type ServerFrame, type StompVersion, show } from './client.ts';
import { type AckMode, type HeldInModel, ModelSession, type SubscriptionInModel } from './model-session.ts';
import type { StompNode } from './node.ts';

/** The server behind STOMP, the model of what it stores, and what each client holds. */
export class StompWorld extends SessionWorld<StompNode> {
  /** By client number. */
  readonly #sessions = new Map<number, ModelSession>();
  readonly #transactions = new Map<ModelSession, Transaction>();

  override close(): void {
    for (const session of this.#sessions.values()) session.close();
  }

  /** SEND, now or within the client's transaction. */
  override async send(client: number, sent: Sent): Promise<void> {
    const session = await this.#session(client);
    const { queue, body, contentType, tries, delayMs } = sent;
    const { element, headers } = this.numbered(sent);
    const transaction = this.#transactions.get(session);
    const refusal = await session.ask(
      'SEND',
      {
        destination: destinationOf(queue),
        'content-type': contentType,
        'x-tries': tries,
        'x-delta-t': delayMs,
        ...(queue.ns === 'stream' && { 'x-ks-groups': sent.groups.join(',') }),
        ...Object.fromEntries(Object.entries(headers).map(([name, value]) => [`x-ks-hdr-${name}`, value])),
        ...(transaction !== undefined && { transaction: transaction.id }),
      },
      body,
    );
    assert.equal(refusal, null);
    if (transaction === undefined) this.model.insert(queue, element);
    else transaction.sends.push({ queue, element });
    await this.settle();
  }

  /** SUBSCRIBE; at most once for each queue and group of a client. */
  async subscribe(client: number, { queue, group: named, mode, window, leaseMs }: Wanted): Promise<void> {
    const session = await this.#session(client);
    const group = queue.ns === 'stream' ? named : '';
    if (session.subscriptions.some((one) => one.queue === queue && one.group === group)) return;
    this.numbers += 1;
    const id = `s${this.numbers}`;
    const lease = mode === 'auto' ? null : leaseMs;
    const refusal = await session.ask('SUBSCRIBE', {
      id,
      destination: destinationOf(queue),
      ack: mode,
      'x-wsize': window,
      'x-lease': lease,
      'x-ks-group': group === '' ? null : group,
    });
    assert.equal(refusal, null);
    session.subscriptions.push({ id, queue, group, mode, window, leaseMs: lease, held: [] });
    await this.settle();
  }

  async unsubscribe(client: number, index: number): Promise<void> {
    const session = await this.#session(client);
    const { subscriptions } = session;
    const [subscription] = subscriptions.splice(index % Math.max(1, subscriptions.length), 1);
    if (subscription === undefined) return;
    assert.equal(await session.ask('UNSUBSCRIBE', { id: subscription.id }), null);
    this.#release(subscription);
    await this.settle();
  }

  /** ACK if `delayMs` is null, else NACK. */
  async settleOne(client: number, index: number, delayMs: number | null): Promise<void> {
    const session = await this.#session(client);
    const choices = session.subscriptions.flatMap((subscription) =>
      subscription.held.filter(({ isClaimed }) => !isClaimed).map((held) => ({ subscription, held })),
    );
    const chosen = choices[index % Math.max(1, choices.length)];
    if (chosen === undefined) return;
    const { subscription } = chosen;
    const held = settledBy(subscription, chosen.held);
    const transaction = this.#transactions.get(session);
    const refusal = await session.ask(delayMs === null ? 'ACK' : 'NACK', {
      ...session.idHeaders(subscription, chosen.held),
      ...(delayMs !== null && { 'x-delta-t': delayMs }),
      ...(transaction !== undefined && { transaction: transaction.id }),
    });
    if (transaction === undefined) {
      const rejection = this.#apply({ subscription, held, delayMs }).find(isRejection) ?? null;
      if (rejection !== null) this.#takeInVain(subscription);
      await this.#expect(session, refusal, rejection);
    } else {
      assert.equal(refusal, null);
      for (const one of held) one.isClaimed = true;
      transaction.settlements.push({ subscription, held, delayMs });
    }
    await this.settle();
  }

  /** Acknowledges a message that the client does not hold, which ends the session. */
  async settleWrong(client: number): Promise<void> {
    const session = await this.#session(client);
    const [subscription] = session.subscriptions;
    if (subscription === undefined) return;
    const wrong = { key: '1-none' } as HeldInModel;
    await this.#expect(
      session,
      await session.ask('ACK', session.idHeaders(subscription, wrong)),
      'not-found',
    );
    await this.settle();
  }

  async begin(client: number): Promise<void> {
    const session = await this.#session(client);
    if (this.#transactions.has(session)) return;
    this.numbers += 1;
    const id = `t${this.numbers}`;
    assert.equal(await session.ask('BEGIN', { transaction: id }), null);
    this.#transactions.set(session, { id, sends: [], settlements: [] });
  }

  async end(client: number, verb: 'COMMIT' | 'ABORT'): Promise<void> {
    const session = await this.#session(client);
    const transaction = this.#transactions.get(session);
    if (transaction === undefined) return;
    this.#transactions.delete(session);
    const refusal = await session.ask(verb, { transaction: transaction.id });
    if (verb === 'COMMIT') await this.#expect(session, refusal, this.#commit(transaction));
    else {
      assert.equal(refusal, null);
      for (const { held } of transaction.settlements) for (const one of held) one.isClaimed = false;
    }
    await this.settle();
  }

  /** The client sends DISCONNECT if `isPolite`, else its connection is reset. */
  async leave(client: number, isPolite: boolean): Promise<void> {
    const session = this.#sessions.get(client);
    if (session === undefined) return;
    if (isPolite) assert.equal(await session.ask('DISCONNECT', {}), null);
    else await session.vanish();
    this.#forget(session);
    await this.settle();
  }

  async #session(client: number): Promise<ModelSession> {
    const known = this.#sessions.get(client);
    if (known !== undefined) return known;
    const version: StompVersion = client % 2 === 0 ? '1.2' : '1.1';
    const session = await ModelSession.open(this.node.port, version);
    this.#sessions.set(client, session);
    return session;
  }

  /** Checks that the session continued, or ended with the ERROR of the model's outcome. */
  async #expect(session: ModelSession, refusal: string | null, outcome: string | null): Promise<void> {
    assert.equal(refusal, outcome === null ? null : ERROR_CODES[outcome]);
    if (outcome !== null) this.#forget(session);
  }

  #forget(session: ModelSession): void {
    for (const [client, one] of this.#sessions) if (one === session) this.#sessions.delete(client);
    this.#transactions.delete(session);
    for (const subscription of session.subscriptions) this.#release(subscription);
  }

  #release({ queue, held }: SubscriptionInModel): void {
    for (const one of held) this.model.rollback(queue, refOf(one), 0, true);
  }

  #apply({ subscription, held, delayMs }: Settlement): string[] {
    subscription.held = subscription.held.filter((one) => !held.includes(one));
    const { queue } = subscription;
    return held.map((one) =>
      delayMs === null
        ? this.model.commit(queue, refOf(one))
        : this.model.rollback(queue, refOf(one), delayMs, true),
    );
  }

  /** Applies all of the transaction or nothing. Returns the outcome that prevented it, or null. */
  #commit({ sends, settlements }: Transaction): string | null {
    const all = settlements.flatMap(({ subscription, held }) => held.map((one) => ({ subscription, one })));
    const lost = all
      .map(({ subscription, one }) =>
        this.model.extend(subscription.queue, refOf(one), subscription.leaseMs ?? UNLIMITED_MS),
      )
      .find(isRejection);
    if (lost !== undefined) {
      for (const { subscription, one } of all) {
        subscription.held = subscription.held.filter((other) => other !== one);
        this.model.rollback(subscription.queue, refOf(one), 0, true);
      }
      return lost;
    }
    for (const settlement of settlements) if (settlement.delayMs === null) this.#apply(settlement);
    for (const { queue, element } of sends) this.model.insert(queue, element);
    for (const settlement of settlements) if (settlement.delayMs !== null) this.#apply(settlement);
    return null;
  }

  /**
   * The server refills the window in the batch that settles. If a rejection then ends the session, what was taken returns
   * undelivered, and an earlier holder whose lease has expired can no longer settle it.
   */
  #takeInVain(subscription: SubscriptionInModel): void {
    const { queue, group, leaseMs } = subscription;
    if (this.paused.has(queue)) return;
    const taken = this.model.take(queue, group, capacityOf(subscription), leaseMs ?? UNLIMITED_MS);
    for (const delivery of taken) Object.assign(delivery, { state: 'waiting', token: null });
  }

  #subscriptionsOf(queue: QueueKey): { session: ModelSession; subscription: SubscriptionInModel }[] {
    return [...this.#sessions.values()].flatMap((session) =>
      session.subscriptions
        .filter((subscription) => subscription.queue === queue)
        .map((subscription) => ({ session, subscription })),
    );
  }

  protected override groups(queue: QueueKey): ReadonlySet<string> {
    return new Set(this.#subscriptionsOf(queue).map(({ subscription }) => subscription.group));
  }

  protected override async receive(queue: QueueKey, group: string): Promise<number> {
    const readers = this.#subscriptionsOf(queue).filter(({ subscription }) => subscription.group === group);
    const capacity = readers.reduce((sum, { subscription }) => sum + capacityOf(subscription), 0);
    const due = this.paused.has(queue) ? [] : this.model.browse(queue, group, 'ready').slice(0, capacity);
    const readersById = new Map(readers.map((reader) => [reader.subscription.id, reader]));
    const arrived = (): ServerFrame[] =>
      readers.flatMap(({ session, subscription }) =>
        session.inbox.filter(({ headers }) => headers.get('subscription') === subscription.id),
      );
    for (let turn = 0; turn < MAX_TURNS && arrived().length < due.length; turn += 1) {
      await new Promise(setImmediate);
    }
    const frames = new Map(arrived().map((frame) => [frame.headers.get(`x-ks-hdr-${NUMBER_HEADER}`), frame]));
    for (const expected of due) {
      const frame = frames.get(numberOf(expected));
      const reader = readersById.get(frame?.headers.get('subscription') ?? '');
      assert.ok(frame !== undefined && reader !== undefined, `number ${numberOf(expected)} never came`);
      this.#deliver(reader.session, reader.subscription, frame);
    }
    return due.length;
  }

  #deliver(session: ModelSession, subscription: SubscriptionInModel, frame: ServerFrame): void {
    const { queue, group, mode, leaseMs } = subscription;
    session.inbox = session.inbox.filter((one) => one !== frame);
    const id = frame.headers.get('message-id') ?? '';
    const delivery = this.taken(queue, group, mode === 'auto' ? null : (leaseMs ?? UNLIMITED_MS), id);
    checkFrame(delivery, frame);
    if (mode === 'auto') return;
    const key = session.keyOf(frame);
    const held = {
      key,
      delivery,
      id,
      token: delivery.token ?? '',
      arrival: session.arrivalOf(frame),
      isClaimed: false,
    };
    // A redelivered element replaces the one whose lease expired.
    subscription.held = [...subscription.held.filter((one) => one.id !== id), held];
    // Within a COMMIT, the server may deliver new elements before those that a NACK returned.
    subscription.held.sort((a, b) => a.arrival - b.arrival);
    assert.ok(subscription.held.length <= subscription.window, 'the window is kept');
  }

  protected override expected(queue: QueueKey) {
    const readers = this.#subscriptionsOf(queue).map(({ subscription }) => subscription);
    const all = [...this.#sessions.values()].flatMap(({ subscriptions }) => subscriptions);
    return {
      waiting: readers.filter((subscription) => capacityOf(subscription) > 0).length,
      held: all.reduce((sum, { held }) => sum + held.length, 0),
      subscriptions: all.length,
      sessions: this.#sessions.size,
    };
  }

  protected override unexpected(): string[] {
    return [...this.#sessions.values()].flatMap(({ inbox }) => inbox.map(show));
  }
}

interface Wanted {
  readonly queue: QueueKey;
  readonly group: string;
  readonly mode: AckMode;
  readonly window: number;
  readonly leaseMs: number | null;
}

interface Settlement {
  readonly subscription: SubscriptionInModel;
  readonly held: readonly HeldInModel[];
  /** Null: an ACK. */
  readonly delayMs: number | null;
}

interface Transaction {
  readonly id: string;
  readonly sends: { readonly queue: QueueKey; readonly element: NewElement }[];
  readonly settlements: Settlement[];
}

function capacityOf({ mode, window, held }: SubscriptionInModel): number {
  return mode === 'auto' ? Number.MAX_SAFE_INTEGER : window - held.length;
}

/** The messages that an ACK or NACK of `named` settles. */
function settledBy({ mode, held }: SubscriptionInModel, named: HeldInModel): HeldInModel[] {
  if (mode !== 'client') return [named];
  return held.slice(0, held.indexOf(named) + 1).filter(({ isClaimed }) => !isClaimed);
}

function destinationOf({ ns, name }: QueueKey): string {
  return `/q/${encodeURIComponent(ns)}/${encodeURIComponent(name)}`;
}

function checkFrame({ element, tries, dueAt }: ModelDelivery, frame: ServerFrame): void {
  const { body, contentType, headers } = element.content;
  assert.ok(frame.body.equals(body), show(frame));
  assert.equal(frame.headers.get('content-type') ?? null, contentType);
  assert.equal(frame.headers.get('x-tries'), String(tries));
  assert.equal(Date.parse(frame.headers.get('x-mature') ?? ''), dueAt);
  for (let at = 0; at < headers.length; at += 2) {
    const value = frame.headers.get(`x-ks-hdr-${headers[at]}`);
    if (headers[at] === 'x-dl-at') continue;
    assert.equal(value, Buffer.from(headers[at + 1] ?? '', 'latin1').toString());
  }
}
