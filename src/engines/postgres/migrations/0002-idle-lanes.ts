/**
 * Lanes are forgotten once nobody needs them: `idle_from` is the moment at which housekeeping found one without
 * deliveries, and null again as soon as a node asks for it. See `lane-life.ts`.
 */
export const IDLE_LANES = 'ALTER TABLE lane ADD COLUMN idle_from bigint';
