/** A TCP host, or a folder that holds a Unix socket (it begins with `/`). */
export interface Host {
  readonly host: string;
  readonly port: number;
}

/** A PostgreSQL URL in its parts. */
export interface Target {
  readonly hosts: readonly Host[];
  readonly user: string | undefined;
  readonly password: string | undefined;
  readonly database: string | undefined;
  /** The URL's parameters, such as `sslmode`. */
  readonly parameters: ReadonlyMap<string, string>;
  /** The address without user and password, for messages. */
  readonly shown: string;
}

const DEFAULT_PORT = 5432;
const FORM = /^postgres(?:ql)?:\/\/(?:([^/?#]*)@)?([^@/?#]*)(?:\/([^?#]*))?(?:\?([^#]*))?$/;
const PARAMETERS = new Set([
  'sslmode',
  'sslrootcert',
  'sslcert',
  'sslkey',
  'host',
  'port',
  'schema',
  'synchronousCommit',
]);

/**
 * Reads `postgres://user:password@host:port,host:port/database?sslmode=…`, the form that libpq knows.
 * Several hosts are one database under several addresses; `new URL` cannot read them, hence this parser.
 * A folder in the parameter `host` names a Unix socket.
 * @throws Error that does not repeat the URL's user info
 */
export function parseUrl(url: string): Target {
  const parts = FORM.exec(url);
  if (parts === null) {
    throw new Error(
      'this is no PostgreSQL URL; write postgres://user:password@host:port/database, and percent-encode the rest',
    );
  }
  const [, userInfo = '', authority = '', path = '', query = ''] = parts;
  const parameters = readParameters(query);
  const hosts = readHosts(parameters.get('host') ?? authority, parameters.get('port'));
  const database = decode(path);
  const shown = `postgres://${hosts.map(({ host, port }) => `${host}:${port}`).join(',')}/${database ?? ''}`;
  const colon = userInfo.indexOf(':');
  return {
    hosts,
    user: decode(colon < 0 ? userInfo : userInfo.slice(0, colon)),
    password: colon < 0 ? undefined : decode(userInfo.slice(colon + 1)),
    database,
    parameters,
    shown,
  };
}

function readParameters(query: string): Map<string, string> {
  const parameters = new Map(new URLSearchParams(query));
  for (const name of parameters.keys()) {
    if (!PARAMETERS.has(name)) {
      throw new Error(`the URL has an unknown parameter "${name}"; known are ${[...PARAMETERS].join(', ')}`);
    }
  }
  return parameters;
}

function readHosts(authority: string, portParameter: string | undefined): Host[] {
  if (authority.startsWith('/')) return [{ host: authority, port: readPort(portParameter) }];
  return authority.split(',').map((one) => {
    const [, host = '', port] = /^(\[[^\]]*\]|[^:]*)(?::(.*))?$/.exec(one) ?? [];
    const name = decode(host.replace(/^\[|\]$/g, '')) ?? 'localhost';
    return { host: name, port: readPort(port ?? portParameter) };
  });
}

function readPort(text: string | undefined): number {
  if (text === undefined || text === '') return DEFAULT_PORT;
  const port = Number(text);
  if (!/^\d{1,5}$/.test(text) || port < 1 || port > 65_535) {
    throw new Error('the port of the URL is none; give a number from 1 to 65535');
  }
  return port;
}

function decode(text: string): string | undefined {
  if (text === '') return undefined;
  try {
    return decodeURIComponent(text);
  } catch {
    throw new Error('the URL has a % that begins no escape; write %25 for a percent sign');
  }
}
