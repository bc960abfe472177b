import type { IconName } from './ui/icon.tsx';

interface ConsolePage {
  readonly to: string;
  readonly title: string;
  readonly icon: IconName;
  readonly key: string;
  /** First segments of the addresses that belong to the page. */
  readonly parts: readonly string[];
}

/** The pages of the navigation. `g` and then `key` opens a page. */
export const DESTINATIONS: readonly ConsolePage[] = [
  { to: '', title: 'Overview', icon: 'overview', key: 'o', parts: [''] },
  { to: 'queues', title: 'Queues', icon: 'queues', key: 'q', parts: ['queues', 'q'] },
  { to: 'dead-letters', title: 'Dead letters', icon: 'dead', key: 'd', parts: ['dead-letters'] },
  { to: 'exchanges', title: 'Exchanges', icon: 'exchange', key: 'x', parts: ['exchanges', 'x', 'x-new'] },
  { to: 'operations', title: 'Operations', icon: 'operations', key: 'p', parts: ['operations'] },
  { to: 'clients', title: 'Clients', icon: 'clients', key: 'c', parts: ['clients'] },
  { to: 'users', title: 'Users', icon: 'users', key: 'u', parts: ['users'] },
];
