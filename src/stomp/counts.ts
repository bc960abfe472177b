/** Plain numbers for the metrics page. The first six are of now, the others since the start. */
export interface StompCounts {
  /** Clients that are logged in. */
  sessions: number;
  subscriptions: number;
  /** Elements handed out under a lease and not settled. */
  unacknowledged: number;
  /** The windows of all subscriptions together. */
  window: number;
  /** Bytes that wait for clients to take them. */
  outgoingBytes: number;
  /** Clients that have not taken all of the last write yet. */
  stalled: number;
  connections: number;
  receivedBytes: number;
  frames: number;
  /** MESSAGE frames. */
  messages: number;
  errors: number;
}

export function zeroCounts(): StompCounts {
  return {
    sessions: 0,
    subscriptions: 0,
    unacknowledged: 0,
    window: 0,
    outgoingBytes: 0,
    stalled: 0,
    connections: 0,
    receivedBytes: 0,
    frames: 0,
    messages: 0,
    errors: 0,
  };
}
