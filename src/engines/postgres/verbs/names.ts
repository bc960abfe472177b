import type { Usage } from '../../../engine/old-port.ts';
import type { Batch, Verb } from '../call.ts';
import { number, type Query, type Row, type Statement, text } from '../statement.ts';

const QUEUES: Statement = { name: 'queues', text: 'SELECT name FROM queue WHERE ns = $1 AND known' };

/** The known queues of a namespace, sorted. */
export const QUEUES_VERB: Verb<string, string[]> = { name: QUEUES.name, batch: () => new QueuesBatch() };

class QueuesBatch implements Batch<string, string[]> {
  #ns: string | null = null;

  add(ns: string): boolean {
    if (this.#ns !== null) return false;
    this.#ns = ns;
    return true;
  }

  query(): Query {
    return { statement: QUEUES, values: [this.#ns] };
  }

  read(rows: readonly Row[]): string[][] {
    return [rows.map((row) => text(row, 0)).sort()];
  }
}

/** The size of a delivery without its content, with its places in the indexes, about. */
const ROW_BYTES = 100;

const USAGE: Statement = {
  name: 'usage',
  text: `WITH d AS (SELECT coalesce(sum(y.waiting + y.reserved), 0) AS elements, coalesce(sum(y.bytes), 0) AS bytes
      FROM queue q JOIN lane l ON l.queue = q.id JOIN tally y ON y.lane = l.id WHERE q.ns = $1),
    e AS (SELECT coalesce(sum(y.bytes), 0) AS bytes FROM queue q JOIN tally y ON y.lane = -q.id WHERE q.ns = $1)
    SELECT d.elements, d.bytes + e.bytes + d.elements * ${ROW_BYTES} FROM d, e`,
};

/** How many deliveries a namespace has, and their bytes, by the tally. */
export const USAGE_VERB: Verb<string, Usage> = { name: USAGE.name, batch: () => new UsageBatch() };

class UsageBatch implements Batch<string, Usage> {
  #ns: string | null = null;

  add(ns: string): boolean {
    if (this.#ns !== null) return false;
    this.#ns = ns;
    return true;
  }

  query(): Query {
    return { statement: USAGE, values: [this.#ns] };
  }

  read([row = []]: readonly Row[]): Usage[] {
    return [{ elements: number(row, 0), bytes: number(row, 1) }];
  }
}

/** Nothing beyond what a step needs: its queues have numbers before it runs. */
export const NOTHING_VERB: Verb<null, void> = { name: 'nothing', batch: () => new NothingBatch() };

class NothingBatch implements Batch<null, void> {
  #steps = 0;

  add(): boolean {
    this.#steps += 1;
    return true;
  }

  query(): null {
    return null;
  }

  read(): undefined[] {
    return Array.from({ length: this.#steps }, () => undefined);
  }
}

const PING: Statement = { name: 'ping', text: 'SELECT now_ms()' };

/** Asks the database for its clock. */
export const PING_VERB: Verb<null, number> = { name: PING.name, batch: () => new PingBatch() };

class PingBatch implements Batch<null, number> {
  #steps = 0;

  add(): boolean {
    this.#steps += 1;
    return true;
  }

  query(): Query {
    return { statement: PING, values: [] };
  }

  read([row]: readonly Row[]): number[] {
    return Array.from({ length: this.#steps }, () => number(row ?? [], 0));
  }
}
