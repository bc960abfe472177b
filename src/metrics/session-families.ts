import type { SessionCounts } from '../session/server.ts';
import type { Family } from './family.ts';

const FAMILIES: readonly (Omit<Family, 'samples'> & { readonly of: keyof SessionCounts })[] = [
  { of: 'sessions', name: 'quayside_sessions', type: 'gauge', help: 'Clients that are logged in.' },
  {
    of: 'subscriptions',
    name: 'quayside_subscriptions',
    type: 'gauge',
    help: 'Consumers of sessions that go on until they are ended.',
  },
  {
    of: 'links',
    name: 'quayside_links',
    type: 'gauge',
    help: 'Links of AMQP clients, by which they send or receive.',
  },
  {
    of: 'unacknowledged',
    name: 'quayside_unacknowledged_elements',
    type: 'gauge',
    help: 'Elements that clients hold and have not settled.',
  },
  {
    of: 'window',
    name: 'quayside_subscription_window_elements',
    type: 'gauge',
    help: 'Elements that clients may hold, all windows together.',
  },
  {
    of: 'outgoingBytes',
    name: 'quayside_session_outgoing_bytes',
    type: 'gauge',
    help: 'Bytes that wait for clients to take them.',
  },
  {
    of: 'stalled',
    name: 'quayside_sessions_stalled',
    type: 'gauge',
    help: 'Clients that have not taken all of the last write yet.',
  },
  {
    of: 'connections',
    name: 'quayside_session_connections_total',
    type: 'counter',
    help: 'Connections that were taken, those without a login included.',
  },
  {
    of: 'receivedBytes',
    name: 'quayside_session_received_bytes_total',
    type: 'counter',
    help: 'Bytes that came from clients.',
  },
  {
    of: 'frames',
    name: 'quayside_session_frames_total',
    type: 'counter',
    help: 'Frames that came from clients.',
  },
  {
    of: 'messages',
    name: 'quayside_session_messages_total',
    type: 'counter',
    help: 'Elements that were sent to clients.',
  },
  {
    of: 'errors',
    name: 'quayside_session_errors_total',
    type: 'counter',
    help: 'Sessions that the server ended with an error.',
  },
];

/** One sample per protocol that is on; a protocol that is off has none. */
export function sessionFamilies(counts: ReadonlyMap<string, SessionCounts>): Family[] {
  return FAMILIES.map(({ of, ...family }) => ({
    ...family,
    samples: [...counts].map(([protocol, one]) => ({ labels: { protocol }, value: one[of] })),
  }));
}
