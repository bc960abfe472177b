/**
 * Whose turn something is: of the exchanges that read from one namespace, or of somebody with all that they check and
 * try. A number is an exchange of its own, by its program.
 */
export type Turn = `namespace ${string}` | `asker ${string}` | number;

/** What waits in a line: in whose turn, and of which program among theirs. */
export interface InLine {
  readonly turn: Turn;
  readonly program: number;
}

/**
 * Requests that wait for the one worker. Turns are taken by whose they are, and within one by program, so that many
 * exchanges of one namespace hold up those of another no more than one of them does.
 */
export class Line<T extends InLine> {
  /** In the order of turns; a program has an entry while something of it waits. */
  readonly #turns = new Map<Turn, Map<number, T[]>>();

  get isEmpty(): boolean {
    return this.#turns.size === 0;
  }

  push(item: T): void {
    const programs = this.#turns.get(item.turn) ?? new Map<number, T[]>();
    const own = programs.get(item.program) ?? [];
    own.push(item);
    programs.set(item.program, own);
    this.#turns.set(item.turn, programs);
  }

  /** Before everything else: for what had its turn already. */
  putFirst(item: T): void {
    this.push(item);
    const programs = this.#turns.get(item.turn) ?? new Map<number, T[]>();
    const own = programs.get(item.program) ?? [];
    own.unshift(...own.splice(-1));
    moveFirst(programs, item.program, own);
    moveFirst(this.#turns, item.turn, programs);
  }

  /** The first whose turn may be taken; they go to the end of the line. */
  next(mayGo: (turn: Turn) => boolean): T | null {
    for (const [turn, programs] of this.#turns) {
      const [first] = programs;
      if (first === undefined || !mayGo(turn)) continue;
      const [program, own] = first;
      const item = own.shift() ?? null;
      programs.delete(program);
      if (own.length > 0) programs.set(program, own);
      this.#turns.delete(turn);
      if (programs.size > 0) this.#turns.set(turn, programs);
      return item;
    }
    return null;
  }

  /** Everything that waits, which then waits no more. */
  clear(): T[] {
    const all = [...this.#turns.values()].flatMap((programs) => [...programs.values()].flat());
    this.#turns.clear();
    return all;
  }
}

function moveFirst<K, V>(map: Map<K, V>, key: K, value: V): void {
  const others = [...map].filter(([other]) => other !== key);
  map.clear();
  map.set(key, value);
  for (const [other, its] of others) map.set(other, its);
}
