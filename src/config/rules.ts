import { resolve } from 'node:path';
import { QuaysideError } from '../model/errors.ts';
import { checkGroup, checkName } from '../model/names.ts';
import { hasRawUserInfo, maskUrl } from '../util/mask.ts';
import { conflictOf } from '../util/name-pattern.ts';
import { quote } from '../util/quote.ts';
import { type Path, type Report, withoutPeriod } from './errors.ts';
import type { Config, NamespaceConfig, QueueConfig } from './options.ts';

/** Checks the rules that involve several options or that the schema cannot express. */
export function checkRules(config: Config, report: Report): void {
  if (config.http.host.startsWith('/')) checkSocket(config.http, report);
  else checkListening('http', config.http, report);
  for (const group of ['stomp', 'amqp'] as const) {
    if (config[group].port === undefined) {
      if (config[group].webSocket) {
        report([group, 'webSocket'], `is on, but ${group} is off`, `Give ${group}.port, or leave it out`);
      }
      continue;
    }
    if (config[group].host.startsWith('/')) {
      report([group, 'host'], 'is a Unix socket, which only HTTP listens on', 'Name an address');
    } else checkListening(group, config[group], report);
  }
  checkPorts(config, report);
  const { anonymousUser } = config.amqp;
  if (anonymousUser !== undefined && !Object.hasOwn(config.http.users, anonymousUser)) {
    report(
      ['amqp', 'anonymousUser'],
      `${anonymousUser} is not a user in http.users`,
      'Add that user, or leave it out',
    );
  }
  for (const [i, origin] of config.http.allowedOrigins.entries()) checkOrigin(origin, i, report);
  for (const [name, namespace] of Object.entries(config.namespaces)) checkNamespace(name, namespace, report);
  for (const id of Object.keys(config.exchanges))
    attempt(() => checkName('exchange', id), ['exchanges', id], 'Choose another id', report);
  if (config.tracing !== undefined) checkTracing(config.tracing, report);
  checkSharedEngines(config.namespaces, report);
  checkSharedFiles(config, report);
}

type Listening = Pick<Config['http'], 'host' | 'tls' | 'insecure'>;

function checkListening(group: string, { host, tls, insecure }: Listening, report: Report): void {
  if (host.startsWith('[')) {
    report([group, 'host'], `${host} is an address in brackets`, `Write ${host.replace(/^\[|\]$/g, '')}`);
    return;
  }
  if (tls !== undefined || insecure || isLoopback(host)) return;
  report(
    [group, 'host'],
    `${host} can be reached from other machines, and without TLS passwords travel in the clear`,
    `Give ${group}.tls a certificate, or set ${group}.insecure: true where a proxy or a private network protects it`,
  );
}

function isWildcardAddress(host: string): boolean {
  return host === '0.0.0.0' || host === '::';
}

/** Rejects two listeners on the same port: otherwise the second would report that another program uses it. */
function checkPorts(config: Config, report: Report): void {
  const listening = (['http', 'stomp', 'amqp'] as const).flatMap((group) => {
    const { host, port = 0 } = config[group];
    return port === 0 || host.startsWith('/') ? [] : [{ group, host, port }];
  });
  for (const [i, { group, host, port }] of listening.entries()) {
    const other = listening
      .slice(0, i)
      .find((one) => one.port === port && (one.host === host || [one.host, host].some(isWildcardAddress)));
    if (other === undefined) continue;
    report([group, 'port'], `is ${port}, the port of ${other.group} as well`, 'Choose another port');
  }
}

/** A Unix socket needs no TLS: its file mode controls access, and its traffic does not leave the machine. */
function checkSocket({ tls }: Listening, report: Report): void {
  if (process.platform === 'win32') {
    report(['http', 'host'], 'is a Unix socket, which Windows does not have', 'Name an address');
  }
  if (tls !== undefined) {
    report(['http', 'tls'], 'is not for a Unix socket', 'Leave it out, or name an address as http.host');
  }
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host);
}

/** Rejects origins that no browser sends in this form, such as one with the default port: they would never match. */
function checkOrigin(origin: string, index: number, report: Report): void {
  const sent = URL.parse(origin)?.origin;
  if (sent === origin.toLowerCase()) return;
  const hint = sent === undefined ? 'Write it as https://jobs.example' : `Write ${sent}`;
  report(
    ['http', 'allowedOrigins', String(index)],
    `${quote(origin)} is not what a browser sends as an origin`,
    hint,
  );
}

