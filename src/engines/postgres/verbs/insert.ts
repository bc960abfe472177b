import type { OnRepeat } from '../../../engine/old-port.ts';
import type { ElementId, NewElement } from '../../../model/element.ts';
import { isSameContent } from '../../../model/fingerprint.ts';
import type { Batch, Verb } from '../call.ts';
import type { DatabaseClock } from '../database-clock.ts';
import type { Ids } from '../ids.ts';
import type { Queue } from '../names.ts';
import { number, type Query, type Row, type Statement, text } from '../statement.ts';
import { ElementColumns, type ElementKinds, kindsOf, storedKeyName, storing } from './elements.ts';
import { NOW, withList } from './fragments.ts';

export interface InsertArgs {
  readonly queue: Queue;
  readonly elements: readonly NewElement[];
  readonly onRepeat: OnRepeat | null;
}

export interface InsertHost {
  readonly ids: Ids;
  readonly clock: DatabaseClock;
  readonly dedupWindowMs: number;
}

type InsertVerb = Verb<InsertArgs, ElementId[]>;

/** The verb for some elements: the plainest that can store them all. */
export function insertVerbs(host: InsertHost): (args: InsertArgs) => InsertVerb {
  const verbs = new Map<string, InsertVerb>();
  for (const shared of [false, true]) {
    for (const keyed of [false, true]) {
      const kinds = { shared, keyed };
      const statement = insertStatement(kinds);
      verbs.set(statement.name, {
        name: statement.name,
        batch: () => new InsertBatch(host, kinds, statement),
      });
    }
  }
  return ({ queue, elements }) => {
    const verb = verbs.get(nameOf(kindsOf(elements.map((element) => ({ queue, element })))));
    if (verb === undefined) throw new Error('there is an insert for each kind');
    return verb;
  };
}

function nameOf({ shared, keyed }: ElementKinds): string {
  return `insert${shared ? ' shared' : ''}${keyed ? ' keyed' : ''}`;
}

/** Parameter 1 is the dedup window where keys are checked. Answers the numbers, then what became of each key. */
function insertStatement(kinds: ElementKinds): Statement {
  const first = kinds.keyed ? 2 : 1;
  const ids = `SELECT 0 AS queue, NULL::bytea AS key, array_agg(i.seq ORDER BY i.ord)::text AS seq, t.now, NULL::text FROM i, t GROUP BY t.now`;
  const keys = 'UNION ALL SELECT q.queue, q.key, q.seq::text, NULL, q.fingerprint FROM q';
  return {
    name: nameOf(kinds),
    text: `${withList(NOW, ...storing(kinds, first, { windowParameter: 1 }))} ${ids} ${kinds.keyed ? keys : ''}`,
  };
}

class InsertBatch implements Batch<InsertArgs, ElementId[]> {
  readonly #host: InsertHost;
  readonly #kinds: ElementKinds;
  readonly #statement: Statement;
  readonly #columns: ElementColumns;
  /** Per step, the place of each of its elements; a repeated key stands for the first element that has it. */
  readonly #steps: { readonly args: InsertArgs; readonly places: readonly Place[] }[] = [];

  constructor(host: InsertHost, kinds: ElementKinds, statement: Statement) {
    this.#host = host;
    this.#kinds = kinds;
    this.#statement = statement;
    this.#columns = new ElementColumns(kinds);
  }

  add(args: InsertArgs): boolean {
    const columns = this.#columns;
    const { queue, elements } = args;
    const places = elements.map((element): Place => {
      const earlier = columns.placeOfKey(queue, element);
      return { at: earlier ?? columns.add(queue, element), isFirst: earlier === undefined };
    });
    this.#steps.push({ args, places });
    return true;
  }

  query(): Query | null {
    if (this.#columns.count === 0) return null;
    const columns = this.#columns.values();
    const values = this.#kinds.keyed ? [String(this.#host.dedupWindowMs), ...columns] : columns;
    return { statement: this.#statement, values };
  }

  read(rows: readonly Row[]): ElementId[][] {
    const [head, ...keyRows] = rows;
    if (head === undefined) return this.#steps.map(() => []);
    const { ids, clock } = this.#host;
    clock.see(number(head, 3));
    this.#columns.stored();
    const seqs = text(head, 2).slice(1, -1).split(',').map(Number);
    const byKey = new Map(keyRows.map((row) => [storedKeyName(number(row, 0), text(row, 1)), row]));
    return this.#steps.map(({ args: { elements, onRepeat }, places }) =>
      places.map(({ at, isFirst }, index) => {
        const key = this.#columns.keyNameAt(at);
        const seen = key === null ? undefined : byKey.get(key);
        const seq = seen === undefined ? seqs[at] : number(seen, 2);
        if (seq === undefined) throw new Error('an insert answered too few numbers');
        if (seen !== undefined && !(isFirst && seq === seqs[at])) {
          onRepeat?.(index, isSameContent(elements[index]?.fingerprint, seen[4]));
        }
        return ids.text(seq);
      }),
    );
  }
}

/** An element's place among the columns, and whether it is the one that stands there. */
interface Place {
  readonly at: number;
  readonly isFirst: boolean;
}
