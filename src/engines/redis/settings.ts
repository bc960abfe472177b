import { isIP } from 'node:net';
import type { ConnectionOptions } from 'node:tls';
import type { EngineOptions } from '../../engine/engine.ts';
import { EngineSettings, type Host, parseServerUrl, readTlsFiles } from '../../engine/settings.ts';

export type Address = Host;

export interface Login {
  readonly username: string | null;
  readonly password: string | null;
  readonly db: number;
  /** Null: plain TCP. */
  readonly tls: Tls | null;
}

/** Replaces the server's clock in the library's functions. For tests. */
export class GivenTime {
  readonly now: () => number;

  constructor(now: () => number) {
    this.now = now;
  }
}

export interface Settings {
  /** The URL without credentials, for messages. */
  readonly maskedUrl: string;
  readonly addresses: readonly Address[];
  readonly login: Login;
  /** Whether the server must be part of a cluster; null: either. */
  readonly cluster: boolean | null;
  /** The name of the master that Sentinels at `addresses` watch; null: no Sentinel. */
  readonly sentinel: { readonly master: string; readonly login: Login } | null;
  readonly prefix: string;
  /** Replicas that must have a change before it is acknowledged; null: one, if the server has any. */
  readonly wait: number | null;
  readonly variant: Variant;
  readonly givenTime: GivenTime | null;
}

/** Plain and stream queues have one storage; lists have their own. */
type Variant = (typeof VARIANTS)[number];
const VARIANTS = ['simple', 'stream', 'list'] as const;

const NAMES = [
  'cluster',
  'sentinel',
  'sentinelUsername',
  'sentinelPassword',
  'username',
  'password',
  'db',
  'prefix',
  'wait',
  'variant',
  'ca',
  'cert',
  'key',
  'servername',
  'givenTime',
] as const;
type Given = EngineSettings<(typeof NAMES)[number]>;

const URL_FORM = {
  schemes: ['redis', 'rediss'],
  defaultPort: 6379,
  example: 'redis://user:password@host:port',
};

/**
 * Merges the parameters of the URL and the engine's settings, which take precedence.
 * @throws Error that names the setting and how to correct it
 */
export function readSettings({ url, settings }: EngineOptions): Settings {
  const { scheme, username, password, hosts, path, parameters, maskedUrl } = parseServerUrl(url, URL_FORM);
  const given: Given = new EngineSettings(
    maskedUrl,
    NAMES,
    path === null ? {} : { db: path },
    parameters,
    settings,
  );
  const tls = scheme === 'rediss' ? tlsOf(given, hosts) : null;
  const login: Login = {
    username: given.string('username') ?? username,
    password: given.string('password') ?? password,
    db: given.integer('db') ?? 0,
    tls,
  };
  const cluster = given.boolean('cluster');
  const master = given.string('sentinel');
  if (cluster === true && master !== null)
    throw given.error('sentinel', 'cannot be combined with cluster=true; leave one of them out');
  if (cluster === true && login.db !== 0) throw given.error('db', 'must be 0 on a cluster');
  const prefix = given.string('prefix') ?? 'quayside';
  if (!/^[^{}\s]+$/.test(prefix)) throw given.error('prefix', 'contains a brace or a space; leave it out');
  return {
    maskedUrl,
    addresses: hosts,
    login,
    cluster,
    sentinel: master === null ? null : { master, login: sentinelLogin(given, tls) },
    prefix,
    wait: given.integer('wait'),
    variant: given.oneOf('variant', VARIANTS) ?? 'simple',
    givenTime: givenTimeOf(given),
  };
}

function sentinelLogin(given: Given, tls: Tls | null): Login {
  return {
    username: given.string('sentinelUsername'),
    password: given.string('sentinelPassword'),
    db: 0,
    tls,
  };
}

/** `rediss:` always verifies the server's certificate; `ca` names an authority that this system does not trust. */
function tlsOf(given: Given, hosts: readonly Host[]): Tls {
  const servername = given.string('servername');
  const files = readTlsFiles(given, { ca: 'ca', cert: 'cert', key: 'key' });
  return {
    options: { ...(servername !== null && { servername }), ...files },
    hosts: hosts.map(({ host }) => host),
  };
}

function givenTimeOf(given: Given): GivenTime | null {
  const value = given.value('givenTime');
  if (value === null || value instanceof GivenTime) return value;
  throw given.error('givenTime', 'is for tests');
}

/** What connections over TLS have in common. */
interface Tls {
  /** Contains a server name only if the settings give one, which then holds for all servers. */
  readonly options: ConnectionOptions;
  /** The hosts of the URL. */
  readonly hosts: readonly string[];
}

/**
 * The options for a connection to one host, whose name must be in its certificate. Clusters and Sentinels announce IP
 * addresses, which certificates may lack: the certificate of such a server must have the first host name of the URL.
 */
export function tlsTo(host: string, { options, hosts }: Tls): ConnectionOptions {
  if (options.servername !== undefined) return options;
  const isAnnounced = isIP(host) !== 0 && !hosts.includes(host);
  const name = isAnnounced ? hosts.find(isName) : host;
  return name !== undefined && isName(name) ? { ...options, servername: name } : options;
}

function isName(host: string): boolean {
  return isIP(host) === 0;
}
