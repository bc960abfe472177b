import { QuaysideError } from '../model/errors.ts';
import { checkGroup, checkName } from '../model/names.ts';
import { quote } from '../util/quote.ts';
import type { Config, NamespaceConfig } from './options.ts';
import type { Path } from './problem.ts';

/** Says that what stands at a path cannot be used, though it is of the right type. */
export type Refuse = (path: Path, problem: string, remedy: string) => void;

/** The rules that concern several options, or that a type cannot express. */
export function checkRules(config: Config, refuse: Refuse): void {
  if (config.http.host.startsWith('/')) checkSocket(config.http, refuse);
  else checkListening('http', config.http, refuse);
  for (const group of ['stomp', 'amqp'] as const) {
    if (config[group].port === undefined) continue;
    if (config[group].host.startsWith('/')) {
      refuse([group, 'host'], 'is a Unix socket, which only HTTP listens on', 'Name an address');
    } else checkListening(group, config[group], refuse);
  }
  for (const [i, origin] of config.http.allowedOrigins.entries()) checkOrigin(origin, i, refuse);
  for (const [name, namespace] of Object.entries(config.namespaces)) checkNamespace(name, namespace, refuse);
  checkSharedEngines(config.namespaces, refuse);
}

type Listening = Pick<Config['http'], 'host' | 'tls' | 'insecure'>;

function checkListening(group: string, { host, tls, insecure }: Listening, refuse: Refuse): void {
  if (tls !== undefined || insecure || isLoopback(host)) return;
  refuse(
    [group, 'host'],
    `${host} can be reached from other machines, and without TLS passwords travel in the clear`,
    `Give ${group}.tls a certificate, or set ${group}.insecure: true where a proxy or a private network protects it`,
  );
}

/** The mode of a Unix socket says who may connect, and nobody in between can listen. */
function checkSocket({ tls }: Listening, refuse: Refuse): void {
  if (process.platform === 'win32') {
    refuse(['http', 'host'], 'is a Unix socket, which Windows does not have', 'Name an address');
  }
  if (tls !== undefined) {
    refuse(['http', 'tls'], 'is not for a Unix socket', 'Leave it out, or name an address as http.host');
  }
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host);
}

/** An origin that no browser sends as it stands, such as one with the default port, would match nothing. */
function checkOrigin(origin: string, place: number, refuse: Refuse): void {
  const sent = URL.parse(origin)?.origin;
  if (sent === origin.toLowerCase()) return;
  const remedy = sent === undefined ? 'Write it as https://jobs.example' : `Write ${sent}`;
  refuse(
    ['http', 'allowedOrigins', String(place)],
    `${quote(origin)} is not what a browser sends as an origin`,
    remedy,
  );
}

function checkNamespace(name: string, namespace: NamespaceConfig, refuse: Refuse): void {
  const path = ['namespaces', name];
  attempt(() => checkName('namespace', name), path, 'Choose another name', refuse);
  if (name.includes('/') || name === '*') {
    refuse(path, 'is a name with a slash, or the one that stands for all', 'Choose another name');
  }
  if (namespace.deadLetter !== undefined) {
    const { queue } = namespace.deadLetter;
    attempt(() => checkName('queue', queue), [...path, 'deadLetter', 'queue'], 'Choose another name', refuse);
  }
  for (const [i, group] of (namespace.groups ?? []).entries()) {
    attempt(() => checkGroup('groups', group), [...path, 'groups', String(i)], 'Choose another name', refuse);
  }
  for (const option of ['groups', 'retention'] as const) {
    if (namespace[option] === undefined || namespace.variant === 'stream') continue;
    refuse([...path, option], 'is for streams only', 'Set variant: stream, or leave it out');
  }
  checkEngineOptions(namespace, path, refuse);
}

const isSqlite = (url: string): boolean => url.startsWith('sqlite:');
const isRedis = (url: string): boolean => /^rediss?:/.test(url);

/** Options that only some engines have. */
function checkEngineOptions(namespace: NamespaceConfig, path: Path, refuse: Refuse): void {
  const { url, variant, signaller } = namespace;
  for (const option of ['durability', 'cacheBytes'] as const) {
    if (namespace[option] === undefined || isSqlite(url)) continue;
    refuse([...path, option], 'is for sqlite: only', 'Leave it out');
  }
  if (variant === 'list' && !isRedis(url)) {
    refuse([...path, 'variant'], 'list is for redis: only', 'Use simple or stream, or a redis: URL');
  }
  if (variant === 'list' && namespace.deadLetter !== undefined) {
    refuse([...path, 'deadLetter'], 'is not for lists, which count no tries', 'Leave it out, or use simple');
  }
  if (signaller?.url !== undefined && signaller.url !== url && isSqlite(signaller.url)) {
    refuse(
      [...path, 'signaller', 'url'],
      'is a SQLite file, which no other process can use',
      'Name local: or a networked engine',
    );
  }
}

/** Namespaces with the same URL use one engine, so what they say of it must be the same. */
function checkSharedEngines(namespaces: Config['namespaces'], refuse: Refuse): void {
  const first = new Map<string, [string, NamespaceConfig]>();
  for (const [name, namespace] of Object.entries(namespaces)) {
    const shared = first.get(namespace.url);
    if (shared === undefined) {
      first.set(namespace.url, [name, namespace]);
      continue;
    }
    for (const option of ['durability', 'cacheBytes'] as const) {
      if (shared[1][option] === namespace[option]) continue;
      refuse(
        ['namespaces', name, option],
        `is ${namespace[option] ?? 'not given'}, but ${shared[1][option] ?? 'not given'} in namespace ${shared[0]} of the same engine`,
        'Give both the same, or give them different URLs',
      );
    }
  }
}

function attempt(check: () => void, path: Path, remedy: string, refuse: Refuse): void {
  try {
    check();
  } catch (error) {
    if (!(error instanceof QuaysideError)) throw error;
    refuse(path, error.message.replace(/\.$/, ''), remedy);
  }
}
