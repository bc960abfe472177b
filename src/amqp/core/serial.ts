// Ids of transfers and deliveries, and delivery-counts, are serial numbers of 32 bits, which wrap (RFC 1982; transport,
// 2.8.10).

/** `a` - `b`; negative if `a` comes before `b`. */
export function serialDifference(a: number, b: number): number {
  return (a - b) | 0;
}

/** The serial number `count` after `id`. */
export function serialAfter(id: number, count = 1): number {
  return (id + count) >>> 0;
}
