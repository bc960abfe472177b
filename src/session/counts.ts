/**
 * Plain numbers of one front end for the metrics page. Those up to `stalled` are of now, the others since the
 * start.
 */
export interface SessionCounts {
  /** Clients that are logged in. */
  sessions: number;
  /** Consumers that go on. */
  subscriptions: number;
  /** AMQP only: links in both directions, those of consumers included. */
  links: number;
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
