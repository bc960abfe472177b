import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { NamespacePolicy } from '../../src/engine/engine.ts';
import type { NewElement } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import type { SessionServer } from '../../src/session/server.ts';
import { toByteString } from '../../src/util/byte-string.ts';
import { Model, type ModelDelivery, type ModelRef } from '../contract/model.ts';
import { plain } from '../support/broker.ts';
import { newElement } from '../support/elements.ts';
import { checkHistories } from '../support/histories.ts';
import type { SessionNode } from '../support/session-node.ts';

// Shared by the model-based tests of STOMP and AMQP: the world and the commands of clients.

const MODEL_POLICIES: readonly NamespacePolicy[] = [
  plain('jobs', { deadLetter: { maxTries: 3, queue: 'dead' } }),
  plain('stream', { groups: ['g1', 'g2'] }),
];
const QUEUES: readonly QueueKey[] = [
  { ns: 'jobs', name: 'a' },
  { ns: 'jobs', name: "b/%'{}" },
  { ns: 'stream', name: 'a' },
];
const DEAD: QueueKey = { ns: 'jobs', name: 'dead' };
export const EVERY_QUEUE: readonly QueueKey[] = [...QUEUES, DEAD];
const DAY_MS = 24 * 3600 * 1000;
/** Turns of the event loop after which the server must be idle. */
export const MAX_TURNS = 5_000;
/** The lease of an element whose consumer keeps renewing it never expires. */
export const UNLIMITED_MS = Number.POSITIVE_INFINITY;
/** Element header that identifies an element before the server returns its id. */
export const NUMBER_HEADER = 'n';

/** Error code on the wire for each rejection of the model. */
export const ERROR_CODES: Readonly<Record<string, string>> = {
  'not-found': 'element-not-found',
  'not-reserved': 'not-reserved',
  'lease-lost': 'lease-lost',
};

export function isRejection(outcome: string): boolean {
  return outcome in ERROR_CODES;
}

/** An insert of a client. */
export interface Sent {
  readonly queue: QueueKey;
  readonly body: string;
  readonly contentType: string | null;
  readonly headers: Readonly<Record<string, string>>;
  readonly tries: number;
  readonly delayMs: number;
  readonly groups: readonly string[];
}

/** What an idle server reports in addition to the sizes of a queue. */
interface Shown {
  readonly waiting: number;
  readonly held: number;
  readonly subscriptions: number;
  readonly sessions: number;
}

/** A server with a session protocol, the model of what it stores, and what each client holds. */
export abstract class SessionWorld<Node extends SessionNode<SessionServer>> {
  protected readonly node: Node;
  protected readonly model: Model;
  protected readonly paused = new Set<QueueKey>();
  protected numbers = 0;

  constructor(node: Node) {
    this.node = node;
    this.model = new Model(MODEL_POLICIES, DAY_MS, node.clock.now());
  }

  /** Destroys the connections of all clients. */
  abstract close(): void;
  abstract send(client: number, sent: Sent): Promise<void>;
  /** The groups under which clients currently consume a queue. */
  protected abstract groups(queue: QueueKey): ReadonlySet<string>;
  /**
   * I3, I4, I5, I8: the first due elements are delivered as inserted, with tries and maturity, each to a consumer
   * with free window. Returns how many were delivered.
   */
  protected abstract receive(queue: QueueKey, group: string): Promise<number>;
  /** What the server must report, according to the model. */
  protected abstract expected(queue: QueueKey): Shown;
  /** Frames that clients received although the model does not predict them. */
  protected abstract unexpected(): string[];

  async pause(queue: QueueKey, paused: boolean): Promise<void> {
    if (paused) this.paused.add(queue);
    else this.paused.delete(queue);
    const real = this.node.queue(queue.name, queue.ns);
    await (paused ? real.pause() : real.resume());
    await this.settle();
  }

  /** Advances time from one event of the model to the next, so that server and model process them in the same order. */
  async passTime(ms: number): Promise<void> {
    const end = this.model.now + ms;
    while (this.model.now < end) {
      const moments = EVERY_QUEUE.flatMap((queue) => this.model.deliveriesOf(queue)).map(
        ({ state, dueAt, leaseUntil }) => (state === 'reserved' ? leaseUntil : dueAt),
      );
      const next = Math.min(end, ...moments.filter((at) => at > this.model.now));
      this.node.clock.advance(next - this.model.now);
      this.model.advanceTo(next);
      await this.settle();
    }
  }

  /** The element for the model and its headers by name, including a unique number. */
  protected numbered(sent: Sent): { element: NewElement; headers: Record<string, string> } {
    const { queue, body, contentType, tries, delayMs, groups } = sent;
    this.numbers += 1;
    const headers = { ...sent.headers, [NUMBER_HEADER]: String(this.numbers) };
    const element = newElement({
      body: Buffer.from(body),
      contentType,
      headers: Object.entries(headers).flatMap(([name, value]) => [name, toByteString(value)]),
      tries,
      delayMs,
      groups: queue.ns === 'stream' ? groups : [''],
    });
    return { element, headers };
  }

  /** Repeats in the model a delivery that a client received. */
  protected taken(queue: QueueKey, group: string, leaseMs: number | null, id: string): ModelDelivery {
    const [delivery] = this.model.take(queue, group, 1, leaseMs);
    assert.ok(delivery !== undefined);
    if (delivery.element.id !== null) assert.equal(id, delivery.element.id);
    delivery.element.id = id;
    if (leaseMs !== null) {
      this.numbers += 1;
      delivery.token = `k${this.numbers}`;
    }
    return delivery;
  }

