/**
 * Bounds on what one request may bring (docs/operate/limits.md). They are not options: an engine's tables and a
 * peer's header buffers are sized for them. What an operator may want to change is in `config`.
 */
export const LIMITS = {
  /** Bytes of a queue, namespace, exchange or tid name after decoding. */
  nameBytes: 255,
  /** Characters of an element id or a lease token as given by a client. */
  idLength: 64,
  /** Characters of one consumer group name. */
  groupLength: 64,
  /** Consumer groups of one element. */
  groups: 64,
  /**
   * Deliveries that one insert of many makes: an element of a stream has one for each of its groups. The engine stores
   * all of them in one step, in which it serves nobody else: 10,000 elements with 64 groups took Redis more than 4.5 s.
   */
  insertDeliveries: 100_000,
  /** Element headers of one element. */
  headerCount: 64,
  /** Bytes of all element headers of one element, names and values: peers fail at 16 KiB of answer headers. */
  headerBytes: 8192,
  /** Characters of a content type or content encoding. */
  contentTypeLength: 255,
  /** The largest number of tries that can be given at insertion, and at which elements can become dead letters. */
  tries: 1_000_000,
  /**
   * The largest that a limit of bodies, or of a request with many elements, may be set to. On every engine, a call that
   * stores, returns or moves so much fits into its time. Redis is sent no call of 64 MiB (`engine/calls.ts`).
   * PostgreSQL needs 13 ms to store each MiB and returns twice the bytes within its 3 s; above 256 MiB they would be a
   * longer text than V8 has, so that the element could be stored and never taken.
   */
  maxBodyLimit: 32 * 1024 * 1024,
  /** Elements of one take. */
  takeCount: 1000,
  /** Bytes of the bodies that one take returns: a thousand elements of a megabyte would be a gigabyte in one reply. */
  takeBytes: 16 * 1024 * 1024,
  /** Queues of one take from several. */
  takeQueues: 100,
  /** Weight of a queue in a fair take from several. */
  takeWeight: 1000,
  /** Bytes of a selector, in UTF-8. */
  selectorBytes: 8192,
  /** Bytes of the reason of a failed try. */
  reasonBytes: 1024,
  /** The longest delay, lease or time to live, in milliseconds: ten years. */
  delayMs: 10 * 365 * 24 * 3600 * 1000,
  /** The last moment that can be a maturity: the end of the year 4999. Anything later is milliseconds by mistake. */
  matureAt: Date.UTC(5000, 0, 1) - 1,
} as const;
