import type { Config } from '../config/options.ts';
import { LOCAL_SIGNALS } from './engines.ts';
import { hasConfiguredUsers } from './users.ts';

/** What to warn of at the start if other nodes can share namespaces, but not the users. */
export function sharedUsersWarnings(config: Config): string[] {
  if (hasConfiguredUsers(config)) return [];
  const shared = Object.entries(config.namespaces)
    .filter(([, { url, signaller }]) => !url.startsWith('sqlite:') && signaller?.url !== LOCAL_SIGNALS)
    .map(([name]) => name);
  if (shared.length === 0) return [];
  return [
    `other nodes can share the engine of ${shared.join(', ')}, but http.users names nobody: each node makes an administrator of its own; name the users in the configuration of all nodes`,
  ];
}
