import { createHash } from 'node:crypto';
import type { BrokerLog } from '../broker/ports.ts';
import type { Declaration } from './declaration.ts';

/** Logs whose code an exchange runs from now on, by its hash. */
export function logSelectors(
  log: BrokerLog,
  {
    id,
    declaration,
    user,
  }: { readonly id: string; readonly declaration: Declaration; readonly user: string },
): void {
  for (const [destination, { selector }] of declaration.dst.entries()) {
    if (selector === undefined) continue;
    const sha256 = createHash('sha256').update(selector).digest('hex');
    log.info({ event: 'selector', user, exchange: id, destination, sha256 }, 'a selector was stored');
  }
}
