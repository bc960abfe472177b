import type { Move } from '../../../engine/old-port.ts';
import type { NewElement } from '../../../model/element.ts';
import { int4Array } from '../arrays.ts';
import type { Batch, Verb } from '../call.ts';
import type { Ids } from '../ids.ts';
import type { Names, Queue } from '../names.ts';
import type { Query, Row, Statement } from '../statement.ts';
import { FINISHED } from './commit.ts';
import { ElementColumns, type ElementKinds, kindsOf, storing } from './elements.ts';
import { finishShared, NOW, ONE_LESS_OF_EITHER, tally, withList } from './fragments.ts';
import {
  outcomeRows,
  type ParsedRef,
  parseRef,
  placeOf,
  REF_PARAMETERS,
  RefColumns,
  refs,
  refusal,
  type Settled,
  wasChanged,
} from './refs.ts';

export interface TransferHost {
  readonly ids: Ids;
  readonly names: Names;
  readonly dedupWindowMs: number;
}

type TransferVerb = Verb<readonly Move[], Settled[]>;

/** Everything that some move may need, for calls in which one does. */
const ALL_KINDS: ElementKinds = { shared: true, keyed: true };
const PLAIN_KINDS: ElementKinds = { shared: false, keyed: false };

/** What two moves of one statement must not share: the delivery that they finish, and a dedup key. */
export function namesOfMove({ from, finish, inserts }: Move): string[] {
  const names = [`delivery ${from.ns}/${from.name}/${finish.group}/${finish.id}`];
  for (const { queue, element } of inserts) {
    if (element.dedupKey !== null) names.push(`key ${queue.ns}/${queue.name}/${element.dedupKey}`);
  }
  return names;
}

/** Finishes and inserts in one statement: an element is stored only if its move's delivery was finished. */
function transferStatement(kinds: ElementKinds): Statement {
  const isPlain = kinds === PLAIN_KINDS;
  const first = REF_PARAMETERS + 1;
  const stored = storing(kinds, isPlain ? first + 1 : first + 2, {
    windowParameter: first + 1,
    extra: ['move', `$${first}::int[]`],
    where: '(u.move IN (SELECT g.ord FROM g)) IS TRUE',
  });
  return {
    name: `transfer${isPlain ? '' : ' of any kind'}`,
    text: `${withList(
      NOW,
      refs(),
      FINISHED,
      !isPlain && finishShared('g'),
      tally('gt', 'g', ONE_LESS_OF_EITHER),
      ...stored,
    )} ${outcomeRows('')}`,
  };
}

/** The verb for some moves: the plain one where no stream and no dedup key is among them. */
export function transferVerbs(host: TransferHost): (moves: readonly Move[]) => TransferVerb {
  const verb = (kinds: ElementKinds): TransferVerb => {
    const statement = transferStatement(kinds);
    return {
      name: statement.name,
      locksElements: kinds.shared,
      batch: () => new TransferBatch(host, kinds, statement),
    };
  };
  const [plain, any] = [verb(PLAIN_KINDS), verb(ALL_KINDS)];
  return (moves) => {
    const isStream = moves.some(({ from }) => host.names.queue(from).isStream);
    const { shared, keyed } = kindsOf(inserted(host.names, moves));
    return isStream || shared || keyed ? any : plain;
  };
}

function* inserted(names: Names, moves: readonly Move[]): Iterable<{ queue: Queue; element: NewElement }> {
  for (const { inserts } of moves) {
    for (const { queue, element } of inserts) yield { queue: names.queue(queue), element };
  }
}

class TransferBatch implements Batch<readonly Move[], Settled[]> {
  readonly #host: TransferHost;
  readonly #kinds: ElementKinds;
  readonly #statement: Statement;
  readonly #refs = new RefColumns();
  readonly #columns: ElementColumns;
  /** Per element, the place of its move's reference, from 1 as PostgreSQL counts. */
  readonly #moves: number[] = [];
  readonly #steps: (number | null)[][] = [];

  constructor(host: TransferHost, kinds: ElementKinds, statement: Statement) {
    this.#host = host;
    this.#kinds = kinds;
    this.#statement = statement;
    this.#columns = new ElementColumns(kinds);
  }

  add(moves: readonly Move[]): boolean {
    const refs = moves.map(({ from, finish }) =>
      parseRef(this.#host.ids, this.#host.names.queue(from), finish),
    );
    if (!this.#refs.hasRoomFor(refs) || this.#hasKeyOf(moves)) return false;
    this.#steps.push(moves.map((move, index) => this.#addMove(move, refs[index] ?? null)));
    return true;
  }

  query(): Query | null {
    if (this.#refs.count === 0) return null;
    const window = this.#kinds.keyed ? [String(this.#host.dedupWindowMs)] : [];
    const values = [...this.#refs.values(), int4Array(this.#moves), ...window, ...this.#columns.values()];
    return { statement: this.#statement, values };
  }

  read(rows: readonly Row[]): Settled[][] {
    this.#columns.stored();
    const outcomes: Settled[] = [];
    for (const row of rows) {
      const place = placeOf(row);
      outcomes[place] = wasChanged(row) ? 'done' : refusal(row, this.#refs.at(place), 'commit');
    }
    return this.#steps.map((places) =>
      places.map((place) => (place === null ? 'not-found' : (outcomes[place] ?? 'not-found'))),
    );
  }

  /** Whether an element's key is in the statement already: which of the two is stored depends on their moves. */
  #hasKeyOf(moves: readonly Move[]): boolean {
    return moves.some(({ inserts }) =>
      inserts.some(
        ({ queue, element }) => this.#columns.placeOfKey(this.#queue(queue), element) !== undefined,
      ),
    );
  }

  #addMove({ inserts }: Move, ref: ParsedRef | null): number | null {
    const place = this.#refs.add(ref);
    if (place === null) return null;
    for (const { queue: key, element } of inserts) {
      const queue = this.#queue(key);
      // A key that the same move gives twice is stored once.
      if (this.#columns.placeOfKey(queue, element) !== undefined) continue;
      this.#columns.add(queue, element);
      this.#moves.push(place + 1);
    }
    return place;
  }

  #queue(key: { ns: string; name: string }): Queue {
    return this.#host.names.queue(key);
  }
}
