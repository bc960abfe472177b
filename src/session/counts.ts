/** Numbers of one front end for `/metrics`. Those up to `stalled` are current, the others count from the start. */
export interface SessionCounts {
  /** Clients that are logged in. */
  sessions: number;
  /** Consumers of all sessions. */
  subscriptions: number;
  /** AMQP only: links in both directions, those of consumers included. */
  links: number;
  /** Reserved elements that were sent and are not settled. */
  unacknowledged: number;
  /** The windows of all subscriptions together. */
  window: number;
  /** Bytes that the kernel does not have yet. */
  outgoingBytes: number;
  /** Connections of which the kernel has not taken all of the last write. */
  stalled: number;
  connections: number;
  receivedBytes: number;
  frames: number;
  /** Elements sent to clients. */
  messages: number;
  /** Sessions that the server ended with an error. */
  errors: number;
}

export function zeroCounts(): SessionCounts {
  return {
    sessions: 0,
    subscriptions: 0,
    links: 0,
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
