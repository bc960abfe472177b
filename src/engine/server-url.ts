import { hasRawUserInfo, maskUrl } from '../util/mask.ts';

/** A TCP host, or a folder that holds a Unix socket (it begins with `/`). */
export interface Host {
  readonly host: string;
  readonly port: number;
}

/** The URL of a server in its parts, percent-decoded. What is missing is null. */
export interface ServerUrl {
  readonly scheme: string;
  readonly username: string | null;
  readonly password: string | null;
  /** Several are several addresses of one store. */
  readonly hosts: readonly Host[];
  /** What follows the hosts: a database. */
  readonly path: string | null;
  readonly parameters: Readonly<Record<string, string>>;
  /** The URL with its credentials masked and without parameters, for messages. */
  readonly shown: string;
}

/** How the URLs of an engine look. */
export interface UrlForm {
  readonly schemes: readonly string[];
  readonly defaultPort: number;
  /** For messages. */
  readonly example: string;
}

const FORM = /^([a-z]+):\/\/(?:([^/?#]*)@)?([^@/?#]*)(?:\/([^?#]*))?(?:\?([^#]*))?$/;
const HOST = /^(\[[0-9a-fA-F:.]+\]|[^:[\]]*)(?::(.*))?$/;

/**
 * Reads `scheme://[user[:password]@]host[:port][,host[:port]…][/path][?parameter=value&…]`. `new URL` cannot: it takes
 * one host.
 * @throws Error that says what is wrong, without the credentials
 */
export function parseServerUrl(url: string, { schemes, defaultPort, example }: UrlForm): ServerUrl {
  const [, scheme = '', userInfo = '', authority = '', path = '', query = ''] = FORM.exec(url) ?? [];
  // What looks like a host or a path may then be part of a password.
  if (!schemes.includes(scheme) || hasRawUserInfo(url)) {
    throw new Error(
      `${maskUrl(url)} is not a URL of this engine; write ${example}, and percent-encode the rest`,
    );
  }
  const shown = maskUrl(url).replace(/\?.*$/s, '');
  const decode = (text: string): string | null => decoded(text, shown);
  const colon = userInfo.indexOf(':');
  const parameters = Object.fromEntries(new URLSearchParams(query));
  return {
    scheme,
    username: decode(colon < 0 ? userInfo : userInfo.slice(0, colon)),
    password: colon < 0 ? null : decode(userInfo.slice(colon + 1)),
    hosts: authority.split(',').map((host) => parseHost(host, defaultPort, shown)),
    path: decode(path),
    parameters,
    shown,
  };
}

/** @throws Error that says what is wrong */
function parseHost(text: string, defaultPort: number, shown: string): Host {
  const [, host = null, port = ''] = HOST.exec(text) ?? [];
  if (host === null) throw new Error(`${shown}: "${text}" is not a host and port; write host:${defaultPort}`);
  const name = decoded(host.replace(/^\[|\]$/g, ''), shown) ?? 'localhost';
  return { host: name, port: parsePort(port, defaultPort, shown) };
}

/** @throws Error that says what is wrong */
export function parsePort(text: string, defaultPort: number, shown: string): number {
  if (text === '') return defaultPort;
  const port = Number(text);
  if (/^\d{1,5}$/.test(text) && port >= 1 && port <= 65_535) return port;
  throw new Error(`${shown}: "${text}" is not a port; write a number from 1 to 65535`);
}

function decoded(text: string, shown: string): string | null {
  if (text === '') return null;
  try {
    return decodeURIComponent(text);
  } catch {
    throw new Error(`${shown}: a % in the URL begins no escape; write %25 for a percent sign`);
  }
}
