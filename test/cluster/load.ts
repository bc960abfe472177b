import assert from 'node:assert/strict';
import { type Answer, headerOf, type QueueClient } from '../support/http-client.ts';
import { seededRandom } from '../support/random.ts';
import type { Nodes } from './nodes.ts';

/** Elements that a load moves, over all nodes. */
export const ELEMENTS = Number(process.env.CLUSTER_ELEMENTS ?? 1_500);
/** Consumers over all nodes. */
export const CONSUMERS = 192;
const PRODUCERS = 48;
const ROLLED_BACK = 0.05;

/** What became of a load: how often each number was consumed, or committed. */
export interface Tally {
  readonly inserted: ReadonlySet<number>;
  readonly consumed: ReadonlyMap<number, number>;
  /** Commits by id that were answered as done. */
  readonly commits: ReadonlyMap<string, number>;
}

/** Inserts numbers through all nodes while consumers on all nodes pop them. */
export function popAll(nodes: Nodes, queue: string): Promise<Tally> {
  return run(nodes, queue, async (client, load) => {
    const answer = await tried(() => client.get('N', queue, { to: 500 }));
    if (answer?.status === 200) load.consume(Number(answer.body));
  });
}

/** Resolves when so many commits are acknowledged. */
type Committed = (count: number) => Promise<void>;

/**
 * The same with reserve and commit, and every twentieth try rolled back.
 * @param disturb called when the load begins
 */
export function reserveAll(
  nodes: Nodes,
  queue: string,
  disturb: (committed: Committed) => Promise<void> = async () => {},
): Promise<Tally> {
  const random = seededRandom(7).next;
  return run(
    nodes,
    queue,
    async (client, load) => {
      const answer = await tried(() => client.reserve('N', queue, { to: 500 }));
      if (answer?.status !== 200) return;
      const id = headerOf(answer, 'x-ks-id') ?? '';
      const token = headerOf(answer, 'x-ks-lease') ?? '';
      if (random() < ROLLED_BACK) {
        await tried(() => client.rollback('N', queue, id, { token }));
        return;
      }
      const committed = await tried(() => client.commit('N', queue, id, { token }));
      if (committed?.status === 200) load.commit(id, Number(answer.body));
      // Nobody knows whether a commit without an answer was done: the element may come again, or not.
      else if (committed === null || committed.status === 503) load.doubt(Number(answer.body));
    },
    disturb,
  );
}

class Load {
  readonly inserted = new Set<number>();
  readonly consumed = new Map<number, number>();
  readonly commits = new Map<string, number>();
  readonly #doubtful = new Set<number>();
  #onCommit: () => void = () => {};
  isInserted = false;

  consume(number: number): void {
    this.consumed.set(number, (this.consumed.get(number) ?? 0) + 1);
  }

  commit(id: string, number: number): void {
    this.commits.set(id, (this.commits.get(id) ?? 0) + 1);
    this.consume(number);
    this.#onCommit();
  }

  /** Resolves with the commit that makes it so many, so that whoever waits acts before the load is done. */
  committed(count: number): Promise<void> {
    return new Promise((resolve) => {
      this.#onCommit = () => {
        if (this.commits.size >= count) resolve();
      };
    });
  }

  doubt(number: number): void {
    this.#doubtful.add(number);
  }

  get isDone(): boolean {
    if (!this.isInserted) return false;
    for (const number of this.inserted) {
      if (!this.consumed.has(number) && !this.#doubtful.has(number)) return false;
    }
    return true;
  }
}

async function run(
  nodes: Nodes,
  queue: string,
  consumeOne: (client: QueueClient, load: Load) => Promise<void>,
  disturb: (committed: Committed) => Promise<void> = async () => {},
): Promise<Tally> {
  const load = new Load();
  const consuming = Array.from({ length: CONSUMERS }, async (_, i) => {
    while (!load.isDone) await consumeOne(nodes.client(i % nodes.count), load);
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

/** Until it is stored: the key lets a repeated insert store nothing. */
async function insert(client: QueueClient, queue: string, number: number): Promise<void> {
  const headers = { 'idempotency-key': `${queue}-${number}` };
  for (;;) {
    const answer = await tried(() => client.insert('N', queue, `${number}`, { headers }));
    if (answer?.status === 200) return;
    if (answer !== null) assert.equal(answer.status, 503);
  }
}

/** Null where no answer came: the node is down. */
async function tried(call: () => Promise<Answer>): Promise<Answer | null> {
  try {
    return await call();
  } catch {
    await new Promise((resolve) => setTimeout(resolve, 50));
    return null;
  }
}
