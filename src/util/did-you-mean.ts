/**
 * The known name that was probably meant: one that differs only in case, or by one inserted, missing, wrong or
 * transposed character. Null if none is that close.
 * @param minEdited minimum length of a known name that may differ by more than case
 */
export function nearestName(name: string, known: Iterable<string>, minEdited = 0): string | null {
  let nearest: string | null = null;
  for (const candidate of known) {
    if (candidate.toLowerCase() === name.toLowerCase()) return candidate;
    if (nearest === null && candidate.length >= minEdited && isOneEdit(candidate, name)) nearest = candidate;
  }
  return nearest;
}

/** A suffix for an error message, ` Did you mean "delay"?`; '' if no known name is close. */
export function didYouMean(name: string, known: Iterable<string>): string {
  const nearest = nearestName(name, known);
  return nearest === null ? '' : ` Did you mean "${nearest}"?`;
}

/** Ignores case. Swapping two adjacent characters counts as one edit. */
function isOneEdit(a: string, b: string): boolean {
  if (Math.abs(a.length - b.length) > 1) return false;
  const [short, long] =
    a.length <= b.length ? [a.toLowerCase(), b.toLowerCase()] : [b.toLowerCase(), a.toLowerCase()];
  let start = 0;
  while (start < short.length && short[start] === long[start]) start += 1;
  const shortTail = short.slice(start);
  const longTail = long.slice(start);
  if (shortTail.length < longTail.length) return longTail.slice(1) === shortTail;
  const swapped = (shortTail[1] ?? '') + (shortTail[0] ?? '') + shortTail.slice(2);
  return shortTail.slice(1) === longTail.slice(1) || swapped === longTail;
}
