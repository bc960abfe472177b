import type { ConnectionOptions } from 'node:tls';
import type { EngineOptions } from '../../engine/engine.ts';
import { EngineSettings, type Host, parsePort, parseServerUrl, readTlsFiles } from '../../engine/settings.ts';

/** How much a commit waits for, as PostgreSQL's own setting of that name has it. */
const SYNCHRONOUS_COMMITS = ['on', 'off', 'local', 'remote_write', 'remote_apply'] as const;
type SynchronousCommit = (typeof SYNCHRONOUS_COMMITS)[number];

const SSL_MODES = ['disable', 'require', 'verify-ca', 'verify-full'] as const;

/** The engine's URL and own settings, checked and with their defaults (`docs/engines/postgres.md`). */
export interface Settings {
  /** Tried in turn at each connect. */
  readonly hosts: readonly Host[];
  readonly user: string | undefined;
  readonly password: string | undefined;
  readonly database: string | undefined;
  readonly tls: ConnectionOptions | false;
  /** All tables are in this schema; two engines with two schemas know nothing of each other. */
  readonly schema: string;
  /** `off` loses the last fraction of a second of acknowledged changes when the server's machine fails. */
  readonly synchronousCommit: SynchronousCommit;
  /** The address without user and password, for messages. */
  readonly shown: string;
}

const URL_FORM = {
  schemes: ['postgres', 'postgresql'],
  defaultPort: 5432,
  example: 'postgres://user:password@host:port/database',
};
/** The URL's parameters, as libpq names them, and the engine's own. */
const NAMES = [
  'sslmode',
  'sslrootcert',
  'sslcert',
  'sslkey',
  'host',
  'port',
  'schema',
  'synchronousCommit',
] as const;
type Given = EngineSettings<(typeof NAMES)[number]>;
const SCHEMA_NAME = /^[a-z_][a-z0-9_]{0,39}$/;

/** @throws Error naming the setting and what would be right, for the composition root to report */
export function readSettings({ url, settings }: EngineOptions): Settings {
  const { username, password, path, parameters, shown, hosts: named } = parseServerUrl(url, URL_FORM);
  const given: Given = new EngineSettings(shown, NAMES, parameters, settings);
  const hosts = hostsOf(given, named, shown);
  const schema = given.text('schema') ?? 'quayside';
  if (!SCHEMA_NAME.test(schema)) {
    throw given.wrong(
      'schema',
      'must be 1 to 40 lower-case letters, digits and underscores, and not begin with a digit',
    );
  }
  return {
    hosts,
    user: username ?? undefined,
    password: password ?? undefined,
    database: path ?? undefined,
    tls: readTls(given, hosts),
    schema,
    synchronousCommit: given.oneOf('synchronousCommit', SYNCHRONOUS_COMMITS) ?? 'on',
    shown,
  };
}

/** The parameters `host` and `port` replace the URL's, as in libpq: a folder in `host` names a Unix socket. */
function hostsOf(given: Given, named: readonly Host[], shown: string): readonly Host[] {
  const { defaultPort } = URL_FORM;
  const port = parsePort(given.text('port') ?? '', defaultPort, shown);
  const host = given.text('host');
  if (host !== null) return host.split(',').map((each) => ({ host: each, port }));
  return named.map((each) => (each.port === defaultPort ? { ...each, port } : each));
}

/**
 * TLS as the URL's `sslmode` asks for. Without it, a server on this machine is used without TLS, and any other one must
 * show a valid certificate for its name (`verify-full`). `allow` and `prefer` are rejected: with them, anybody in
 * between can make the connection fall back to plain text, password included.
 */
function readTls(given: Given, hosts: readonly Host[]): ConnectionOptions | false {
  const mode = given.oneOf('sslmode', SSL_MODES) ?? (hosts.every(isLocal) ? 'disable' : 'verify-full');
  if (mode === 'disable') return false;
  return {
    minVersion: 'TLSv1.2',
    // As with libpq, `require` encrypts without checking the server.
    rejectUnauthorized: mode !== 'require',
    ...readTlsFiles(given, { ca: 'sslrootcert', cert: 'sslcert', key: 'sslkey' }),
    ...(mode === 'verify-ca' && { checkServerIdentity: () => undefined }),
  };
}

function isLocal({ host }: Host): boolean {
  return host.startsWith('/') || host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host);
}
