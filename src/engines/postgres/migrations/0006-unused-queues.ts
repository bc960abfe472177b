/**
 * Queues are forgotten once they are unused: `idle_from` is the moment at which housekeeping found one that holds nothing,
 * and null again as soon as a node uses it. See `lane-life.ts`.
 */
export const UNUSED_QUEUES = 'ALTER TABLE queue ADD COLUMN idle_from bigint';
