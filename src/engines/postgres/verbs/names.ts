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

const USAGE: Statement = {
  name: 'usage',
  text: `SELECT coalesce(sum(y.waiting + y.reserved), 0) FROM queue q JOIN lane l ON l.queue = q.id
    JOIN tally y ON y.lane = l.id WHERE q.ns = $1`,
};

/** How many deliveries a namespace has, by the tally. */
export const USAGE_VERB: Verb<string, number> = { name: USAGE.name, batch: () => new UsageBatch() };

class UsageBatch implements Batch<string, number> {
  #ns: string | null = null;

  add(ns: string): boolean {
    if (this.#ns !== null) return false;
    this.#ns = ns;
    return true;
  }

  query(): Query {
    return { statement: USAGE, values: [this.#ns] };
  }

  read([row]: readonly Row[]): number[] {
    return [number(row ?? [], 0)];
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