  /** Delivers everything deliverable in the model, then waits until the server reports the same state. */
  protected async settle(): Promise<void> {
    for (const queue of EVERY_QUEUE) {
      for (const group of this.groups(queue)) {
        // A consumer that replaced another of the same name may free window for one more delivery.
        while ((await this.receive(queue, group)) > 0);
      }
    }
    for (const queue of EVERY_QUEUE) await this.#compare(queue);
  }

  /** I1, I2, I6, I7, I9: an idle server reports the model's sizes, waiting consumers and held deliveries. */
  async #compare(queue: QueueKey): Promise<void> {
    const { ready, scheduled, reserved } = this.model.sizes(queue);
    const { waiting, held, subscriptions, sessions } = this.expected(queue);
    const expected = {
      sizes: { ready, scheduled, reserved },
      waiting,
      held,
      subscriptions,
      sessions,
      unexpected: [],
    };
    let shown: object = {};
    for (let turn = 0; turn < MAX_TURNS; turn += 1) {
      shown = await this.#shown(queue);
      if (JSON.stringify(shown) === JSON.stringify(expected)) return;
      await new Promise(setImmediate);
    }
    assert.deepEqual(shown, expected, `${queue.ns}/${queue.name}`);
  }

  async #shown({ ns, name }: QueueKey): Promise<object> {
    const { unacknowledged, subscriptions, sessions } = this.node.server.counts;
    return {
      sizes: await this.node.sizes(name, ns),
      waiting: this.node.queue(name, ns).consumers().length,
      held: unacknowledged,
      subscriptions,
      sessions,
      unexpected: this.unexpected(),
    };
  }
}

export function numberOf({ element }: ModelDelivery): string | undefined {
  const { headers } = element.content;
  return headers[headers.lastIndexOf(NUMBER_HEADER) + 1];
}

export function refOf(held: {
  readonly id: string;
  readonly delivery: ModelDelivery;
  readonly token: string;
}): ModelRef {
  return { id: held.id, group: held.delivery.group, token: held.token };
}

/** Indexes of clients. */
export const clients = fc.nat({ max: 2 });
const queues = fc.constantFrom(...QUEUES);

/** Queue, group and lease of a consumer. */
export const consumed = {
  queue: fc.oneof({ weight: 5, arbitrary: queues }, { weight: 1, arbitrary: fc.constant(DEAD) }),
  group: fc.constantFrom('g1', 'g2', 'g3'),
  leaseMs: fc.constantFrom(null, null, 1000, 5000),
};

const sent = fc.record({
  queue: queues,
  body: fc.oneof(fc.string({ maxLength: 20 }), fc.constant('x'.repeat(20_000))),
  contentType: fc.constantFrom(null, 'application/json', 'text/plain; charset="x"'),
  headers: fc.constantFrom<Record<string, string>>({}, {}, { a: '1' }, { 'x-b': 'Grüße: ☃' }),
  tries: fc.constantFrom(0, 0, 1, 2),
  delayMs: fc.constantFrom(0, 0, 0, 1000, 5000),
  groups: fc.uniqueArray(fc.constantFrom('g1', 'g2', 'g3'), { minLength: 1 }),
});

export function command<World extends object>(
  name: string,
  run: (world: World) => Promise<void>,
): fc.AsyncCommand<World, World> {
  return { check: () => true, run: (_model, world) => run(world), toString: () => name };
}

/** Commands of clients of both protocols, weighted by repetition. */
export function commonCommands<World extends SessionWorld<SessionNode<SessionServer>>>(): fc.Arbitrary<
  fc.AsyncCommand<World, World>
>[] {
  const sends = fc
    .tuple(clients, sent)
    .map(([client, one]) =>
      command<World>(`send(${client}, ${fc.stringify({ ...one, body: one.body.slice(0, 20) })})`, (world) =>
        world.send(client, one),
      ),
    );
  return [
    ...Array(8).fill(sends),
    fc
      .tuple(queues, fc.boolean())
      .map(([queue, paused]) =>
        command<World>(`${paused ? 'pause' : 'resume'}(${queue.ns}/${queue.name})`, (world) =>
          world.pause(queue, paused),
        ),
      ),
    fc
      .constantFrom(1, 999, 1000, 5000, 60_000)
      .map((ms) => command<World>(`passTime(${ms})`, (world) => world.passTime(ms))),
  ];
}

/** Runs random histories in worlds that each have a node of their own. */
export async function checkSessionModel<
  Node extends SessionNode<SessionServer>,
  World extends SessionWorld<Node>,
>(
  commands: fc.Arbitrary<fc.AsyncCommand<World, World>>[],
  start: (options: { readonly policies: readonly NamespacePolicy[] }) => Promise<Node>,
  worldOf: (node: Node) => World,
): Promise<void> {
  const runs = Number(process.env.MODEL_RUNS ?? 10);
  await checkHistories(commands, { runs, maxCommands: 100 }, async (history) => {
    const node = await start({ policies: MODEL_POLICIES });
    const world = worldOf(node);
    try {
      await fc.asyncModelRun(() => ({ model: world, real: world }), history);
    } finally {
      world.close();
      await node.stop();
    }
  });
}
