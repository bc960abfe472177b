import type { Namespace } from '../broker/namespace.ts';
import type { JsonValue } from '../engine/definitions.ts';
import { invalidParameter, type QuaysideError } from '../model/errors.ts';
import { textFingerprint } from '../model/fingerprint.ts';
import {
  booleanMember,
  type Members,
  membersOf,
  nameMember,
  wholeMember,
  wrongMember,
} from '../model/members.ts';
import { quote } from '../util/quote.ts';
import { TOO_MANY_HOPS } from './copies.ts';
import type { ExchangeContext } from './exchange.ts';

/** An exchange as it was declared (spec 4.2, Create payload). */
export interface Declaration {
  readonly src: DeclaredQueue;
  readonly dst: readonly DeclaredDestination[];
  /** As given: the record shows it unchanged, `{}` when nothing was given. */
  readonly consumer: ExchangeConsumerOptions;
}

export interface DeclaredQueue {
  readonly ns: string;
  readonly queue: string;
}

interface DeclaredDestination extends DeclaredQueue {
  readonly selector?: string;
}

interface ExchangeConsumerOptions {
  /** Concurrent loops, 1 to 16. */
  readonly parallel?: number;
  /** Elements in flight at once, 1 to 65,536. */
  readonly wsize?: number;
  /** Reserve and commit, or pop. If all queues share an engine that can reserve, elements are always reserved. */
  readonly reserve?: boolean;
}

export const CONSUMER_DEFAULTS = { parallel: 1, wsize: 1000, reserve: false } as const;
const MAX_PARALLEL = 16;
const MAX_WINDOW = 65_536;
/** More destinations than this are a mistake, or an attack: each element is copied to every one. */
const MAX_DESTINATIONS = 256;

/**
 * Parses a create payload. Unknown members are rejected: a misspelt `selector` would copy everything.
 * @param within the member of the body that it is; '' if it is the body
 * @throws QuaysideError `invalid-parameter` with the path of the field
 */
export function parseDeclaration(payload: unknown, within = ''): Declaration {
  const { src, dst, consumer } = membersOf(payload, within, ['src', 'dst', 'consumer']);
  const at = (path: string): string => pathWithin(within, path);
  if (!Array.isArray(dst)) throw wrongMember(at('dst'), dst, 'an array of destinations');
  if (dst.length === 0 || dst.length > MAX_DESTINATIONS) {
    throw invalidParameter(
      at('dst'),
      `${at('dst')} must have 1 to ${MAX_DESTINATIONS} destinations, not ${dst.length}.`,
    );
  }
  return {
    src: queueName(membersOf(src, at('src'), ['ns', 'queue']), at('src')),
    dst: dst.map((destination, i) => parseDestination(destination, at(`dst[${i}]`))),
    consumer: parseConsumer(consumer, at('consumer')),
  };
}

function parseDestination(value: unknown, path: string): DeclaredDestination {
  const members = membersOf(value, path, ['ns', 'queue', 'selector']);
  const { selector } = members;
  const name = queueName(members, path);
  if (selector === undefined || selector === null) return name;
  if (typeof selector !== 'string') throw wrongMember(`${path}.selector`, selector, 'a string, or left out');
  return { ...name, selector };
}

function parseConsumer(value: unknown, path: string): ExchangeConsumerOptions {
  const { parallel, wsize, reserve } = membersOf(value, path, ['parallel', 'wsize', 'reserve']);
  return {
    ...(parallel !== undefined && { parallel: wholeMember(`${path}.parallel`, parallel, 1, MAX_PARALLEL) }),
    ...(wsize !== undefined && { wsize: wholeMember(`${path}.wsize`, wsize, 1, MAX_WINDOW) }),
    ...(reserve !== undefined && { reserve: booleanMember(`${path}.reserve`, reserve) }),
  };
}

function queueName({ ns, queue }: Members, path: string): DeclaredQueue {
  return { ns: nameMember(`${path}.ns`, ns), queue: nameMember(`${path}.queue`, queue) };
}

/** The path of a declaration's field, in a body of which the declaration is a member, or the whole (''). */
export function pathWithin(within: string, path: string): string {
  return within === '' ? path : `${within}.${path}`;
}

/** Whether two declarations are the same: field by field, options as given. */
export function sameDeclaration(a: Declaration, b: Declaration): boolean {
  return JSON.stringify(canonical(a)) === JSON.stringify(canonical(b));
}

/** A short name of what is declared: the same for the same declaration, on every node. */
export function versionOf(declaration: Declaration): string {
  return textFingerprint(JSON.stringify(canonical(declaration)));
}

/** The declaration with its members in one order, as it is stored. */
export function canonical({ src, dst, consumer }: Declaration): JsonValue {
  const { parallel, wsize, reserve } = consumer;
  return {
    src: { ns: src.ns, queue: src.queue },
    dst: dst.map(({ ns, queue, selector }) => ({ ns, queue, ...(selector !== undefined && { selector }) })),
    consumer: {
      ...(parallel !== undefined && { parallel }),
      ...(wsize !== undefined && { wsize }),
      ...(reserve !== undefined && { reserve }),
    },
  };
}

/**
 * Whether a declaration could be created on this node.
 * @param within the member of the body that it is, for the paths; '' if it is the body
 * @throws QuaysideError `invalid-parameter` with the path of the field, `invalid-body` for a selector
 */
