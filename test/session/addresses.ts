/** The AMQP address of a queue. */
export function addressOf(queue: string, ns = 'N'): string {
  return `${encodeURIComponent(ns)}/${encodeURIComponent(queue)}`;
}

/** The STOMP destination of a queue. */
export function destination(queue: string, ns = 'N'): string {
  return `/q/${encodeURIComponent(ns)}/${encodeURIComponent(queue)}`;
}
