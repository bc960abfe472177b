// Element headers are bytes on every wire. They are kept as HTTP gives them: a string in which each
// character stands for one byte (ISO 8859-1). What is meant as text is nearly always UTF-8; these functions go
// from one to the other, so that an element's header reads alike by whichever protocol it comes and goes.

// biome-ignore lint/suspicious/noControlCharactersInRegex: all of ASCII is meant
const ASCII = /^[\x00-\x7f]*$/;
const strictUtf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export function isAscii(text: string): boolean {
  return ASCII.test(text);
}

/** Text as the bytes of its UTF-8 form. */
export function bytesOfText(text: string): string {
  return isAscii(text) ? text : Buffer.from(text, 'utf8').toString('latin1');
}

/** Bytes as the text that they are in UTF-8; null if they are not UTF-8. */
export function textOfBytes(bytes: string): string | null {
  if (isAscii(bytes)) return bytes;
  try {
    return strictUtf8.decode(Buffer.from(bytes, 'latin1'));
  } catch {
    return null;
  }
}
