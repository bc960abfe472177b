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

/** Gives the time to the server's functions instead of the server's clock. For tests. */
export class GivenTime {
  readonly now: () => number;

  constructor(now: () => number) {
    this.now = now;
  }
}

export interface Settings {
  /** The URL without credentials, for messages. */
  readonly shown: string;
  readonly addresses: readonly Address[];
  readonly login: Login;
  /** What the server must be; null: as it says itself. */
  readonly cluster: boolean | null;
  /** The name of the master that Sentinels at `addresses` watch; null: no Sentinel. */
  readonly sentinel: { readonly master: string; readonly login: Login } | null;
  readonly prefix: string;
  /** Replicas that must have a change before it is answered; null: one where the server has any. */
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
 * The URL's query and the engine's settings as one; settings win.
 * @throws Error that names the setting and the remedy
 */
export function readSettings({ url, settings }: EngineOptions): Settings {
  const {
    scheme,
    username,
    password,
    hosts,
    path,
    parameters,
    maskedUrl: shown,
  } = parseServerUrl(url, URL_FORM);
  const given: Given = new EngineSettings(
    shown,
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
    throw given.error('sentinel', 'is not for a cluster; leave one out');
  if (cluster === true && login.db !== 0) throw given.error('db', 'must be 0 on a cluster');
  const prefix = given.string('prefix') ?? 'quayside';
  if (!/^[^{}\s]+$/.test(prefix)) throw given.error('prefix', 'has a brace or a space; leave it out');
  return {
    shown,
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

/** `rediss:` always checks the server's certificate; an authority that this system does not know is named by `ca`. */
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
  /** Holds a server's name only where the settings give one, which all servers have then. */
  readonly options: ConnectionOptions;
  /** The hosts of the URL. */
  readonly hosts: readonly string[];
}

/**
 * The options for a connection to one host, whose name its certificate must have. Clusters and Sentinels announce
 * addresses that certificates need not have: those of such a server must have the first name in the URL.
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
