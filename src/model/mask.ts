/**
 * Hides secrets in whatever is shown: records, logs, `--print-config` (reliability, S12).
 * Where a text is ambiguous, more is hidden than needed, never less.
 */
export const MASK = '***';

/** Names whose values are secrets, wherever the word stands in them: `sslpassword`, `apiKey`, `authToken`. */
const SECRET_NAME = /pass|pwd|secret|token|key|auth|credential/i;

const URL_PARTS = /^([a-z][a-z0-9+.-]*:)(\/\/)?([\s\S]*)$/i;
const URL_IN_TEXT = /[a-z][a-z0-9+.-]*:\/\/[^\s"'<>`]+/gi;
const PARAMETER = /([?&;#])([^=?&;#]*)=([^&;#]*)/g;

/** Deeper than any option reaches; also what ends a value that contains itself. */
const DEEPEST = 12;

/**
 * A URL without its user info and without the values of secret parameters. Made for what `new URL` cannot
 * parse as well: several hosts, no host, sockets, passwords with raw reserved characters.
 */
export function maskUrl(url: string): string {
  const parts = URL_PARTS.exec(url);
  if (parts === null) return maskParameters(url);
  const [, scheme = '', slashes = '', rest = ''] = parts;
  if (slashes === '') return rest.includes('@') ? scheme + MASK : scheme + maskParameters(rest);
  const authorityEnd = rest.search(/[/?#]/);
  const authority = authorityEnd < 0 ? rest : rest.slice(0, authorityEnd);
  const tail = authorityEnd < 0 ? '' : rest.slice(authorityEnd);
  // An `@` after the authority may end a password with a raw `/`, `?` or `#`: nothing after the scheme is sure.
  if (tail.includes('@')) return scheme + slashes + MASK;
  const at = authority.lastIndexOf('@');
  const shown = at < 0 ? authority : `${MASK}@${authority.slice(at + 1)}`;
  return scheme + slashes + shown + maskParameters(tail);
}

/**
 * Whether an `@` stands after the authority: it may end a password with a raw `/`, `?` or `#`, so that what looks like
 * a host, a port or a path may be part of it. Nothing of such a URL may be shown, and it cannot be used.
 */
export function hasRawUserInfo(url: string): boolean {
  const [, scheme = '', authority = ''] = URL_PARTS.exec(url) ?? [];
  return scheme !== '' && authority === '//' && /[/?#].*@/s.test(url.slice(scheme.length + 2));
}

/** A text, such as an error's message, with every URL in it masked. */
export function maskText(text: string): string {
  return text.includes('://') ? text.replace(URL_IN_TEXT, maskUrl) : text;
}

/** A copy of plain data in which values under secret names, and URLs anywhere, are masked. */
export function maskDeep(value: unknown, depth = 0): unknown {
  if (typeof value === 'string') return maskText(value);
  if (typeof value !== 'object' || value === null) return value;
  if (depth >= DEEPEST) return MASK;
  if (Array.isArray(value)) return value.map((item) => maskDeep(item, depth + 1));
  return Object.fromEntries(
    Object.entries(value).map(([name, inner]) => [
      name,
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
