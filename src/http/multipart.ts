import { randomBytes } from 'node:crypto';
import type { Delivery } from '../model/element.ts';
import { pushElementHeaders } from './element-headers.ts';

/** The media type of bodies that are several elements, byte for byte (RFC 2046). */
export const MULTIPART = 'multipart/mixed';

/** A boundary that no body can have been made to contain: 128 random bits. */
export function newBoundary(): string {
  return `quayside-${randomBytes(16).toString('base64url')}`;
}

/** The content type of a body with that boundary. */
export function multipartType(boundary: string): string {
  return `${MULTIPART}; boundary="${boundary}"`;
}

/**
 * A delivery as one part: the headers and the body that the response to a get has. A body of `multipart/mixed` is parts one after
 * the other, and {@link multipartEnd}.
 * @param more flat headers of the part in addition; each character of a value is one byte
 */
export function elementPart(boundary: string, delivery: Delivery, more: readonly string[] = []): Buffer {
  const headers = [...more];
  pushElementHeaders(headers, delivery);
  let head = `--${boundary}\r\n`;
  for (let at = 0; at + 1 < headers.length; at += 2) head += `${headers[at]}: ${headers[at + 1]}\r\n`;
  head += '\r\n';
  const { body } = delivery;
  const part = Buffer.allocUnsafe(head.length + body.byteLength + 2);
  part.write(head, 'latin1');
  part.set(body, head.length);
  part.write('\r\n', head.length + body.byteLength, 'latin1');
  return part;
}

/** What follows the last part. */
export function multipartEnd(boundary: string): Buffer {
  return Buffer.from(`--${boundary}--\r\n`, 'latin1');
}
