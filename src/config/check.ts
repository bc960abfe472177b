import { QuaysideError } from '../model/errors.ts';
import { checkGroup, checkName } from '../model/names.ts';
import { didYouMean } from '../util/did-you-mean.ts';
import { conflictOf } from '../util/name-pattern.ts';
import { quote } from '../util/quote.ts';
import { type SchemaError, schemaErrors } from '../util/schema.ts';
import { type Config, type NamespaceConfig, Options, type QueueConfig } from './options.ts';
import type { Path, Report } from './schema.ts';
import { entrySchema, isTree, type OptionSchema, schemaAt, type Tree, typeText } from './schema.ts';

/** Compares a whole tree, defaults filled in, with the declared options. */
export function checkTree(tree: Tree, report: Report): void {
  for (const { path, rule } of schemaErrors(Options, tree)) {
    if (rule === 'unknown') reportUnknown(path, report);
    else if (rule === 'missing') report(path, 'is missing', hintFor(schemaAt(path)));
    else reportWrong(path, tree, report, rule);
  }
}

function reportUnknown(path: Path, report: Report): void {
  const known = Object.keys(schemaAt(path.slice(0, -1))?.properties ?? {});
  const hint = didYouMean(path.at(-1) ?? '', known).trim() || `Known here are ${known.join(', ')}`;
  report(path, 'there is no such option', hint);
}

function reportWrong(path: Path, tree: Tree, report: Report, rule: SchemaError['rule']): void {
  const schema = schemaAt(path) ?? {};
  const value = valueAt(tree, path);
  const right = typeText(schema);
  const shown = shownValue(schema, value);
  // The hint says which form; the pattern itself would help few.
  const isWrongForm = rule === 'pattern' && typeof value === 'string' && value !== '';
  const problem = isWrongForm ? 'does not have the right form' : `must be ${right}`;
  report(path, `${problem}${shown}`, hintFor(schema));
}

/** What a message says of a wrong value; nothing if it is a secret. */
function shownValue(schema: OptionSchema, value: unknown): string {
  if (schema.secret !== undefined || schema.type === 'object' || entrySchema(schema) !== undefined) return '';
  if (typeof value === 'object' && value !== null) return '';
  return value === '' ? ', and not empty' : `, not ${quote(value)}`;
}

function hintFor(schema: OptionSchema | undefined): string {
  if (schema?.hint !== undefined) return schema.hint;
  const { default: usual, description } = schema ?? {};
  if (schema?.type === 'object') return 'Write its options below it';
  if (usual === undefined) return description === undefined ? 'Give it' : `Give it: ${description}`;
  return `Correct it, or leave it out for the default, ${JSON.stringify(usual)}`;
}

function valueAt(tree: Tree, path: Path): unknown {
  let at: unknown = tree;
  for (const key of path) at = isTree(at) || Array.isArray(at) ? (at as Tree)[key] : undefined;
  return at;
}

/** Checks the rules that concern several options, or that a type cannot express. */
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
  const { anonymousUser } = config.amqp;
  if (anonymousUser !== undefined && !Object.hasOwn(config.http.users, anonymousUser)) {
    report(
      ['amqp', 'anonymousUser'],
      `${anonymousUser} is no user of http.users`,
      'Add that user, or leave it out',
    );
  }
  for (const [i, origin] of config.http.allowedOrigins.entries()) checkOrigin(origin, i, report);
  for (const [name, namespace] of Object.entries(config.namespaces)) checkNamespace(name, namespace, report);
  checkSharedEngines(config.namespaces, report);
}

type Listening = Pick<Config['http'], 'host' | 'tls' | 'insecure'>;

function checkListening(group: string, { host, tls, insecure }: Listening, report: Report): void {
  if (tls !== undefined || insecure || isLoopback(host)) return;
  report(
    [group, 'host'],
    `${host} can be reached from other machines, and without TLS passwords travel in the clear`,
    `Give ${group}.tls a certificate, or set ${group}.insecure: true where a proxy or a private network protects it`,
  );
}

/** The mode of a Unix socket says who may connect, and the traffic stays on this machine. */
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

