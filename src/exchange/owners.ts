import type { BrokerLog } from '../broker/ports.ts';
import type { Definitions, JsonValue } from '../engine/definitions.ts';
import { QuaysideError } from '../model/errors.ts';
import { quote } from '../util/quote.ts';
import { type StoredExchange, toStored, toValue } from './stored.ts';

/** What a user may do, as far as exchanges need it. */
interface OwnerRights {
  may(right: 'exchange' | 'read' | 'write', namespace: string): boolean;
}

/** The rights of a user by name; null: there is no such user. */
export type FindOwner = (name: string) => OwnerRights | null;

/** Why an exchange may not run any more in the name of its owner; null if it may. Names no namespace. */
export function lostOwner(
  { owner, declaration: { src, dst } }: Pick<StoredExchange, 'owner' | 'declaration'>,
  find: FindOwner,
): string | null {
  if (owner === '') return null;
  const rights = find(owner);
  if (rights === null) {
    return `User ${quote(owner)}, who declared this exchange, is no longer a user. A user who starts it becomes its owner.`;
  }
  const hasAll =
    rights.may('exchange', src.ns) &&
    rights.may('read', src.ns) &&
    dst.every(({ ns }) => rights.may('write', ns));
  if (hasAll) return null;
  return `User ${quote(owner)}, who declared this exchange, has lost a right that it needs.`;
}

/**
 * Stops the stored exchanges whose owner may not run them any more, with the reason as `lastError`. For users who were
 * removed while the server was stopped, so before any exchange runs.
 */
export async function stopUnowned(
  stores: readonly Definitions[],
  { owners, log }: { readonly owners: FindOwner; readonly log: BrokerLog },
): Promise<void> {
  for (const definitions of stores) {
    for (const { key, value, version } of await definitions.list('exchange')) {
      const stored = readable(value);
      const lastError = stored === null || stored.stopped === true ? null : lostOwner(stored, owners);
      if (stored === null || lastError === null) continue;
      log.warn({ exchange: key, lastError }, 'an exchange was stopped: its owner may not run it any more');
      try {
        await definitions.put('exchange', key, toValue({ ...stored, stopped: true, lastError }), version);
      } catch (error) {
        // Another node changed it just now.
        if (!(error instanceof QuaysideError && error.code === 'definition-conflict')) throw error;
      }
    }
  }
}

function readable(value: JsonValue): StoredExchange | null {
  try {
    return toStored(value);
  } catch {
    return null;
  }
}
