import { compareStrings } from './compare-strings.ts';

// Name patterns, in which each `*` matches any number of characters, including none.

/** The pattern that matches all names. */
export const ANY_NAME = '*';

/** The first rule whose pattern matches a name; undefined if none does. */
export function ruleFor<Rule extends { readonly pattern: string }>(
  rules: readonly Rule[],
  name: string,
): Rule | undefined {
  return rules.find(({ pattern }) => matches(pattern, name));
}

/**
 * Sorts by specificity, the highest first: names without `*`, then patterns by the number of their other characters.
 */
export function bySpecificity<Rule extends { readonly pattern: string }>(rules: readonly Rule[]): Rule[] {
  return rules.toSorted((a, b) => specificity(b.pattern) - specificity(a.pattern));
}

/**
 * Returns two patterns of equal specificity that can match the same name, so that it is undefined which one applies;
 * null if there are none. Two patterns can if one's characters before its first `*` begin with the other's, and one's
 * characters after its last `*` end with the other's: the `*` match the rest.
 * @param patterns each once
 */
export function conflictOf(patterns: readonly string[]): readonly [string, string] | null {
  const starred = patterns.map(partsOf).filter(({ pattern }) => pattern.includes(ANY_NAME));
  for (const equals of Map.groupBy(starred, ({ pattern }) => specificity(pattern)).values()) {
    equals.sort((a, b) => compareStrings(a.start, b.start));
    for (const [i, one] of equals.entries()) {
      // Those that begin with its start follow it.
      for (let j = i + 1; j < equals.length; j++) {
        const other = equals[j] as Pattern;
        if (!other.start.startsWith(one.start)) break;
        if (!one.end.endsWith(other.end) && !other.end.endsWith(one.end)) continue;
        return one.place < other.place ? [one.pattern, other.pattern] : [other.pattern, one.pattern];
      }
    }
  }
  return null;
}

interface Pattern {
  readonly pattern: string;
  /** Its index in the list. */
  readonly place: number;
  /** Its characters before the first `*`. */
  readonly start: string;
  /** Its characters after the last `*`. */
  readonly end: string;
}

function partsOf(pattern: string, place: number): Pattern {
  const [start = ''] = pattern.split(ANY_NAME, 1);
  return { pattern, place, start, end: pattern.slice(pattern.lastIndexOf(ANY_NAME) + 1) };
}

function specificity(pattern: string): number {
  const literals = pattern.replaceAll(ANY_NAME, '').length;
  return literals === pattern.length ? Number.POSITIVE_INFINITY : literals;
}

/** Whether a pattern matches a name. Linear in practice, since only the last `*` is backtracked. */
export function matches(pattern: string, name: string): boolean {
  if (pattern === ANY_NAME) return true;
  let [patternAt, nameAt] = [0, 0];
  let [starAt, retryAt] = [-1, 0];
  while (nameAt < name.length) {
    if (pattern[patternAt] === ANY_NAME) {
      starAt = patternAt;
      retryAt = nameAt;
      patternAt += 1;
    } else if (pattern[patternAt] === name[nameAt]) {
      patternAt += 1;
      nameAt += 1;
    } else if (starAt === -1) return false;
    else {
      patternAt = starAt + 1;
      retryAt += 1;
      nameAt = retryAt;
    }
  }
  while (pattern[patternAt] === ANY_NAME) patternAt += 1;
  return patternAt === pattern.length;
}

/** Converts a pattern to one of SQL's `LIKE`. */
export function likePattern(pattern: string): string {
  return pattern.replace(/[\\%_]/g, '\\$&').replaceAll(ANY_NAME, '%');
}
