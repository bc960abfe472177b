import { invalidParameter } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import { quote } from '../util/quote.ts';
import type { Head } from './head.ts';

const WAIT = /(?:^|,)\s*wait\s*=\s*"?([^",;\s]*)"?/i;
const SECONDS = /^[0-9]{1,9}$/;

/** `Prefer: wait=N` (RFC 7240) in ms; other preferences are left alone, as the RFC asks. */
export function preferredWait({ prefer }: Head): number | null {
  const wait = prefer === null ? null : WAIT.exec(prefer);
  if (wait === null) return null;
  const value = wait[1] ?? '';
  const ms = SECONDS.test(value) ? Number(value) * 1000 : Number.NaN;
  if (ms <= LIMITS.delayMs) return ms;
  throw invalidParameter(
    'prefer',
    `Prefer: wait=${quote(value)} is not allowed. Give whole seconds from 0 to ${LIMITS.delayMs / 1000}.`,
  );
}

const REPRESENTATION = /(?:^|,)\s*return\s*=\s*"?representation"?\s*(?:[,;]|$)/i;

/** `Prefer: return=representation` (RFC 7240). */
export function prefersRepresentation({ prefer }: Head): boolean {
  return prefer !== null && REPRESENTATION.test(prefer);
}