/** An origin that no browser sends as it stands, such as one with the default port, would match nothing. */
function checkOrigin(origin: string, place: number, report: Report): void {
  const sent = URL.parse(origin)?.origin;
  if (sent === origin.toLowerCase()) return;
  const hint = sent === undefined ? 'Write it as https://jobs.example' : `Write ${sent}`;
  report(
    ['http', 'allowedOrigins', String(place)],
    `${quote(origin)} is not what a browser sends as an origin`,
    hint,
  );
}

function checkNamespace(name: string, namespace: NamespaceConfig, report: Report): void {
  const path = ['namespaces', name];
  attempt(() => checkName('namespace', name), path, 'Choose another name', report);
  if (name.includes('/') || name === '*') {
    report(path, 'is a name with a slash, or the one that stands for all', 'Choose another name');
  }
  if (namespace.deadLetter !== undefined) {
    const { queue } = namespace.deadLetter;
    attempt(() => checkName('queue', queue), [...path, 'deadLetter', 'queue'], 'Choose another name', report);
  }
  for (const [i, group] of (namespace.groups ?? []).entries()) {
    attempt(() => checkGroup('groups', group), [...path, 'groups', String(i)], 'Choose another name', report);
  }
  for (const option of ['groups', 'retention'] as const) {
    if (namespace[option] === undefined || namespace.variant === 'stream') continue;
    report([...path, option], 'is for streams only', 'Set variant: stream, or leave it out');
  }
  checkRetryDelay(namespace, path, report);
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
  { variant }: NamespaceConfig,
  path: Path,
  report: Report,
): void {
  attempt(() => checkName('queue', pattern), path, 'Choose another pattern', report);
  if (options.deadLetter !== undefined) {
    const { queue } = options.deadLetter;
    attempt(() => checkName('queue', queue), [...path, 'deadLetter', 'queue'], 'Choose another name', report);
    if (queue === pattern) {
      report(
        [...path, 'deadLetter', 'queue'],
        'is the queue itself',
        'Name another queue, or leave deadLetter out',
      );
    }
  }
  checkRetryDelay(options, path, report);
  if (options.retention !== undefined && variant !== 'stream') {
    report([...path, 'retention'], 'is for streams only', 'Set variant: stream, or leave it out');
  }
  for (const option of ['lease', 'deadLetter', 'retryDelay', 'ttl'] as const) {
    if (options[option] === undefined || variant !== 'list') continue;
    report(
      [...path, option],
      'is not for lists, which have maxElements alone',
      'Leave it out, or use simple',
    );
  }
}

function checkRetryDelay(
  { retryDelay }: Pick<NamespaceConfig, 'retryDelay'>,
  path: Path,
  report: Report,
): void {
  if (retryDelay?.max === undefined || retryDelay.max >= retryDelay.first) return;
  report(
    [...path, 'retryDelay', 'max'],
    `is ${retryDelay.max}, less than first, which is ${retryDelay.first}`,
    'Give at least first',
  );
}

const isSqlite = (url: string): boolean => url.startsWith('sqlite:');
const isRedis = (url: string): boolean => /^rediss?:/.test(url);

/** Options that only some engines have. */
function checkEngineOptions(namespace: NamespaceConfig, path: Path, report: Report): void {
  const { url, variant, signaller } = namespace;
  for (const option of ['durability', 'cacheBytes'] as const) {
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

/** Namespaces with the same URL use one engine, so what they say of it must be the same. */
function checkSharedEngines(namespaces: Config['namespaces'], report: Report): void {
  const first = new Map<string, [string, NamespaceConfig]>();
  for (const [name, namespace] of Object.entries(namespaces)) {
    const shared = first.get(namespace.url);
    if (shared === undefined) {
      first.set(namespace.url, [name, namespace]);
      continue;
    }
    for (const option of ['durability', 'cacheBytes'] as const) {
      if (shared[1][option] === namespace[option]) continue;
      report(
        ['namespaces', name, option],
        `is ${namespace[option] ?? 'not given'}, but ${shared[1][option] ?? 'not given'} in namespace ${shared[0]} of the same engine`,
        'Give both the same, or give them different URLs',
      );
    }
  }
}

function attempt(check: () => void, path: Path, hint: string, report: Report): void {
  try {
    check();
  } catch (error) {
    if (!(error instanceof QuaysideError)) throw error;
    report(path, error.message.replace(/\.$/, ''), hint);
  }
}
