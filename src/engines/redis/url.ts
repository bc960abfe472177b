import type { Address } from './settings.ts';

export interface ParsedUrl {
  readonly secure: boolean;
  readonly username: string | null;
  readonly password: string | null;
  readonly addresses: readonly Address[];
  readonly db: number;
  readonly query: ReadonlyMap<string, string>;
}

const URL_PARTS = /^(rediss?):\/\/(?:([^@/?#]*)@)?([^/?#]*)(?:\/([^?#]*))?(?:\?([^#]*))?$/;
const HOST = /^(\[[0-9a-fA-F:.]+\]|[^:[\]]+)(?::(\d{1,5}))?$/;
const DEFAULT_PORT = 6379;

/**
 * `redis://[user:password@]host[:port][,host[:port]…][/db][?setting=value&…]`, `rediss:` for TLS. Several
 * hosts are the nodes of a cluster, or Sentinels; `new URL` does not take them.
 * @param shown the URL without credentials, for messages
 * @throws Error that says what is wrong
 */
export function parseUrl(url: string, shown: string): ParsedUrl {
  const parts = URL_PARTS.exec(url);
  if (parts === null)
    throw new Error(`${shown}: write redis://host:port, or redis://user:password@host:port`);
  const [, scheme = '', user, hosts = '', db = '', query = ''] = parts;
  const [username = '', ...password] = (user ?? '').split(':');
  return {
    secure: scheme === 'rediss',
    username: username === '' ? null : decoded(username, shown),
    password: password.length === 0 ? null : decoded(password.join(':'), shown),
    addresses: hosts.split(',').map((host) => parseHost(host, shown)),
    db: parseDb(db, shown),
    query: new Map(new URLSearchParams(query)),
  };
}

function parseHost(text: string, shown: string): Address {
  // Part of a password, then: it must not be shown.
  if (text.includes('@')) throw new Error(`${shown}: write an @ in the password as %40`);
  const [, host = '', port] = HOST.exec(text) ?? [];
  const number = port === undefined ? DEFAULT_PORT : Number(port);
  if (host === '' || number === 0 || number > 65_535) {
    throw new Error(`${shown}: "${text}" is no host and port; write host:6379`);
  }
  return { host: host.replace(/^\[|\]$/g, ''), port: number };
}

function parseDb(text: string, shown: string): number {
  if (text === '') return 0;
  if (!/^\d{1,5}$/.test(text))
    throw new Error(`${shown}: "/${text}" is no database number; write /0 or nothing`);
  return Number(text);
}

function decoded(text: string, shown: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new Error(`${shown}: the user or password is not percent-encoded; write % as %25`);
  }
}
