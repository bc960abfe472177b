import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { NamespacePolicy } from '../../src/engine/engine.ts';
import type { SettleOutcome } from '../../src/engine/storage.ts';
import { contentFingerprint } from '../../src/model/fingerprint.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { Model, type ModelDelivery } from '../contract/model.ts';
import { newElement } from '../support/elements.ts';
import { type Answer, elementHeadersOf, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import type { Harness } from './harness.ts';

const QUEUES: readonly QueueKey[] = [
  { ns: 'jobs', name: 'a' },
  { ns: 'jobs', name: "b/%'{}" },
  { ns: 'stream', name: 'a' },
];
const DEAD: QueueKey = { ns: 'jobs', name: 'dead' };
const EVERY_QUEUE = [...QUEUES, DEAD];
const DAY_MS = 24 * 3600 * 1000;
/** Turns of the event loop after which the server must be idle. */
const MAX_TURNS = 5_000;

/** A get that waits both in the model and at the server. */
interface Waiting {
  readonly tid: string;
  readonly queue: QueueKey;
  readonly group: string;
  readonly leaseMs: number | null;
  readonly endsAt: number | null;
  readonly answer: Promise<Answer>;
  readonly leave: AbortController;
}

interface KnownRef {
  readonly queue: QueueKey;
  readonly id: string;
  readonly group: string;
  readonly token: string | null;
}

/** The server, the model of what it stores, and the waiting gets in order. */
export class HttpWorld {
  readonly #harness: Harness;
  readonly #client: QueueClient;
  readonly #model: Model;
  readonly #paused = new Set<QueueKey>();
  #waiting: Waiting[] = [];
  #refs: KnownRef[] = [];
  #tids = 0;

  constructor(harness: Harness, policies: readonly NamespacePolicy[]) {
    this.#harness = harness;
    this.#client = harness.client();
    this.#model = new Model(policies, DAY_MS, harness.opened.now());
  }

  close(): void {
    for (const { leave } of this.#waiting) leave.abort();
  }

  async insert(queue: QueueKey, given: Inserted): Promise<void> {
    const { body, contentType, headers, tries, delayS, groups, key } = given;
    const isStream = queue.ns === 'stream';
    const element = newElement({
      body: Buffer.from(body),
      contentType,
      headers: Object.entries(headers).flat(),
      tries,
      delayMs: delayS * 1000,
      dedupKey: key,
      groups: isStream ? groups : [''],
    });
    const keyed = { ...element, fingerprint: contentFingerprint(element) };
    const repeat = this.#model.repeatOf(queue, keyed);
    const stored = this.#model.insert(queue, keyed);
    const answer = await this.#client.insert(queue.ns, queue.name, Buffer.from(body), {
      tries,
      delay: delayS,
      ...(contentType !== null && { contentType }),
      ...(isStream && { groups: groups.join(',') }),
      headers: {
        ...Object.fromEntries(Object.entries(headers).map(([name, value]) => [`x-ks-hdr-${name}`, value])),
        ...(key !== null && { 'idempotency-key': key }),
      },
    });
    if (repeat?.isSame === false) {
      assert.equal(answer.status, 422, 'a repeat with other content');
      return;
    }
    assert.equal(answer.status, 200);
    assert.equal(answer.headers['x-ks-repeated'], repeat === null ? undefined : 'true');
    const { id } = jsonOf<{ id: string }>(answer);
    if (stored.id !== null) assert.equal(id, stored.id, 'a repeat returns the first id');
    stored.id = id;
    for (const group of element.groups) this.#refs.push({ queue, id, group, token: null });
    await this.#settle();
  }

  /** A get that is answered at once or waits. */
  async get(
    queue: QueueKey,
    named: string,
    { leaseMs, toMs }: { leaseMs: number | null; toMs: number | null },
  ): Promise<void> {
    this.#tids += 1;
    const group = queue.ns === 'stream' ? named : '';
    const leave = new AbortController();
    const options = {
      tid: `t${this.#tids}`,
      signal: leave.signal,
      ...(toMs !== null && { to: toMs }),
      ...(group !== '' && { group }),
    };
    const { ns, name } = queue;
    const answer =
      leaseMs === null
        ? this.#client.get(ns, name, options)
        : this.#client.reserve(ns, name, { ...options, lease: leaseMs });
    answer.catch(() => {});
    const endsAt = toMs === null ? null : this.#model.now + toMs;
    this.#waiting.push({ tid: options.tid, queue, group, leaseMs, endsAt, answer, leave });
    await this.#settle();
  }

  async settleOne(verb: 'commit' | 'rollback' | 'extend', spec: RefSpec, ms: number): Promise<void> {
    const { queue, id, group, token } = this.#resolve(spec);
    const ref = { id, group, token };
    const outcome: SettleOutcome =
      verb === 'commit'
        ? this.#model.commit(queue, ref)
        : verb === 'rollback'
          ? this.#model.rollback(queue, ref, ms, true)
          : this.#model.extend(queue, ref, Math.max(1, ms));
    const options = { ...(token !== null && { token }), ...(group !== '' && { group }) };
    const answer = await (verb === 'commit'
      ? this.#client.commit(queue.ns, queue.name, id, options)
      : verb === 'rollback'
        ? this.#client.rollback(queue.ns, queue.name, id, { ...options, delay: ms })
        : this.#client.extend(queue.ns, queue.name, id, { ...options, lease: Math.max(1, ms) }));
    assert.equal(answer.status, STATUS[outcome], `${verb} ${outcome}: ${answer.body}`);
    if (verb === 'commit' && answer.status === 200) assert.equal(answer.body.toString(), '{}');
    await this.#settle();
  }

  async remove(spec: RefSpec): Promise<void> {
    const { queue, id } = this.#resolve(spec);
    const answer = await this.#client.remove(queue.ns, queue.name, id);
    if (queue.ns === 'stream') assert.equal(answer.status, 405);
    else {
      const outcome = this.#model.remove(queue, id);
      assert.equal(answer.status, outcome === 'done' ? 204 : STATUS[outcome]);
    }
    await this.#settle();
  }

  async pause(queue: QueueKey, paused: boolean): Promise<void> {
    if (paused) this.#paused.add(queue);
    else this.#paused.delete(queue);
    const { ns, name } = queue;
    const answer = await (paused ? this.#client.pause(ns, name) : this.#client.resume(ns, name));
    assert.equal(answer.status, 201);
    await this.#settle();
  }

  /** Cancels a waiting get or, if there is none, an unknown tid, which is not an error. */
  async cancel(index: number): Promise<void> {
    const who = this.#waiting[index % Math.max(1, this.#waiting.length)];
    const queue = who?.queue ?? EVERY_QUEUE[0] ?? DEAD;
    this.#waiting = this.#waiting.filter((other) => other !== who);
    const answer = await this.#client.cancel(queue.ns, queue.name, who?.tid ?? 'nobody');
    assert.deepEqual([answer.status, answer.body.length], [200, 0]);
    if (who !== undefined) assert.equal((await who.answer).status, 410);
    await this.#settle();
  }

  /** A waiting client disconnects; it must take nothing. */
  async vanish(index: number): Promise<void> {
    const who = this.#waiting[index % Math.max(1, this.#waiting.length)];
    if (who === undefined) return;
    this.#waiting = this.#waiting.filter((other) => other !== who);
    who.leave.abort();
    await assert.rejects(who.answer);
    await this.#settle();
  }

  async leaveAll(): Promise<void> {
    while (this.#waiting.length > 0) await this.cancel(0);
  }

  /** Advances time from one event of the model to the next, so that server and model process them in the same order. */
  async passTime(ms: number): Promise<void> {
    const end = this.#model.now + ms;
    while (this.#model.now < end) {
      const next = Math.min(end, ...this.#moments().filter((at) => at > this.#model.now));
      await this.#harness.passTime(next - this.#model.now);
      this.#model.advanceTo(next);
      await this.#settle();
    }
  }

  /** When leases end, elements mature and gets time out. */
  #moments(): number[] {
    const deliveries = EVERY_QUEUE.flatMap((queue) => this.#model.deliveriesOf(queue));
    return [
      ...deliveries.map(({ state, dueAt, leaseUntil }) => (state === 'reserved' ? leaseUntil : dueAt)),
      ...this.#waiting.flatMap(({ endsAt }) => endsAt ?? []),
    ];
  }

  /**
   * Serves every consumer in the model that can be served, then waits until the server reports the same state.
   */
  async #settle(): Promise<void> {
    for (const who of [...this.#waiting]) {
      const { queue, group, leaseMs, endsAt } = who;
      const [delivery] = this.#paused.has(queue) ? [] : this.#model.take(queue, group, 1, leaseMs);
      if (delivery === undefined && (endsAt === null || endsAt > this.#model.now)) continue;
      this.#waiting = this.#waiting.filter((other) => other !== who);
      const answer = await who.answer;
      if (delivery === undefined) assert.equal(answer.status, 504);
      else this.#check(who, delivery, answer);
    }
    for (const queue of EVERY_QUEUE) await this.#compare(queue);
  }

  /** I3, I4, I5, I8: the right element, as it was inserted, with its tries and maturity. */
  #check({ queue, group, leaseMs }: Waiting, delivery: ModelDelivery, answer: Answer): void {
    const { element, tries, dueAt } = delivery;
    assert.equal(answer.status, 200);
    assert.ok(answer.body.equals(element.content.body));
    assert.equal(headerOf(answer, 'content-type'), element.content.contentType ?? 'application/octet-stream');
    assert.deepEqual([...elementHeadersOf(answer)].flat(), [...element.content.headers]);
    assert.equal(headerOf(answer, 'x-ks-tries'), String(tries));
    assert.equal(Date.parse(headerOf(answer, 'x-ks-mature')), dueAt);
    const id = headerOf(answer, 'x-ks-id');
    if (element.id !== null) assert.equal(id, element.id);
    element.id = id;
    const token = leaseMs === null ? null : headerOf(answer, 'x-ks-lease');
    if (token !== null) delivery.token = token;
    this.#refs.push({ queue, id, group, token });
  }

  /** I1, I2, I6, I7, I9: an idle server reports the model's status and consumers. */
  async #compare(queue: QueueKey): Promise<void> {
    const { ready, scheduled, reserved, nextMatureAt } = this.#model.sizes(queue);
    const expected = {
      size: ready,
      schedSize: scheduled,
      resvSize: reserved,
      totalSize: ready + scheduled + reserved,
      next_mature_t: nextMatureAt === null ? null : new Date(nextMatureAt).toISOString(),
      paused: this.#paused.has(queue),
      waiting: this.#waiting.filter((who) => who.queue === queue).map(({ tid }) => tid),
    };
    let shown: object = {};
    for (let turn = 0; turn < MAX_TURNS; turn += 1) {
      shown = await this.#shown(queue);
      if (JSON.stringify(shown) === JSON.stringify(expected)) return;
      await new Promise(setImmediate);
    }
    assert.deepEqual(shown, expected, `${queue.ns}/${queue.name}`);
  }

  async #shown(queue: QueueKey): Promise<object> {
    const status = jsonOf<Record<string, unknown>>(await this.#client.status(queue.ns, queue.name));
    const waiting = jsonOf<{ tid: string }[]>(await this.#client.consumers(queue.ns, queue.name));
    const { size, schedSize, resvSize, totalSize, next_mature_t, paused } = status;
    return {
      size,
      schedSize,
      resvSize,
      totalSize,
      next_mature_t,
      paused,
      waiting: waiting.map(({ tid }) => tid),
    };
  }

  #resolve({ back, token, wrong }: RefSpec): KnownRef {
    const known = this.#refs.at(-1 - back) ?? {
      queue: QUEUES[0] ?? DEAD,
      id: 'none',
      group: '',
      token: null,
    };
    const other = QUEUES[(QUEUES.indexOf(known.queue) + 1) % 2] ?? known.queue;
    return {
      queue: wrong === 'queue' ? other : known.queue,
      id: wrong === 'id' ? `${known.id}0` : known.id,
      group: wrong === 'group' ? 'other' : wrong === 'queue' ? '' : known.group,
      token: wrong === 'token' ? 'zzz' : token ? known.token : null,
    };
  }
}

const STATUS: Readonly<Record<SettleOutcome, number>> = {
  done: 200,
  'dead-lettered': 200,
  'not-found': 404,
  'not-reserved': 404,
  'lease-lost': 409,
  'token-required': 409,
  reserved: 409,
};

const inserted = fc.record({
  body: fc.oneof(fc.string({ maxLength: 20 }), fc.constant('x'.repeat(20_000))),
  contentType: fc.constantFrom(null, 'application/json', 'text/plain; charset="x"'),
  headers: fc.constantFrom<Record<string, string>>({}, {}, { a: '1' }, { 'x-b': 'Gr\u00fc\u00dfe' }),
  tries: fc.constantFrom(0, 0, 1, 2),
  delayS: fc.constantFrom(0, 0, 0, 1, 5),
  groups: fc.uniqueArray(fc.constantFrom('g1', 'g2', 'g3'), { minLength: 1 }),
  key: fc.constantFrom(null, null, null, 'k1', 'k2'),
});
type Inserted = typeof inserted extends fc.Arbitrary<infer T> ? T : never;

const refSpecs = fc.record({
  back: fc.nat({ max: 7 }),
  token: fc.boolean(),
  wrong: fc.constantFrom('no', 'no', 'no', 'no', 'no', 'no', 'no', 'group', 'queue', 'id', 'token'),
});
type RefSpec = typeof refSpecs extends fc.Arbitrary<infer T> ? T : never;

type Command = fc.AsyncCommand<HttpWorld, HttpWorld>;

function command(name: string, run: (world: HttpWorld) => Promise<void>): Command {
  return { check: () => true, run: (_model, world) => run(world), toString: () => name };
}

const queues = fc.constantFrom(...QUEUES);
const lengths = fc.constantFrom(1, 1000, 5000, 60_000);

const gets = fc
  .tuple(
    queues,
    fc.constantFrom('g1', 'g2', 'g3'),
    fc.option(lengths, { freq: 2 }),
    // Not multiples of other lengths: if a timeout coincides with a maturity, either may come first.
    fc.constantFrom(0, 0, null, null, 777, 3333),
  )
  .map(([queue, group, leaseMs, toMs]) =>
    command(`get(${queue.ns}/${queue.name}, ${group}, lease ${leaseMs}, to ${toMs})`, (world) =>
      world.get(queue, group, { leaseMs, toMs }),
    ),
  );

const inserts = fc
  .tuple(queues, inserted)
  .map(([queue, given]) =>
    command(
      `insert(${queue.ns}/${queue.name}, ${fc.stringify({ ...given, body: given.body.slice(0, 20) })})`,
      (world) => world.insert(queue, given),
    ),
  );

const settlements = fc
  .tuple(
    fc.constantFrom('commit' as const, 'commit' as const, 'rollback' as const, 'extend' as const),
    refSpecs,
    fc.constantFrom(0, 0, 1000),
  )
  .map(([verb, spec, ms]) =>
    command(`${verb}(${fc.stringify(spec)}, ${ms})`, (world) => world.settleOne(verb, spec, ms)),
  );

/** Weighted by repetition. */
export const commands: fc.Arbitrary<Command>[] = [
  ...[inserts, inserts, gets, gets, gets, settlements, settlements],
  refSpecs.map((spec) => command(`remove(${fc.stringify(spec)})`, (world) => world.remove(spec))),
  fc
    .tuple(queues, fc.boolean())
    .map(([queue, paused]) =>
      command(`${paused ? 'pause' : 'resume'}(${queue.ns}/${queue.name})`, (world) =>
        world.pause(queue, paused),
      ),
    ),
  fc.nat({ max: 5 }).map((index) => command(`cancel(${index})`, (world) => world.cancel(index))),
  fc.nat({ max: 5 }).map((index) => command(`vanish(${index})`, (world) => world.vanish(index))),
  fc
    .constantFrom(1, 999, 1000, 5000, 60_000)
    .map((ms) => command(`passTime(${ms})`, (world) => world.passTime(ms))),
];
