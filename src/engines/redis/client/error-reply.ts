/**
 * What an error reply of Redis means. Only with a `fault` may something have been changed.
 *
 * - `moved`, `ask`: another node of the cluster has the slot.
 * - `wait`: keys of the call are on two nodes, while their slot moves; other slots are served as usual.
 * - `unavailable`: the server can serve no lease now; it may in a moment.
 * - `replica`: it is not a master any more.
 * - `no-library`: our functions are missing, as after a restart without data.
 * - `full`: out of memory.
 * - `late`: the call arrived long after it was sent. `stale`: the client has made a later call since.
 * - `denied`: the login lacks a right.
 * - `fault`: anything else, such as an error inside a function: what it changed before stays.
 */
export type ErrorKind =
  | 'moved'
  | 'ask'
  | 'wait'
  | 'unavailable'
  | 'replica'
  | 'no-library'
  | 'full'
  | 'late'
  | 'stale'
  | 'denied'
  | 'fault';

const BY_CODE: Readonly<Record<string, ErrorKind>> = {
  MOVED: 'moved',
  ASK: 'ask',
  TRYAGAIN: 'wait',
  CLUSTERDOWN: 'unavailable',
  LOADING: 'unavailable',
  BUSY: 'unavailable',
  MASTERDOWN: 'unavailable',
  NOREPLICAS: 'unavailable',
  MISCONF: 'unavailable',
  READONLY: 'replica',
  OOM: 'full',
  LATE: 'late',
  STALE: 'stale',
  NOAUTH: 'denied',
  WRONGPASS: 'denied',
  NOPERM: 'denied',
};

export function errorKindOf(message: string): ErrorKind {
  if (message.startsWith('ERR Function not found')) return 'no-library';
  const code = message.slice(0, message.search(/[ ]|$/));
  return BY_CODE[code] ?? 'fault';
}
