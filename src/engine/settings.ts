import { readFileSync } from 'node:fs';

/** Settings of several engines that exist for tests only, and that no message lists. */
const FOR_TESTS: readonly string[] = ['faults', 'givenTime'];

/** The settings of an engine by name, from the URL's parameters (text) and from the configuration (plain values). */
export class EngineSettings<Name extends string> {
  /** The engine's URL without credentials. */
  readonly #shown: string;
  readonly #values: Readonly<Record<string, unknown>>;

  /**
   * @param given of several, the last one that has a value for a name counts
   * @throws Error for a name that is unknown
   */
  constructor(shown: string, names: readonly Name[], ...given: readonly Readonly<Record<string, unknown>>[]) {
    this.#shown = shown;
    const entries = given.flatMap((values) => Object.entries(values));
    this.#values = Object.fromEntries(entries.filter(([, value]) => value !== undefined));
    for (const name of Object.keys(this.#values)) {
      if (!(names as readonly string[]).includes(name)) {
        const known = names.filter((each) => !FOR_TESTS.includes(each)).join(', ');
        throw new Error(`${shown}: unknown setting "${name}"; known are ${known}`);
      }
    }
  }

  /** As it was given; null: it was not. */
  value(name: Name): unknown {
    return this.#values[name] ?? null;
  }

  text(name: Name): string | null {
    const value = this.value(name);
    if (value === null || typeof value === 'string') return value;
    throw this.wrong(name, 'must be text');
  }

  whole(name: Name, min = 0): number | null {
    const value = this.value(name);
    if (value === null) return null;
    const number = typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : value;
    if (typeof number === 'number' && Number.isSafeInteger(number) && number >= min) return number;
    throw this.wrong(name, `must be a whole number from ${min}`);
  }

  flag(name: Name): boolean | null {
    const value = this.value(name);
    if (value === null || typeof value === 'boolean') return value;
    if (value === 'true' || value === '1') return true;
    if (value === 'false' || value === '0') return false;
    throw this.wrong(name, 'must be true or false');
  }

  oneOf<T extends string>(name: Name, allowed: readonly T[]): T | null {
    const value = this.value(name);
    const found = allowed.find((each) => each === value);
    if (found !== undefined || value === null) return found ?? null;
    throw this.wrong(name, `must be one of ${allowed.join(', ')}`);
  }

  /** The contents of the file that the setting names. */
  file(name: Name): Buffer | null {
    const path = this.text(name);
    if (path === null) return null;
    try {
      return readFileSync(path);
    } catch (cause) {
      throw this.wrong(name, `names a file that cannot be read, ${path}; name one in PEM`, cause);
    }
  }

  wrong(name: Name, why: string, cause?: unknown): Error {
    return new Error(`${this.#shown}: setting "${name}" ${why}`, { cause });
  }
}
