import assert from 'node:assert/strict';
import type { NamespacePolicy } from '../../src/engine/engine.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { bytesOfText } from '../../src/util/byte-text.ts';
import { Model } from '../contract/model.ts';
import { newElement } from '../support/elements.ts';
import { type ServerFrame, type StompVersion, show } from './client.ts';
import {
  CODES,
  checkFrame,
  destinationOf,
  isRefusal,
  NUMBER,
  numberOf,
  refOf,
  roomOf,
  type Sent,
  type Settlement,
  selected,
  type Transaction,
  type Wanted,
} from './model-parts.ts';
import { type HeldInModel, ModelSession, type SubscriptionInModel } from './model-session.ts';
import type { StompNode } from './node.ts';

export const QUEUES: readonly QueueKey[] = [
  { ns: 'jobs', name: 'a' },
  { ns: 'jobs', name: "b/%'{}" },
  { ns: 'stream', name: 'a' },
];
export const DEAD: QueueKey = { ns: 'jobs', name: 'dead' };
const EVERY_QUEUE = [...QUEUES, DEAD];
const DAY_MS = 24 * 3600 * 1000;
/** Turns of the event loop after which the server must have come to rest. */
const PATIENCE = 5_000;
/** What a session keeps by extending it again and again does not end by itself. */
const KEPT_MS = Number.POSITIVE_INFINITY;

/** The server behind STOMP, the model of what it stores, and what each client holds. */
export class StompWorld {
  readonly #node: StompNode;
  readonly #model: Model;
  readonly #paused = new Set<QueueKey>();
  /** By number of the client. */
  readonly #sessions = new Map<number, ModelSession>();
  readonly #transactions = new Map<ModelSession, Transaction>();
  #numbers = 0;

  constructor(node: StompNode, policies: readonly NamespacePolicy[]) {
    this.#node = node;
    this.#model = new Model(policies, DAY_MS, node.clock.now());
  }

