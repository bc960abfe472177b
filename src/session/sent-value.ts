import { bytesOfText, textOfBytes } from '../util/byte-text.ts';

/**
 * A stored value as it is sent where text is UTF-8: bytes that came over HTTP and are not are taken for
 * ISO 8859-1. One character for each byte.
 */
export function sentValue(bytes: string): string {
  return textOfBytes(bytes) === null ? bytesOfText(bytes) : bytes;
}
