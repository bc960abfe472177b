/**
 * What an error reply of Redis means. None of them changed anything, but for `fault`.
 *
 * - `moved`, `ask`: another node of the cluster has the slot.
 * - `wait`: not now; the same node may do it in a moment.
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
  CLUSTERDOWN: 'wait',
  LOADING: 'wait',
  BUSY: 'wait',
  MASTERDOWN: 'wait',
  NOREPLICAS: 'wait',
  MISCONF: 'wait',
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