function checkNamespace(name: string, namespace: NamespaceConfig, report: Report): void {
  const path = ['namespaces', name];
  attempt(() => checkName('namespace', name), path, 'Choose another name', report);
  if (name.includes('/') || name === '*') {
    report(path, 'contains a slash, or is *', 'Choose another name');
  }
  for (const [i, group] of (namespace.groups ?? []).entries()) {
    attempt(() => checkGroup('groups', group), [...path, 'groups', String(i)], 'Choose another name', report);
  }
  if (namespace.groups !== undefined && namespace.variant !== 'stream') {
    report([...path, 'groups'], 'is for streams only', 'Set variant: stream, or leave it out');
  }
  checkPolicies(namespace, namespace, path, report);
  for (const [pattern, options] of Object.entries(namespace.queues ?? {})) {
    checkQueueOptions(pattern, options, namespace, [...path, 'queues', pattern], report);
  }
  const conflict = conflictOf(Object.keys(namespace.queues ?? {}));
  if (conflict !== null) {
    const [first, second] = conflict;
    report(
      [...path, 'queues', second],
      `is as specific as ${first}, and a name can match both`,
      'Give one of them more characters, or merge them',
    );
  }
  checkEngineOptions(namespace, path, report);
}

function checkQueueOptions(
  pattern: string,
  options: QueueConfig,
  namespace: NamespaceConfig,
  path: Path,
  report: Report,
): void {
  attempt(() => checkName('queue', pattern), path, 'Choose another pattern', report);
  checkPolicies(options, namespace, path, report);
  if (options.deadLetter?.queue === pattern) {
    report(
      [...path, 'deadLetter', 'queue'],
      'is the queue itself',
      'Name another queue, or leave deadLetter out',
    );
  }
  for (const option of ['lease', 'deadLetter', 'retryDelay', 'ttl'] as const) {
    if (options[option] === undefined || namespace.variant !== 'list') continue;
    report([...path, option], 'is not for lists, which have only maxElements', 'Leave it out, or use simple');
  }
}

/** Checks the options that both a namespace and its queues may have. */
function checkPolicies(
  { retryDelay, retention }: Pick<QueueConfig, 'retryDelay' | 'retention'>,
  { variant }: NamespaceConfig,
  path: Path,
  report: Report,
): void {
  if (retention !== undefined && variant !== 'stream') {
    report([...path, 'retention'], 'is for streams only', 'Set variant: stream, or leave it out');
  }
  if (retryDelay?.max !== undefined && retryDelay.max < retryDelay.first) {
    report(
      [...path, 'retryDelay', 'max'],
      `is ${retryDelay.max}, less than first, which is ${retryDelay.first}`,
      'Give at least first',
    );
  }
}

const isSqlite = (url: string): boolean => url.startsWith('sqlite:');
const isRedis = (url: string): boolean => /^rediss?:/.test(url);

/** Options of the SQLite engine, shared by all namespaces in one file. */
const SQLITE_OPTIONS = ['durability', 'cacheBytes', 'damagedLog'] as const;

/** Checks the options that only some engines have. */
function checkEngineOptions(namespace: NamespaceConfig, path: Path, report: Report): void {
  const { url, variant, signaller } = namespace;
  for (const option of SQLITE_OPTIONS) {
    if (namespace[option] === undefined || isSqlite(url)) continue;
    report([...path, option], 'is for sqlite: only', 'Leave it out');
  }
  if (variant === 'list' && !isRedis(url)) {
    report([...path, 'variant'], 'list is for redis: only', 'Use simple or stream, or a redis: URL');
  }
  for (const option of ['deadLetter', 'retryDelay'] as const) {
    if (variant !== 'list' || namespace[option] === undefined) continue;
    report([...path, option], 'is not for lists, which count no tries', 'Leave it out, or use simple');
  }
  if (signaller?.url !== undefined && signaller.url !== url && isSqlite(signaller.url)) {
    report(
      [...path, 'signaller', 'url'],
      'is a SQLite file, which no other process can use',
      'Name local: or a networked engine',
    );
  }
}

