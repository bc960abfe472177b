import type { Usage } from '../../engine/storage.ts';
import type { Commands } from './client/commands.ts';
import type { Keys } from './keys.ts';
import type { Registry } from './registry.ts';

export interface UsageParts {
  readonly registry: Registry;
  readonly commands: Commands;
  readonly keys: Keys;
}

/** Queues asked in one go. */
const AT_ONCE = 200;

/** Waiting and reserved deliveries of all queues, by the order of members in their sorted sets; see `library/values.lua`. */
export async function usage({ registry, commands, keys }: UsageParts, ns: string): Promise<Usage> {
  const names = await registry.names(ns);
  let elements = 0;
  for (let from = 0; from < names.length; from += AT_ONCE) {
    const counts = await Promise.all(
      names.slice(from, from + AT_ONCE).flatMap((name) => {
        const { order } = keys.queue({ ns, name });
        return [
          commands.read(order, 'ZLEXCOUNT', [order, '[w', '(x']),
          commands.read(order, 'ZLEXCOUNT', [order, '[l', '(m']),
        ];
      }),
    );
    for (const count of counts) elements += Number(count);
  }
  return { elements, bytes: null };
}
