import { readFileSync } from 'node:fs';
import { type ConnectionOptions, getCACertificates, setDefaultCACertificates } from 'node:tls';
import { hasRawUserInfo, maskUrl } from '../util/mask.ts';
import { quote } from '../util/quote.ts';

/** Settings that exist only for tests; error messages do not list them. */
const FOR_TESTS: readonly string[] = ['testThread', 'givenTime'];

/** An engine's settings by name, from the parameters of its URL (strings) and from the configuration (any values). */
export class EngineSettings<Name extends string> {
  /** The engine's URL without credentials. */
  readonly #maskedUrl: string;
  readonly #values: Readonly<Record<string, unknown>>;

  /**
   * @param sources settings from several sources; for each name, the last value counts
   * @throws Error for an unknown name
   */
  constructor(
    maskedUrl: string,
    names: readonly Name[],
    ...sources: readonly Readonly<Record<string, unknown>>[]
  ) {
    this.#maskedUrl = maskedUrl;
    const entries = sources.flatMap((values) => Object.entries(values));
    this.#values = Object.fromEntries(entries.filter(([, value]) => value !== undefined));
    for (const name of Object.keys(this.#values)) {
      if (!(names as readonly string[]).includes(name)) {
        const known = names.filter((setting) => !FOR_TESTS.includes(setting)).join(', ');
        throw new Error(`${maskedUrl}: unknown setting ${quote(name)}; allowed: ${known}`);
      }
    }
  }

  /** The raw value; null: not set. */
  value(name: Name): unknown {
    return this.#values[name] ?? null;
  }

  string(name: Name): string | null {
    const value = this.value(name);
    if (value === null || typeof value === 'string') return value;
    // The value is not quoted, since it may be a password.
    throw this.error(name, 'must be a string');
  }

  integer(name: Name, min = 0): number | null {
    const value = this.value(name);
    if (value === null) return null;
    const number = typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : value;
    if (typeof number === 'number' && Number.isSafeInteger(number) && number >= min) return number;
    throw this.error(name, `must be a whole number from ${min}, not ${quote(value)}`);
  }

  boolean(name: Name): boolean | null {
    const value = this.value(name);
    if (value === null || typeof value === 'boolean') return value;
    if (value === 'true' || value === '1') return true;
    if (value === 'false' || value === '0') return false;
    throw this.error(name, `must be true or false, not ${quote(value)}`);
  }

  oneOf<T extends string>(name: Name, allowed: readonly T[]): T | null {
    const value = this.value(name);
    const found = allowed.find((option) => option === value);
    if (found !== undefined || value === null) return found ?? null;
    throw this.error(name, `must be one of ${allowed.join(', ')}, not ${quote(value)}`);
  }

  /** The contents of the file that the setting names; null: not set. @throws Error if the file cannot be read */
  file(name: Name): Buffer | null {
    const path = this.string(name);
    if (path === null) return null;
    try {
      return readFileSync(path);
    } catch (cause) {
      throw this.error(
        name,
        `names a file that cannot be read: ${path}; it must be a readable PEM file`,
        cause,
      );
    }
  }

  error(name: Name, problem: string, cause?: unknown): Error {
    return new Error(`${this.#maskedUrl}: setting "${name}" ${problem}`, { cause });
  }
}

/** A TCP host, or a folder that holds a Unix socket (it begins with `/`). */
export interface Host {
  readonly host: string;
  readonly port: number;
}

export function hostText({ host, port }: Host): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}

/** The percent-decoded parts of a server's URL. Missing parts are null. */
interface ServerUrl {
  readonly scheme: string;
  readonly username: string | null;
  readonly password: string | null;
  /** One or more addresses of the same store. */
  readonly hosts: readonly Host[];
  /** The part after the hosts: a database. */
  readonly path: string | null;
  readonly parameters: Readonly<Record<string, string>>;
  /** The URL for messages: credentials masked, without parameters. */
  readonly maskedUrl: string;
}

/** The URL syntax of an engine. */
interface UrlSyntax {
  readonly schemes: readonly string[];
  readonly defaultPort: number;
  /** For messages. */
  readonly example: string;
}

