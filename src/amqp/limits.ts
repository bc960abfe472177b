/**
 * Bounds on what one client's links may make this server keep; those on its frames are the guard's.
 * `docs/protocols/amqp.md` lists the same numbers, and a test compares them.
 */
export const LINK_LIMITS = {
  /** Links of one connection. */
  links: 256,
  /** Messages that a client may send on a link before the first is settled: the credit of this server. */
  credit: 1000,
  /** Bytes of a message around its body. */
  sectionBytes: 65_536,
} as const;

/** Constants of the delay of a rejected element, in seconds: `tries² * c2 + tries * c1 + c0`. */
export const REJECT_DELAY = { c2: 3, c1: 3, c0: 3 } as const;
