/**
 * Decodes bytes that must be UTF-8, without a byte order mark. Replaces no invalid bytes, which would silently change
 * names and passwords, but throws an error with the code {@link NOT_UTF8}.
 */
export const UTF8 = new TextDecoder('utf-8', { fatal: true });

export const NOT_UTF8 = 'ERR_ENCODING_INVALID_ENCODED_DATA';