  close(): void {
    for (const session of this.#sessions.values()) session.close();
  }

  /** SEND, now or within the client's transaction. */
  async send(client: number, sent: Sent): Promise<void> {
    const session = await this.#session(client);
    this.#numbers += 1;
    const { queue, body, contentType, tries, delayMs } = sent;
    const isStream = queue.ns === 'stream';
    const headers = { ...sent.headers, [NUMBER]: String(this.#numbers) };
    const element = newElement({
      body: Buffer.from(body),
      contentType,
      headers: Object.entries(headers).flatMap(([name, value]) => [name, bytesOfText(value)]),
      tries,
      delayMs,
      groups: isStream ? sent.groups : [''],
    });
    const transaction = this.#transactions.get(session);
    const refusal = await session.ask(
      'SEND',
      {
        destination: destinationOf(queue),
        'content-type': contentType,
        'x-tries': tries,
        'x-delta-t': delayMs,
        ...(isStream && { 'x-ks-groups': sent.groups.join(',') }),
        ...Object.fromEntries(Object.entries(headers).map(([name, value]) => [`x-ks-hdr-${name}`, value])),
        ...(transaction !== undefined && { transaction: transaction.id }),
      },
      body,
    );
    assert.equal(refusal, null);
    if (transaction === undefined) this.#model.insert(queue, element);
    else transaction.sends.push({ queue, element });
    await this.#settle();
  }

  /** SUBSCRIBE; at most once for each queue and group of a client. */
  async subscribe(client: number, { queue, group: named, mode, window, leaseMs }: Wanted): Promise<void> {
    const session = await this.#session(client);
    const group = queue.ns === 'stream' ? named : '';
    if (session.subscriptions.some((one) => one.queue === queue && one.group === group)) return;
    this.#numbers += 1;
    const id = `s${this.#numbers}`;
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
    await this.#settle();
  }

  async unsubscribe(client: number, index: number): Promise<void> {
    const session = await this.#session(client);
    const { subscriptions } = session;
    const [subscription] = subscriptions.splice(index % Math.max(1, subscriptions.length), 1);
    if (subscription === undefined) return;
    assert.equal(await session.ask('UNSUBSCRIBE', { id: subscription.id }), null);
    this.#release(subscription);
    await this.#settle();
  }

  /** ACK, or NACK where there is a delay. */
  async settleOne(client: number, index: number, delayMs: number | null): Promise<void> {
    const session = await this.#session(client);
    const choices = session.subscriptions.flatMap((subscription) =>
      subscription.held.filter(({ isClaimed }) => !isClaimed).map((held) => ({ subscription, held })),
    );
    const chosen = choices[index % Math.max(1, choices.length)];
    if (chosen === undefined) return;
    const { subscription } = chosen;
    const held = selected(subscription, chosen.held);
    const transaction = this.#transactions.get(session);
    const refusal = await session.ask(delayMs === null ? 'ACK' : 'NACK', {
      ...session.names(subscription, chosen.held),
      ...(delayMs !== null && { 'x-delta-t': delayMs }),
      ...(transaction !== undefined && { transaction: transaction.id }),
    });
    if (transaction === undefined) {
      const outcomes = this.#carryOut({ subscription, held, delayMs });
      await this.#expect(session, refusal, outcomes.find(isRefusal) ?? null);
    } else {
      assert.equal(refusal, null);
      for (const one of held) one.isClaimed = true;
      transaction.settlements.push({ subscription, held, delayMs });
    }
    await this.#settle();
  }

  /** Names a message that the client does not hold: the session ends. */
  async settleWrong(client: number): Promise<void> {
    const session = await this.#session(client);
    const [subscription] = session.subscriptions;
    if (subscription === undefined) return;
    const wrong = { key: '1-none' } as HeldInModel;
    await this.#expect(session, await session.ask('ACK', session.names(subscription, wrong)), 'not-found');
    await this.#settle();
  }

  async begin(client: number): Promise<void> {
    const session = await this.#session(client);
    if (this.#transactions.has(session)) return;
    this.#numbers += 1;
    const id = `t${this.#numbers}`;
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
    await this.#settle();
  }

  /** The client's connection is cut, or it says DISCONNECT. */
  async leave(client: number, isPolite: boolean): Promise<void> {
    const session = this.#sessions.get(client);
    if (session === undefined) return;
    if (isPolite) assert.equal(await session.ask('DISCONNECT', {}), null);
    else await session.vanish();
    this.#ended(session);
    await this.#settle();
  }

  async pause(queue: QueueKey, paused: boolean): Promise<void> {
    if (paused) this.#paused.add(queue);
    else this.#paused.delete(queue);
    const real = this.#node.queue(queue.name, queue.ns);
    await (paused ? real.pause() : real.resume());
    await this.#settle();
  }

  /** Time passes from one event of the model to the next, so that both see them in the same order. */
  async passTime(ms: number): Promise<void> {
    const end = this.#model.now + ms;
    while (this.#model.now < end) {
      const moments = EVERY_QUEUE.flatMap((queue) => this.#model.of(queue)).map(
        ({ state, dueAt, leaseUntil }) => (state === 'reserved' ? leaseUntil : dueAt),
      );
      const next = Math.min(end, ...moments.filter((at) => at > this.#model.now));
      this.#node.clock.advance(next - this.#model.now);
      this.#model.reach(next);
      await this.#settle();
    }
  }

  async #session(client: number): Promise<ModelSession> {
    const known = this.#sessions.get(client);
    if (known !== undefined) return known;
    const version: StompVersion = client % 2 === 0 ? '1.2' : '1.1';
    const session = await ModelSession.open(this.#node.port, version);
    this.#sessions.set(client, session);
    return session;
  }

  /** The session went on, or ended with the ERROR that the model's refusal stands for. */
  async #expect(session: ModelSession, refusal: string | null, outcome: string | null): Promise<void> {
    assert.equal(refusal, outcome === null ? null : CODES[outcome]);
    if (outcome !== null) this.#ended(session);
  }

  #ended(session: ModelSession): void {
    for (const [client, one] of this.#sessions) if (one === session) this.#sessions.delete(client);
    this.#transactions.delete(session);
    for (const subscription of session.subscriptions) this.#release(subscription);
  }

  #release({ queue, held }: SubscriptionInModel): void {
    for (const one of held) this.#model.rollback(queue, refOf(one), 0, true);
  }

  #carryOut({ subscription, held, delayMs }: Settlement): string[] {
    subscription.held = subscription.held.filter((one) => !held.includes(one));
    const { queue } = subscription;
    return held.map((one) =>
      delayMs === null
        ? this.#model.commit(queue, refOf(one))
        : this.#model.rollback(queue, refOf(one), delayMs, true),
    );
  }

  /** All or nothing. Answers why nothing, or null. */
  #commit({ sends, settlements }: Transaction): string | null {
    const all = settlements.flatMap(({ subscription, held }) => held.map((one) => ({ subscription, one })));
    const lost = all
      .map(({ subscription, one }) =>
        this.#model.extend(subscription.queue, refOf(one), subscription.leaseMs ?? KEPT_MS),
      )
      .find(isRefusal);
    if (lost !== undefined) {
      for (const { subscription, one } of all) {
        subscription.held = subscription.held.filter((other) => other !== one);
        this.#model.rollback(subscription.queue, refOf(one), 0, true);
      }
      return lost;
    }
    for (const settlement of settlements) if (settlement.delayMs === null) this.#carryOut(settlement);
    for (const { queue, element } of sends) this.#model.insert(queue, element);
    for (const settlement of settlements) if (settlement.delayMs !== null) this.#carryOut(settlement);
    return null;
  }

  /** Hands out in the model what can be handed out, and waits until the server has done, and shows, the same. */
  async #settle(): Promise<void> {
    for (const queue of EVERY_QUEUE) {
      for (const group of new Set(this.#of(queue).map(({ subscription }) => subscription.group))) {
        // One that takes the place of another under the same name leaves room for one more.
        while ((await this.#receive(queue, group)) > 0);
      }
    }
    for (const queue of EVERY_QUEUE) await this.#compare(queue);
  }

  #of(queue: QueueKey): { session: ModelSession; subscription: SubscriptionInModel }[] {
    return [...this.#sessions.values()].flatMap((session) =>
      session.subscriptions
        .filter((subscription) => subscription.queue === queue)
        .map((subscription) => ({ session, subscription })),
    );
  }

  /**
   * I3, I4, I5, I8: the first that are due, each to somebody with room, as inserted, with tries and maturity.
   * Answers how many that were.
   */
  async #receive(queue: QueueKey, group: string): Promise<number> {
    const readers = this.#of(queue).filter(({ subscription }) => subscription.group === group);
    const room = readers.reduce((sum, { subscription }) => sum + roomOf(subscription), 0);
    const due = this.#paused.has(queue) ? [] : this.#model.browse(queue, group, 'ready').slice(0, room);
    const here = new Map(readers.map((reader) => [reader.subscription.id, reader]));
    const come = (): ServerFrame[] =>
      readers.flatMap(({ session, subscription }) =>
        session.inbox.filter(({ headers }) => headers.get('subscription') === subscription.id),
      );
    for (let turn = 0; turn < PATIENCE && come().length < due.length; turn += 1) {
      await new Promise(setImmediate);
    }
    const frames = new Map(come().map((frame) => [frame.headers.get(`x-ks-hdr-${NUMBER}`), frame]));
    for (const expected of due) {
      const frame = frames.get(numberOf(expected));
      const reader = here.get(frame?.headers.get('subscription') ?? '');
      assert.ok(frame !== undefined && reader !== undefined, `number ${numberOf(expected)} never came`);
      this.#hand(reader.session, reader.subscription, frame);
    }
    return due.length;
  }

  #hand(session: ModelSession, subscription: SubscriptionInModel, frame: ServerFrame): void {
    const { queue, group, mode, leaseMs } = subscription;
    session.inbox = session.inbox.filter((one) => one !== frame);
    const [delivery] = this.#model.take(queue, group, 1, mode === 'auto' ? null : (leaseMs ?? KEPT_MS));
    assert.ok(delivery !== undefined);
    checkFrame(delivery, frame);
    const id = frame.headers.get('message-id') ?? '';
    if (delivery.element.id !== null) assert.equal(id, delivery.element.id);
    delivery.element.id = id;
    if (mode === 'auto') return;
    this.#numbers += 1;
    delivery.token = `k${this.#numbers}`;
    const key = session.keyOf(frame);
    const held = {
      key,
      delivery,
      id,
      token: delivery.token,
      arrival: session.arrivalOf(frame),
      isClaimed: false,
    };
    // An element that comes again takes the place of the one whose lease ran out.
    subscription.held = [...subscription.held.filter((one) => one.id !== id), held];
    // Within a COMMIT the server may hand out what was sent before what a NACK gave back.
    subscription.held.sort((a, b) => a.arrival - b.arrival);
    assert.ok(subscription.held.length <= subscription.window, 'the window is kept');
  }

  /** I1, I2, I6, I7, I9: sizes, waiting consumers and what is held are the model's, once the server is at rest. */
  async #compare(queue: QueueKey): Promise<void> {
    const { ready, scheduled, reserved } = this.#model.sizes(queue);
    const readers = this.#of(queue).map(({ subscription }) => subscription);
    const all = [...this.#sessions.values()].flatMap(({ subscriptions }) => subscriptions);
    const expected = {
      sizes: { ready, scheduled, reserved },
      waiting: readers.filter((subscription) => roomOf(subscription) > 0).length,
      held: all.reduce((sum, { held }) => sum + held.length, 0),
      subscriptions: all.length,
      sessions: this.#sessions.size,
      unexpected: [],
    };
    let shown: object = {};
    for (let turn = 0; turn < PATIENCE; turn += 1) {
      shown = await this.#shown(queue);
      if (JSON.stringify(shown) === JSON.stringify(expected)) return;
      await new Promise(setImmediate);
    }
    assert.deepEqual(shown, expected, `${queue.ns}/${queue.name}`);
  }

  async #shown({ ns, name }: QueueKey): Promise<object> {
    const { unacknowledged, subscriptions, sessions } = this.#node.server.counts;
    return {
      sizes: await this.#node.sizes(name, ns),
      waiting: this.#node.queue(name, ns).consumers().length,
      held: unacknowledged,
      subscriptions,
      sessions,
      unexpected: [...this.#sessions.values()].flatMap(({ inbox }) => inbox.map(show)),
    };
  }
}
