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
 * null if there are none.
 */
export function conflictOf(patterns: readonly string[]): readonly [string, string] | null {
  for (const [i, one] of patterns.entries()) {
    for (const other of patterns.slice(i + 1)) {
      if (specificity(one) === specificity(other) && canMeet(one, other)) return [one, other];
    }
  }
  return null;
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

/**
 * Whether some name matches both patterns. Dynamic programming: `row[j]` tells whether the characters of `one` so far
 * and the first `j` characters of `other` can match the same string.
 */
function canMeet(one: string, other: string): boolean {
  let row = Array.from({ length: other.length + 1 }, (_, j) => [...other.slice(0, j)].every(isAny));
  for (const char of one) {
    const next = [isAny(char) && row[0] === true];
    for (let j = 1; j <= other.length; j++) {
      const isEither = isAny(char) || isAny(other[j - 1] ?? '');
      const skips = row[j] === true || next[j - 1] === true;
      next[j] = isEither ? skips : row[j - 1] === true && char === other[j - 1];
    }
    row = next;
  }
  return row[other.length] === true;
}

function isAny(char: string): boolean {
  return char === ANY_NAME;
}

/** Converts a pattern to one of SQL's `LIKE`. */
export function likePattern(pattern: string): string {
  return pattern.replace(/[\\%_]/g, '\\$&').replaceAll(ANY_NAME, '%');
}
