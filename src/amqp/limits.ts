/**
 * Bounds on what one client may make this server keep or do. `docs/protocols/amqp.md` lists the same numbers, and a
 * test compares them. If AMQP has a field for a bound, the `open`, `begin` and `attach` of this server announce it.
 */
export const AMQP_LIMITS = {
  /** Bytes that are read before the login is done. */
  loginBytes: 4096,
  /** `max-frame-size` of this server's `open`. */
  frameBytes: 131_072,
  /** `channel-max`: the highest channel; one session each. */
  channelMax: 255,
  /** `handle-max` of each session: the highest handle; one link each. */
  handleMax: 255,
  /** Unsettled deliveries of a session, in each direction. A power of two: the ring of the sent ones grows to it. */
  unsettled: 2048,
  /** Bytes of a link's name. */
  nameBytes: 512,
  /** Bytes of a link's name, addresses and filter, which are kept as long as the link. */
  attachBytes: 4096,
  /** Nesting of lists, maps, arrays and descriptors. */
  depth: 16,
  /** Values in one performative, those inside lists, maps and arrays included. */
  values: 4096,
  /** Bodies of all deliveries that have begun and not ended, in largest messages. */
  begunMessages: 4,
  /** The shortest `idle-time-out` of a client, ms: it is sent something more often than that. */
  shortestIdleMs: 500,
  /** Links of one connection. */
  links: 256,
  /** Messages that a client may send on a link before the first is settled: the credit of this server. */
  credit: 1000,
  /** Bytes of a message around its body. */
  sectionBytes: 65_536,
} as const;

/** Constants of the delay of a rejected element, in seconds: `tries² * c2 + tries * c1 + c0`. */
export const REJECT_DELAY = { c2: 3, c1: 3, c0: 3 } as const;
