import assert from 'node:assert/strict';
import { type Answer, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import { seededRandom } from '../support/random.ts';
import { eventually, type Nodes } from './nodes.ts';

/** Elements per load, over all nodes. */
export const ELEMENTS = Number(process.env.CLUSTER_ELEMENTS ?? 150);
/** Consumers over all nodes; `npm run test:cluster` uses 192. */
export const CONSUMERS = Number(process.env.CLUSTER_CONSUMERS ?? 24);
const PRODUCERS = CONSUMERS / 4;
const ROLLED_BACK = 0.05;

/** The results of a load. */
export interface Consumed {
  readonly inserted: ReadonlySet<number>;
  /** The ids of the elements with which a number was popped or committed. */
  readonly consumed: ReadonlyMap<number, readonly string[]>;
  /** Number of acknowledged commits by element id. */
  readonly commits: ReadonlyMap<string, number>;
  /**
   * Pops that failed with an unknown outcome, as on a machine that is busy for seconds; each may have taken an element.
   */
  readonly unknownPops: number;
}

/**
 * Inserts numbers through all nodes while consumers on all nodes pop them.
 * @param source the queue for the inserts, if an exchange forwards them to `queue`
 */
export function popAll(nodes: Nodes, queue: string, source = queue): Promise<Consumed> {
  return run(nodes, source, async (client, load) => {
    const answer = await tried(() => client.get('N', queue, { to: 500 }));
    if (answer?.status === 200) load.consume(headerOf(answer, 'x-ks-id') ?? '', Number(answer.body));
    else if (answer?.status === 503 && jsonOf<{ code: string }>(answer).code === 'outcome-unknown')
      load.unknownPops += 1;
    else if (load.mayBeDone)
      load.isEmptied = (await sizeOf(client, source)) + (await sizeOf(client, queue)) === 0;
  });
}

/**
 * Checks that every number was inserted and delivered, as one element each, that no commit was acknowledged twice, and
 * that the queue is empty: consumers stop after the last number, so none of them would receive a later copy.
 */
export async function assertOnce(
  nodes: Nodes,
  queue: string,
  { inserted, consumed, commits, unknownPops }: Consumed,
): Promise<void> {
  assert.equal(inserted.size, ELEMENTS);
  const strange = [...consumed.keys()].filter((number) => !inserted.has(number));
  assert.deepEqual(strange, []);
  const missing = [...inserted].filter((number) => !consumed.has(number));
  assert.ok(
    missing.length <= unknownPops,
    `${missing} were not delivered; ${unknownPops} pops have an unknown outcome`,
  );
  const copied = [...consumed].filter(([, ids]) => new Set(ids).size > 1);
  assert.deepEqual(copied, [], 'numbers that were stored as several elements');
  const repeated = [...commits].filter(([, times]) => times > 1);
  assert.deepEqual(repeated, [], 'ids that were committed several times');
  await eventually('the queue is empty', async () => (await sizeOf(nodes.client(0), queue)) === 0);
}

async function sizeOf(client: QueueClient, queue: string): Promise<number> {
  return jsonOf<{ totalSize: number }>(await client.status('N', queue)).totalSize;
}

/** Resolves once `count` commits are acknowledged. */
type Committed = (count: number) => Promise<void>;

/**
 * Like `popAll`, but with reserve and commit, and every twentieth try rolled back.
 * @param disturb called when the load starts
 */
export function reserveAll(
  nodes: Nodes,
  queue: string,
  disturb: (committed: Committed) => Promise<void> = async () => {},
): Promise<Consumed> {
  const random = seededRandom(7).next;
  return run(
    nodes,
    queue,
    async (client, load, at) => {
      const answer = await tried(() => client.reserve('N', queue, { to: 500 }));
      if (answer?.status !== 200) return;
      const id = headerOf(answer, 'x-ks-id') ?? '';
      const token = headerOf(answer, 'x-ks-lease') ?? '';
      if (random() < ROLLED_BACK) {
        await tried(() => client.rollback('N', queue, id, { token }));
        return;
      }
      const status = await commit(nodes, at, { queue, id, token });
      if (status === 200) load.commit(id, Number(answer.body));
      else if (status === 'done before') load.consume(id, Number(answer.body));
    },
    disturb,
  );
}

class Load {
  readonly inserted = new Set<number>();
  readonly consumed = new Map<number, string[]>();
  readonly commits = new Map<string, number>();
  #onCommit: () => void = () => {};
  unknownPops = 0;
  isInserted = false;
  /** Whether the queues are empty, so that missing numbers were taken by pops of unknown outcome. */
  isEmptied = false;

  consume(id: string, number: number): void {
    const ids = this.consumed.get(number);
    if (ids === undefined) this.consumed.set(number, [id]);
    else ids.push(id);
  }

  commit(id: string, number: number): void {
    this.commits.set(id, (this.commits.get(id) ?? 0) + 1);
    this.consume(id, number);
    this.#onCommit();
  }

  /** Resolves on the commit that reaches this count, so that the test acts before the load is done. */
  committed(count: number): Promise<void> {
    return new Promise((resolve) => {
      this.#onCommit = () => {
        if (this.commits.size >= count) resolve();
      };
    });
  }

  get isDone(): boolean {
    return this.mayBeDone && (this.isEmptied || this.consumed.size >= this.inserted.size);
  }

  get mayBeDone(): boolean {
    return this.isInserted && this.consumed.size + this.unknownPops >= this.inserted.size;
  }
}

