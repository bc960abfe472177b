import type { Delivery } from '../model/element.ts';
import { ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { ORIGIN_ID } from '../model/service-headers.ts';

/**
 * The headers that describe an element, flat: those of the response to a get (spec 2.1), and of a part of `multipart/mixed`.
 * Each character of a value is one byte.
 */
export function pushElementHeaders(headers: string[], delivery: Delivery): void {
  const { body, contentType, contentEncoding, headers: own, lease } = delivery;
  headers.push('content-type', contentType ?? 'application/octet-stream');
  headers.push('content-length', String(body.byteLength));
  if (contentEncoding !== null) headers.push('content-encoding', contentEncoding);
  headers.push('x-ks-id', delivery.id, 'x-ks-tries', String(delivery.tries));
  headers.push('x-ks-mature', new Date(delivery.matureAt).toISOString());
  if (lease !== null) {
    headers.push('x-ks-lease', lease.token, 'x-ks-lease-until', new Date(lease.until).toISOString());
  }
  for (let at = 0; at + 1 < own.length; at += 2) {
    const name = own[at] as string;
    headers.push(ELEMENT_HEADER_PREFIX + name, own[at + 1] as string);
    if (name === ORIGIN_ID) headers.push(name, own[at + 1] as string);
  }
}

/** What {@link pushElementHeaders} gives whether or not the element is reserved, for the documents; what differs is given by the route. */
export const ELEMENT_HEADER_NOTES = [
  { name: 'x-ks-hdr-*', description: 'Its element headers.' },
  { name: 'x-ks-origin-id', description: 'Of a dead letter: the first id of the element.' },
  { name: 'content-encoding', description: 'As it was inserted, where it was.' },
] as const;
