/** By code units, as everywhere: `localeCompare` takes twenty times as long, and depends on the machine. */
export function compareTexts(a: string, b: string): number {
  return a < b ? -1 : Number(a > b);
}