const SERVER_URL = /^([a-z]+):\/\/(?:([^/?#]*)@)?([^@/?#]*)(?:\/([^?#]*))?(?:\?([^#]*))?$/;
const HOST = /^(\[[0-9a-fA-F:.]+\]|[^:[\]]*)(?::(.*))?$/;

/**
 * Parses `scheme://[user[:password]@]host[:port][,host[:port]…][/path][?parameter=value&…]`. `new URL` accepts only one
 * host.
 * @throws Error that says what is wrong, without the credentials
 */
export function parseServerUrl(url: string, { schemes, defaultPort, example }: UrlSyntax): ServerUrl {
  const [, scheme = '', userInfo = '', authority = '', path = '', query = ''] = SERVER_URL.exec(url) ?? [];
  // Otherwise, parts of a password could be taken for a host or a path.
  if (!schemes.includes(scheme) || hasRawUserInfo(url)) {
    throw new Error(
      `${maskUrl(url)} is not a URL of this engine; write ${example}, and percent-encode special characters`,
    );
  }
  const maskedUrl = maskUrl(url).replace(/\?.*$/s, '');
  const decode = (text: string): string | null => decoded(text, maskedUrl);
  const colon = userInfo.indexOf(':');
  const parameters = Object.fromEntries(new URLSearchParams(query));
  return {
    scheme,
    username: decode(colon < 0 ? userInfo : userInfo.slice(0, colon)),
    password: colon < 0 ? null : decode(userInfo.slice(colon + 1)),
    hosts: authority.split(',').map((host) => parseHost(host, defaultPort, maskedUrl)),
    path: decode(path),
    parameters,
    maskedUrl,
  };
}

/** @throws Error that says what is wrong */
function parseHost(text: string, defaultPort: number, maskedUrl: string): Host {
  const [, host = null, port = ''] = HOST.exec(text) ?? [];
  if (host === null)
    throw new Error(`${maskedUrl}: ${quote(text)} is not a host and port; write host:${defaultPort}`);
  const name = decoded(host.replace(/^\[|\]$/g, ''), maskedUrl) ?? 'localhost';
  return { host: name, port: parsePort(port, defaultPort, maskedUrl) };
}

/** @throws Error that says what is wrong */
export function parsePort(text: string, defaultPort: number, maskedUrl: string): number {
  if (text === '') return defaultPort;
  const port = Number(text);
  if (/^\d{1,5}$/.test(text) && port >= 1 && port <= 65_535) return port;
  throw new Error(`${maskedUrl}: ${quote(text)} is not a port; write a number from 1 to 65535`);
}

function decoded(text: string, maskedUrl: string): string | null {
  if (text === '') return null;
  try {
    return decodeURIComponent(text);
  } catch {
    throw new Error(`${maskedUrl}: the URL contains a % that starts no escape; write %25 for a percent sign`);
  }
}

type TlsFiles = Pick<ConnectionOptions, 'ca' | 'cert' | 'key'>;

/**
 * Reads the PEM files that settings name. If no setting names a certificate authority, those of the system are trusted.
 * @throws Error naming the setting and the file
 */
export function readTlsFiles<Name extends string>(
  settings: EngineSettings<Name>,
  names: Readonly<Record<keyof TlsFiles, Name>>,
): TlsFiles {
  const [ca, cert, key] = [settings.file(names.ca), settings.file(names.cert), settings.file(names.key)];
  if (ca === null) trustSystemAuthorities();
  return { ...(ca !== null && { ca }), ...(cert !== null && { cert }), ...(key !== null && { key }) };
}

let trustsSystemAuthorities = false;

/**
 * Makes TLS clients of this process trust the system's certificate authorities in addition to Node's. This takes 100
 * ms, so it is done only for engines that use TLS and name no authority.
 */
function trustSystemAuthorities(): void {
  if (trustsSystemAuthorities) return;
  trustsSystemAuthorities = true;
  setDefaultCACertificates([...new Set([...getCACertificates('default'), ...getCACertificates('system')])]);
}

/** How to name TLS settings in hints. */
interface TlsNames {
  /** The setting that names a PEM file of authorities: `ca=FILE`. */
  readonly authority: string;
  /** Appended to the hint about a host name that is not in the certificate: an alternative to changing the host. */
  readonly name: string;
  /** How the URL of a server without TLS is written, and of one with TLS. */
  readonly without: string;
  readonly with: string;
}

const UNKNOWN_AUTHORITY =
  /self-signed certificate|unable to (get|verify)|unable to get (local )?issuer|certificate (is not trusted|chain too long)/i;
const NAME_MISMATCH = /altnames?|does not match certificate/i;
const EXPIRED_OR_EARLY = /certificate (has expired|is not yet valid)/i;
const SERVER_WITHOUT_TLS = /wrong version number|packet length too long|SSL routines|does not support SSL/i;
const SERVER_REQUIRES_TLS = /no (SSL )?encryption|SSL off|requires? (SSL|TLS)/i;
/** Node's advice in its error message; it is misleading here, because this program trusts the system's authorities. */
const NODE_ADVICE = /; if the root CA is installed locally.*$/s;

/** Appends a hint to the message of a connection error, after a semicolon; unchanged if TLS is not the cause. */
export function withTlsHint(message: string, names: TlsNames): string {
  const hint = hintFor(message, names);
  return hint === null ? message : `${message.replace(NODE_ADVICE, '')}; ${hint}`;
}

function hintFor(message: string, names: TlsNames): string | null {
  if (UNKNOWN_AUTHORITY.test(message)) {
    return `name the authority's PEM file by ${names.authority} in the URL, or install the authority on this system`;
  }
  if (NAME_MISMATCH.test(message)) return `use the host name of the certificate in the URL${names.name}`;
  if (EXPIRED_OR_EARLY.test(message)) return "renew the server's certificate, or set the clock";
  if (SERVER_WITHOUT_TLS.test(message)) return `if this port does not use TLS, write ${names.without}`;
  if (SERVER_REQUIRES_TLS.test(message)) return `the server expects TLS: write ${names.with}`;
  return null;
}
