/**
 * Bounds on what one peer may make this server keep or do (reliability, S18). `docs/protocols/amqp.md` lists
 * the same numbers, and a test compares them. Where AMQP has a field for a bound, the `open`, `begin` and
 * `attach` that this server sends announce it.
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
  /** Deliveries of a session that may be unsettled, each way: rhea's `session_buffer_size`. */
  unsettled: 2048,
  /** Bytes of a link's name. */
  nameBytes: 512,
  /** Lists, maps, arrays and descriptors within each other. */
  depth: 16,
  /** Values in one performative, those inside lists, maps and arrays included. */
  values: 4096,
  /** Bodies of all deliveries that have begun and not ended, in largest messages. */
  begunMessages: 4,
  /** The shortest `idle-time-out` that a peer may ask for, ms: it is sent something more often than that. */
  shortestIdleMs: 500,
} as const;
