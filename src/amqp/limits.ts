/**
 * Limits on the memory and work that one client may cause. `docs/protocols/amqp.md` lists the same numbers, and a test
 * compares them. If AMQP has a field for a limit, this server announces it in its `open`, `begin` or `attach`.
 */
export const AMQP_LIMITS = {
  /** Maximum bytes read before the login is complete. */
  loginBytes: 4096,
  /** `max-frame-size` of this server's `open`. */
  frameBytes: 131_072,
  /**
   * `channel-max`: the highest channel number; a channel has one session. All sessions of a connection together may
   * have 262,144 unsettled deliveries, which take 500 bytes of memory each until the client settles them.
   */
  channelMax: 127,
  /** `handle-max` of each session: the highest handle; a handle has one link. */
  handleMax: 255,
  /** Unsettled deliveries of a session, in each direction. */
  unsettled: 2048,
  /** Bytes of a link's name. */
  nameBytes: 512,
  /** Bytes of a link's name, addresses and filter, which stay in memory as long as the link. */
  attachBytes: 4096,
  /** Nesting of lists, maps, arrays and descriptors. */
  depth: 16,
  /** Values in one performative, including those inside lists, maps and arrays. */
  values: 4096,
  /**
   * Encoded values in one message: those of an `amqp-value` or `amqp-sequence`, of delivery annotations and of the
   * footer. A million take 20 ms to check, during which no other client is served.
   */
  bodyValues: 1_048_576,
  /** Total size of a connection's incomplete deliveries, as a multiple of the largest message. */
  begunMessages: 4,
  /** The shortest allowed `idle-time-out` of a client, ms: the server sends heart-beats more often than that. */
  shortestIdleMs: 500,
  /** Links of one connection. */
  links: 256,
  /** Link credit that this server grants: messages that a client may send on a link before the first is settled. */
  credit: 1000,
  /** Bytes of a message in addition to its body. */
  sectionBytes: 65_536,
} as const;

/** Coefficients of the delay of a rejected element, in seconds: `tries² * c2 + tries * c1 + c0`. */
export const REJECT_DELAY = { c2: 3, c1: 3, c0: 3 } as const;
