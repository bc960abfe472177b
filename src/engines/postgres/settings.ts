import type { ConnectionOptions } from 'node:tls';
import type { EngineOptions } from '../../engine/engine.ts';
import { EngineSettings, type Host, parsePort, parseServerUrl, readTlsFiles } from '../../engine/settings.ts';

/** What a commit waits for: the values of PostgreSQL's setting `synchronous_commit`. */
const SYNCHRONOUS_COMMITS = ['on', 'off', 'local', 'remote_write', 'remote_apply'] as const;
type SynchronousCommit = (typeof SYNCHRONOUS_COMMITS)[number];

const SSL_MODES = ['disable', 'require', 'verify-ca', 'verify-full'] as const;

/** Settings from the URL and the configuration, validated and with defaults (`docs/engines/postgres.md`). */
export interface Settings {
  /** Tried in turn at each connect. */
  readonly hosts: readonly Host[];
  readonly user: string | undefined;
  readonly password: string | undefined;
  readonly database: string | undefined;
  readonly tls: ConnectionOptions | false;
  /** The schema of all tables; engines with different schemas are independent. */
  readonly schema: string;
  /** `off` loses the last fraction of a second of acknowledged changes if the server's machine fails. */
  readonly synchronousCommit: SynchronousCommit;
  /** The URL without user and password, for messages. */
  readonly maskedUrl: string;
}

const URL_FORM = {
  schemes: ['postgres', 'postgresql'],
  defaultPort: 5432,
  example: 'postgres://user:password@host:port/database',
};
/** Parameters of the URL, with libpq's names, and the settings of the engine. */
const NAMES = [
  'sslmode',
  'sslrootcert',
  'sslcert',
  'sslkey',
  'host',
  'port',
  'schema',
  'synchronousCommit',
  'target_session_attrs',
] as const;
type GivenSettings = EngineSettings<(typeof NAMES)[number]>;
const SCHEMA_NAME = /^[a-z_][a-z0-9_]{0,39}$/;

/** @throws Error that names the setting and what is allowed */
export function readSettings({ url, settings }: EngineOptions): Settings {
  const { username, password, path, parameters, maskedUrl, hosts: urlHosts } = parseServerUrl(url, URL_FORM);
  const given: GivenSettings = new EngineSettings(maskedUrl, NAMES, parameters, settings);
  const hosts = hostsOf(given, urlHosts, maskedUrl);
  const schema = given.string('schema') ?? 'quayside';
  if (!SCHEMA_NAME.test(schema)) {
    throw given.error(
      'schema',
      'must be 1 to 40 lower-case letters, digits and underscores, and not begin with a digit',
    );
  }
  // Only for URLs that libpq uses as well: the engine needs a server that accepts writes in any case.
  given.oneOf('target_session_attrs', ['read-write', 'primary']);
  return {
    hosts,
    user: username ?? undefined,
    password: password ?? undefined,
    database: path ?? undefined,
    tls: readTls(given, hosts),
    schema,
    synchronousCommit: given.oneOf('synchronousCommit', SYNCHRONOUS_COMMITS) ?? 'on',
    maskedUrl,
  };
}

/** The parameters `host` and `port` replace those of the URL, as in libpq: a folder in `host` names a Unix socket. */
function hostsOf(given: GivenSettings, urlHosts: readonly Host[], maskedUrl: string): readonly Host[] {
  const { defaultPort } = URL_FORM;
  const port = parsePort(given.string('port') ?? '', defaultPort, maskedUrl);
  const host = given.string('host');
  if (host !== null) return host.split(',').map((name) => ({ host: name, port }));
  return urlHosts.map((host) => (host.port === defaultPort ? { ...host, port } : host));
}

/**
 * TLS options for the URL's `sslmode`. By default, a server on this machine is used without TLS, and any other one must
 * show a valid certificate for its name (`verify-full`). `allow` and `prefer` are rejected: they let an attacker in the
 * middle force the connection, and the password, to plain text.
 */
function readTls(given: GivenSettings, hosts: readonly Host[]): ConnectionOptions | false {
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
