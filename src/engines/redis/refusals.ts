/**
 * What an error reply of Redis means. None of them changed anything, but for `fault`.
 *
 * - `moved`, `ask`: another node of the cluster has the slot.
 * - `wait`: keys of the call are on two nodes, as their slot moves; other slots are served as usual.
 * - `away`: the node can serve no lease now; it may in a moment.
 * - `replica`: the master that we knew is one no more.
 * - `no-library`: our functions are not there, as after a restart without data.
 * - `full`: out of memory.
 * - `late`: the call came long after it was sent. `stale`: the client has made a later call since.
 * - `denied`: the login lacks a right.
 * - `fault`: anything else, such as an error inside a function: what was done until then is done.
 */
export type Refusal =
  | 'moved'
  | 'ask'
  | 'wait'
  | 'away'
  | 'replica'
  | 'no-library'
  | 'full'
  | 'late'
  | 'stale'
  | 'denied'
  | 'fault';

const BY_CODE: Readonly<Record<string, Refusal>> = {
  MOVED: 'moved',
  ASK: 'ask',
  TRYAGAIN: 'wait',
  CLUSTERDOWN: 'away',
  LOADING: 'away',
  BUSY: 'away',
  MASTERDOWN: 'away',
  NOREPLICAS: 'away',
  MISCONF: 'away',
  READONLY: 'replica',
  OOM: 'full',
  LATE: 'late',
  STALE: 'stale',
  NOAUTH: 'denied',
  WRONGPASS: 'denied',
  NOPERM: 'denied',
};

export function refusalOf(message: string): Refusal {
  if (message.startsWith('ERR Function not found')) return 'no-library';
  const code = message.slice(0, message.search(/[ ]|$/));
  return BY_CODE[code] ?? 'fault';
}