/** Namespaces with the same URL share one engine, so their engine options must be equal. */
function checkSharedEngines(namespaces: Config['namespaces'], report: Report): void {
  const first = new Map<string, [string, NamespaceConfig]>();
  for (const [name, namespace] of Object.entries(namespaces)) {
    const shared = first.get(namespace.url);
    if (shared === undefined) {
      first.set(namespace.url, [name, namespace]);
      continue;
    }
    for (const option of SQLITE_OPTIONS) {
      if (shared[1][option] === namespace[option]) continue;
      report(
        ['namespaces', name, option],
        `is ${namespace[option] ?? 'not given'}, but ${shared[1][option] ?? 'not given'} in namespace ${shared[0]} of the same engine`,
        'Give both the same, or give them different URLs',
      );
    }
  }
}

/** Rejects two URLs of one file: otherwise the second engine would report that another process has it open. */
function checkSharedFiles({ namespaces, dataDir }: Config, report: Report): void {
  const first = new Map<string, { readonly owner: string; readonly url: string }>();
  const check = (owner: string, url: string, path: Path): void => {
    if (!isSqlite(url) || url === 'sqlite::memory:') return;
    const file = resolve(dataDir, url.slice('sqlite:'.length));
    const other = first.get(file) ?? { owner, url };
    first.set(file, other);
    if (url === other.url) return;
    report(
      path,
      `names the file of ${other.owner} by another URL`,
      `Write ${maskUrl(other.url)}, so that both share one engine, or name another file`,
    );
  };
  const entries = Object.entries(namespaces);
  for (const [name, { url }] of entries) check(`namespace ${name}`, url, ['namespaces', name, 'url']);
  for (const [name, { stats }] of entries) {
    if (stats?.url === undefined) continue;
    check(`the statistics of namespace ${name}`, stats.url, ['namespaces', name, 'stats', 'url']);
  }
}

/** Headers that belong to the connection: `fetch` ignores `Host`, and fails with others. */
const OF_CONNECTION: ReadonlySet<string> = new Set([
  'host',
  'content-length',
  'expect',
  'keep-alive',
  'transfer-encoding',
  'upgrade',
]);

/** The ports that `fetch` refuses, by its specification: https://fetch.spec.whatwg.org/#port-blocking */
const BLOCKED_PORTS: ReadonlySet<number> = new Set([
  1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104,
  109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515,
  526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049,
  3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080,
]);

/** Checks what would make every request to the collector of traces fail. */
function checkTracing({ otlp, headers }: NonNullable<Config['tracing']>, report: Report): void {
  if (!isUrl(otlp)) {
    report(
      ['tracing', 'otlp'],
      'is not a URL',
      'Write it as http://localhost:4318, and percent-encode a password',
    );
  } else if (BLOCKED_PORTS.has(Number(new URL(otlp).port))) {
    report(
      ['tracing', 'otlp'],
      'has a port of another protocol, to which fetch sends nothing',
      'Let the collector use another port, such as 4318',
    );
  }
  for (const [name, value] of Object.entries(headers)) {
    const path = ['tracing', 'headers', name];
    if (OF_CONNECTION.has(name.toLowerCase())) {
      report(
        path,
        'is a header that the server sets itself',
        'Leave it out; the address of the collector is tracing.otlp',
      );
    } else if (!isHeader(name, value)) {
      report(
        path,
        'is no header that can be sent',
        'Use letters, digits and - in its name, and no control characters in its value',
      );
    }
  }
}

/** Whether a URL can be parsed, and its user and password can be decoded. */
function isUrl(text: string): boolean {
  const url = hasRawUserInfo(text) ? null : URL.parse(text);
  if (url === null) return false;
  try {
    decodeURIComponent(url.username);
    decodeURIComponent(url.password);
    return true;
  } catch {
    return false;
  }
}

function isHeader(name: string, value: string): boolean {
  // An `import` of this module would read all of its exports, which takes as long as a fifteenth of a start.
  const { validateHeaderName, validateHeaderValue } = process.getBuiltinModule('node:http');
  try {
    validateHeaderName(name);
    validateHeaderValue(name, value);
    return true;
  } catch {
    return false;
  }
}

function attempt(check: () => void, path: Path, hint: string, report: Report): void {
  try {
    check();
  } catch (error) {
    if (!(error instanceof QuaysideError)) throw error;
    report(path, withoutPeriod(error), hint);
  }
}
