/**
 * Bounds of a single request (docs/operate/limits.md). They are not options: an engine's tables and a peer's header
 * buffers are sized for them. What an operator may want to change is in `config`.
 */
export const LIMITS = {
  /** Bytes of a queue, namespace, exchange or tid name after decoding. */
  nameBytes: 255,
  /** Characters of an element id or lease token that a client sends. */
  idLength: 64,
  /** Characters of one consumer group name. */
  groupLength: 64,
  /** Consumer groups of one element. */
  groups: 64,
  /**
   * Deliveries that one insert of several elements creates: one per element, on a stream one per group of each element.
   * The engine stores them in one step, during which it serves no other call: 10,000 elements with 64 groups took Redis
   * more than 4.5 s.
   */
  insertDeliveries: 100_000,
  /** Element headers of one element. */
  headerCount: 64,
  /** Bytes of all element headers of one element, names and values: peers fail at 16 KiB of response headers. */
  headerBytes: 8192,
  /** Characters of a content type or content encoding. */
  contentTypeLength: 255,
  /** Maximum of the initial tries of an insert, and of the tries after which elements are dead-lettered. */
  tries: 1_000_000,
  /**
   * Maximum of the configurable limits on a body and on a request with many elements. On every engine, a call that
   * stores, returns or moves this much meets its deadline. Redis is never sent a call of 64 MiB (`engine/calls.ts`).
   * PostgreSQL needs 13 ms to store each MiB and returns twice the bytes within its 3 s; above 256 MiB those exceed
   * V8's maximum string length, so that an element could be stored but never taken.
   */
  maxBodyLimit: 32 * 1024 * 1024,
  /** Elements of one take. */
  takeCount: 1000,
  /** Bytes of the bodies that one take returns: a thousand elements of 1 MB would otherwise be a reply of 1 GB. */
  takeBytes: 16 * 1024 * 1024,
  /** Queues of a joint take. */
  takeQueues: 100,
  /** Weight of a queue in a fair joint take. */
  takeWeight: 1000,
  /** Bytes of a selector, in UTF-8. */
  selectorBytes: 8192,
  /** Bytes of the reason of a failed try. */
  reasonBytes: 1024,
  /** The longest delay, lease or time to live, in milliseconds: ten years. */
  delayMs: 10 * 365 * 24 * 3600 * 1000,
  /** The latest maturity: the end of the year 4999. A later value is probably milliseconds given as seconds. */
  matureAt: Date.UTC(5000, 0, 1) - 1,
} as const;
