import type { Delivery } from 'rhea';
import type { IncomingLink } from './incoming-link.ts';
import type { OutgoingLink } from './outgoing-link.ts';

/** A message of a client, on its way to the engine. */
export interface SentTicket {
  readonly link: IncomingLink;
  readonly delivery: Delivery;
}

/** A delivery that a client gave an outcome. */
export interface HeldTicket {
  readonly link: OutgoingLink;
  readonly delivery: Delivery;
}
