/** The nearest millisecond. */
export function toMs(seconds: number): number {
  return Math.round(seconds * 1000);
}