export async function checkDeclaration(
  declaration: Declaration,
  options: Pick<ExchangeContext, 'broker' | 'sandbox' | 'selectors'>,
  { name }: Caller,
  within = '',
): Promise<void> {
  const { src, dst, consumer } = declaration;
  const source = namespaceAt(options, src.ns, pathWithin(within, 'src.ns'));
  for (const [i, { ns }] of dst.entries()) namespaceAt(options, ns, pathWithin(within, `dst[${i}].ns`));
  if (consumer.reserve === true && !source.capabilities.reserve) throw cannotReserve(source, within);
  checkRepeated(dst, within);
  mustBeRunnable(declaration, options, within);
  const selectors = dst.flatMap(({ selector }, i) =>
    selector === undefined ? [] : [{ source: selector, path: pathWithin(within, `dst[${i}].selector`) }],
  );
  if (selectors.length === 0) return;
  await options.sandbox.check(selectors, name);
}

/**
 * The same destination twice without a selector is a mistake, or an attack: each element would be stored there twice.
 * Stored exchanges are not checked for it.
 */
function checkRepeated(dst: Declaration['dst'], within: string): void {
  const first = new Map<string, number>();
  for (const [i, { ns, queue, selector }] of dst.entries()) {
    if (selector !== undefined) continue;
    const name = JSON.stringify([ns, queue]);
    const before = first.get(name);
    if (before !== undefined) {
      const path = pathWithin(within, `dst[${i}]`);
      const other = pathWithin(within, `dst[${before}]`);
      throw invalidParameter(
        path,
        `${path} is queue ${quote(queue)} of namespace ${quote(ns)}, as ${other} is. Without selectors, a queue can be a destination once.`,
      );
    }
    first.set(name, i);
  }
}

/**
 * Whether this server runs a declaration, also a stored one.
 * @throws QuaysideError `invalid-parameter` with the path of the source's queue, or of the first selector
 */
export function mustBeRunnable(
  { src, dst }: Declaration,
  { selectors }: Pick<ExchangeContext, 'selectors'>,
  within = '',
): void {
  if (src.queue === TOO_MANY_HOPS) {
    const path = pathWithin(within, 'src.queue');
    throw invalidParameter(
      path,
      `${path}: exchanges do not consume ${quote(TOO_MANY_HOPS)}: elements that have passed too many of them would return to it. Remove their x-hop-count with the operation set, and move them.`,
    );
  }
  const first = dst.findIndex(({ selector }) => selector !== undefined);
  if (selectors || first < 0) return;
  const path = pathWithin(within, `dst[${first}].selector`);
  throw invalidParameter(path, `${path}: this server runs with selectors: off.`);
}

/**
 * Whether the namespaces have capacity for the queues of a new exchange: one that is stored has its queues already.
 * @throws QuaysideError `too-many-queues`
 */
export function checkQueueLimits(
  { src, dst }: Declaration,
  { broker }: Pick<ExchangeContext, 'broker'>,
): void {
  for (const [ns, queues] of Map.groupBy([src, ...dst], (one) => one.ns)) {
    broker.namespace(ns).checkRoom(queues.map(({ queue }) => queue));
  }
}

/** The rejection of `reserve: true` on a source that has no reservations. */
export function cannotReserve({ name }: Pick<Namespace, 'name'>, within = ''): QuaysideError {
  const path = pathWithin(within, 'consumer.reserve');
  return invalidParameter(
    path,
    `${path}: queues of namespace ${name} do not support reservations; leave it out, and elements are popped.`,
  );
}

function namespaceAt({ broker }: Pick<ExchangeContext, 'broker'>, ns: string, path: string): Namespace {
  try {
    return broker.namespace(ns);
  } catch {
    throw noNamespace(path, ns);
  }
}

/** The rejection of a declaration that names an unknown namespace. */
export function noNamespace(path: string, ns: string): QuaysideError {
  return invalidParameter(path, `${path}: there is no namespace ${quote(ns)}.`);
}

/** On whose behalf something about exchanges is requested. */
export interface Caller {
  readonly name: string;
  /** Exchanges are visible to those who may see the namespace of their source. */
  maySee(namespace: string): boolean;
  /** Whether bodies of the namespace's elements may be shown: what a selector throws may quote one. */
  maySeeBodies(namespace: string): boolean;
}

/** The node itself, which sees all. No user has an empty name. */
export const NODE: Caller = { name: '', maySee: () => true, maySeeBodies: () => true };

/** In no name that a client may send. */
const MARK = '\u001f';

/**
 * Ids of exchanges are unique on the whole server, and one whose source namespace a user may not see must not show by
 * being taken. So if a user creates an exchange with such an id, it is stored under a key of its own, made of the id
 * and the namespace of its source. For most exchanges id and key are the same.
 */
export function scopedKey(id: string, namespace: string): string {
  return id + MARK + namespace;
}

/** The id that the creator of an exchange gave. */
export function idOf(key: string): string {
  const end = key.indexOf(MARK);
  return end < 0 ? key : key.slice(0, end);
}

/**
 * The keys by the ids under which a caller who sees all of them knows them: the given ids and, for the second exchange
 * of an id, `<id>@<namespace of its source>`.
 * @param keys sorted
 */
export function idsOf(keys: readonly string[]): Map<string, string> {
  const byId = new Map<string, string>();
  for (const key of keys) {
    let id = idOf(key);
    if (byId.has(id)) id = `${id}@${key.slice(id.length + MARK.length)}`;
    while (byId.has(id)) id += '@';
    byId.set(id, key);
  }
  return byId;
}
