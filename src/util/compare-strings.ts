/** Compares by code units. `localeCompare` takes twenty times as long, and depends on the machine's locale. */
export function compareStrings(a: string, b: string): number {
  return a < b ? -1 : Number(a > b);
}
