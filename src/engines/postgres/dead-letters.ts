import type { NamespacePolicy } from '../../engine/engine.ts';
import { type GroupName, PLAIN_GROUP } from '../../model/element.ts';
import { boolArray, int4Array } from './arrays.ts';
import type { Connection } from './connection.ts';
import type { Names, Need, Queue } from './names.ts';
import type { Parameter } from './statement.ts';

/** Where the failed elements of one namespace go. */
export interface DeadLetterTarget {
  /** How statements name it. */
  readonly number: number;
  readonly ns: string;
  readonly maxTries: number;
  readonly queue: string;
  readonly groups: readonly GroupName[];
  readonly isStream: boolean;
  /** Numbers of the target's lanes, known once the connection is prepared. */
  lanes: readonly number[];
}

/** PostgreSQL's largest `int`: nothing reaches more tries. */
const MOST_TRIES = 2 ** 31 - 1;

/**
 * The dead-letter queues of all namespaces. They get their numbers before anything fails, since a move
 * stands in the same statement as the failure; others see such a queue only when something was moved there.
 */
export class DeadLetters {
  readonly #names: Names;
  readonly #byNamespace = new Map<string, DeadLetterTarget>();

  constructor(names: Names, policies: readonly NamespacePolicy[]) {
    this.#names = names;
    for (const { name: ns, deadLetter, groups } of policies) {
      if (deadLetter === null) continue;
      this.#byNamespace.set(ns, {
        number: this.#byNamespace.size,
        ns,
        maxTries: Math.min(deadLetter.maxTries, MOST_TRIES),
        queue: deadLetter.queue,
        groups: groups ?? [PLAIN_GROUP],
        isStream: groups !== null,
        lanes: [],
      });
    }
  }

  get all(): readonly DeadLetterTarget[] {
    return [...this.#byNamespace.values()];
  }

  /** Where elements of this queue go; null where they stay for ever, as in the dead-letter queue itself. */
  targetOf({ key }: Queue): DeadLetterTarget | null {
    const target = this.#byNamespace.get(key.ns);
    return target === undefined || target.queue === key.name ? null : target;
  }

  /** Gives the targets their numbers. @throws Refused, ConnectionLost */
  async prepare(connection: Connection): Promise<void> {
    const targets = this.all;
    if (targets.length === 0) return;
    const needs = targets.map(({ ns, queue: name, groups }): Need => {
      return { queue: this.#names.queue({ ns, name }), groups, make: true, uses: false };
    });
    await this.#names.reserve(connection, needs);
    for (const [index, target] of targets.entries()) {
      const lanes = needs[index]?.queue.lanes;
      target.lanes = target.groups.map((group) => lanes?.get(group)?.id ?? 0);
    }
  }

  /** Four arrays: per lane of each target the target's number, the lane, how many there are, whether a stream. */
  values(): Parameter[] {
    const rows = this.all.flatMap(({ number, lanes, isStream }) =>
      lanes.map((lane) => ({ number, lane, count: lanes.length, isStream })),
    );
    return [
      int4Array(rows.map(({ number }) => number)),
      int4Array(rows.map(({ lane }) => lane)),
      int4Array(rows.map(({ count }) => count)),
      boolArray(rows.map(({ isStream }) => isStream)),
    ];
  }
}
