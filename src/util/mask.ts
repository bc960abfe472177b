/**
 * Masks secrets in all output: records, logs, `--print-config`.
 * If a string is ambiguous, more is masked than needed, never less.
 */
export const MASK = '***';

/** Names whose values are secrets. The word may be anywhere in the name: `sslpassword`, `apiKey`, `authToken`. */
const SECRET_NAME = /pass|pwd|secret|token|key|auth|credential/i;

const URL_PARTS = /^([a-z][a-z0-9+.-]*:)(\/\/)?([\s\S]*)$/i;
const URL_MARK = '://';
const PARAMETER = /([?&;#])([^=?&;#]*)=([^&;#]*)/g;

/** Deeper than any option is nested; also ends the recursion for a value that contains itself. */
const MAX_DEPTH = 12;

/**
 * Masks the user info and the values of secret parameters of a URL. Also handles what `new URL` cannot parse: several
 * hosts, no host, sockets, passwords with raw reserved characters.
 */
export function maskUrl(url: string): string {
  const parts = URL_PARTS.exec(url);
  if (parts === null) return maskParameters(url);
  const [, scheme = '', slashes = '', rest = ''] = parts;
  if (slashes !== '') return scheme + slashes + maskAfterSlashes(rest);
  return rest.includes('@') ? scheme + MASK : scheme + maskParameters(rest);
}

function maskAfterSlashes(rest: string): string {
  const authorityEnd = rest.search(/[/?#]/);
  const authority = authorityEnd < 0 ? rest : rest.slice(0, authorityEnd);
  const tail = authorityEnd < 0 ? '' : rest.slice(authorityEnd);
  // An `@` after the authority may end a password with a raw `/`, `?` or `#`: nothing after the scheme is safe.
  if (tail.includes('@')) return MASK;
  const at = authority.lastIndexOf('@');
  const masked = at < 0 ? authority : `${MASK}@${authority.slice(at + 1)}`;
  return masked + maskParameters(tail);
}

/**
 * Whether the URL has an `@` after its authority. It may end a password with a raw `/`, `?` or `#`, so that an apparent
 * host, port or path may be part of the password. No part of such a URL may be shown, and the URL cannot be used.
 */
export function hasRawUserInfo(url: string): boolean {
  const [, scheme = '', authority = ''] = URL_PARTS.exec(url) ?? [];
  if (scheme === '' || authority === '') return false;
  const end = url.slice(scheme.length + 2).search(/[/?#]/);
  return end !== -1 && url.includes('@', scheme.length + 2 + end);
}

/**
 * Masks every URL in a string, such as an error message. Takes time linear in the length, because clients send strings
 * that are logged.
 */
export function maskUrls(text: string): string {
  return text.includes(URL_MARK) ? text.replace(/\S+/g, maskRun) : text;
}

/**
 * Masks the URLs in a string without whitespace. A URL ends at a quote or an angle bracket, but not before the last
 * `@`, since these characters may be part of a raw password. This masks more than needed if an address follows a quoted
 * URL.
 */
function maskRun(text: string): string {
  const delimiter = /["'<>`]/g;
  const afterAt = text.lastIndexOf('@') + 1;
  let masked = '';
  let from = 0;
  for (;;) {
    const markAt = text.indexOf(URL_MARK, from);
    if (markAt === -1) return masked + text.slice(from);
    const start = markAt + URL_MARK.length;
    delimiter.lastIndex = Math.max(start, afterAt);
    const end = delimiter.exec(text)?.index ?? text.length;
    masked += text.slice(from, start) + maskAfterSlashes(text.slice(start, end));
    from = end;
  }
}

/** Copies plain data, masking the values of secret names and all URLs. Functions are left out. */
export function maskDeep(value: unknown, depth = 0): unknown {
  if (typeof value === 'string') return maskUrls(value);
  // A `toJSON` would restore what is masked here.
  if (typeof value === 'function') return undefined;
  if (typeof value !== 'object' || value === null) return value;
  if (depth >= MAX_DEPTH) return MASK;
  if (Array.isArray(value)) return value.map((item) => maskDeep(item, depth + 1));
  return Object.fromEntries(
    Object.entries(value).map(([name, inner]) => [
      maskUrls(name),
      isSecretName(name) && inner !== null ? MASK : maskDeep(inner, depth + 1),
    ]),
  );
}

function isSecretName(name: string): boolean {
  return SECRET_NAME.test(name);
}

function maskParameters(text: string): string {
  return text.replace(PARAMETER, (whole, mark: string, name: string) =>
    isSecretName(decoded(name)) ? `${mark}${name}=${MASK}` : whole,
  );
}

function decoded(name: string): string {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}