async function run(
  nodes: Nodes,
  queue: string,
  consumeOne: (client: QueueClient, load: Load, at: number) => Promise<void>,
  disturb: (committed: Committed) => Promise<void> = async () => {},
): Promise<Consumed> {
  const load = new Load();
  const consuming = Array.from({ length: CONSUMERS }, async (_, i) => {
    while (!load.isDone) await consumeOne(nodes.client(i % nodes.count), load, i % nodes.count);
  });
  let next = 0;
  const producing = Array.from({ length: PRODUCERS }, async (_, i) => {
    while (next < ELEMENTS) {
      const number = next++;
      await insert(nodes.client(i % nodes.count), queue, number);
      load.inserted.add(number);
    }
  });
  const disturbing = disturb((count) => load.committed(count));
  await Promise.all(producing);
  load.isInserted = true;
  await Promise.all([...consuming, disturbing]);
  return load;
}

/**
 * Commits until the outcome is known, at another node if one does not answer. An engine may answer `503` for an unknown
 * outcome, for example when a replica is slow, and so may a node that is shutting down. A 404 on a repeated attempt
 * means that an earlier one succeeded.
 */
async function commit(
  nodes: Nodes,
  at: number,
  { queue, id, token }: { readonly queue: string; readonly id: string; readonly token: string },
): Promise<number | 'done before'> {
  for (let attempt = 0; ; attempt++) {
    const client = nodes.client((at + attempt) % nodes.count);
    const answer = await tried(() => client.commit('N', queue, id, { token }));
    if (answer === null || answer.status === 503) continue;
    return attempt > 0 && answer.status === 404 ? 'done before' : answer.status;
  }
}

/** Repeats until the insert is stored; its idempotency key prevents duplicates. */
async function insert(client: QueueClient, queue: string, number: number): Promise<void> {
  const headers = { 'idempotency-key': `${queue}-${number}` };
  for (;;) {
    const answer = await tried(() => client.insert('N', queue, `${number}`, { headers }));
    if (answer?.status === 200) return;
    if (answer !== null) assert.equal(answer.status, 503);
  }
}

/** Returns null if no answer arrived, because the node is down. */
async function tried(call: () => Promise<Answer>): Promise<Answer | null> {
  try {
    return await call();
  } catch {
    await new Promise((resolve) => setTimeout(resolve, 50));
    return null;
  }
}
