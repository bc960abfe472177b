import type { Namespace } from '../broker/namespace.ts';
import { invalidParameter, type QuaysideError } from '../model/errors.ts';
import { textFingerprint } from '../model/fingerprint.ts';
import { parse } from '../model/members.ts';
import { ExchangeDeclaration } from '../model/records.ts';
import type { UserRights } from '../model/rights.ts';
import { quote } from '../util/quote.ts';
import { TOO_MANY_HOPS } from './copies.ts';
import type { ExchangeContext } from './exchange.ts';

/** An exchange as it was declared (spec 4.2, Create payload), with its members in a fixed order. */
export interface Declaration {
  readonly src: DeclaredQueue;
  readonly dst: readonly (DeclaredQueue & { readonly selector?: string })[];
  /** As given, since the record shows it unchanged. */
  readonly consumer: ExchangeDeclaration['consumer'];
}

export type DeclaredQueue = ExchangeDeclaration['src'];

export const CONSUMER_DEFAULTS = { parallel: 1, wsize: 1000, reserve: false } as const;

/**
 * Parses a create payload. Unknown members are rejected: a misspelt `selector` would copy every element.
 * @throws QuaysideError `invalid-parameter` with the path of the field
 */
export function parseDeclaration(payload: unknown): Declaration {
  return toDeclaration(parse(ExchangeDeclaration, payload));
}

/** The members of a declaration without any others, in a fixed order, so that equal ones have equal JSON. */
export function toDeclaration({ src, dst, consumer }: ExchangeDeclaration): Declaration {
  const { parallel, wsize, reserve } = consumer;
  return {
    src: { ns: src.ns, queue: src.queue },
    dst: dst.map(({ ns, queue, selector }) => ({ ns, queue, ...(selector != null && { selector }) })),
    consumer: {
      ...(parallel !== undefined && { parallel }),
      ...(wsize !== undefined && { wsize }),
      ...(reserve !== undefined && { reserve }),
    },
  };
}

/** The path in the request body of a declaration's field. */
export function pathWithin(within: string, path: string): string {
  return within === '' ? path : `${within}.${path}`;
}

/** Whether two declarations are equal, field by field, with options as given. */
export function sameDeclaration(a: Declaration, b: Declaration): boolean {
  return JSON.stringify(toDeclaration(a)) === JSON.stringify(toDeclaration(b));
}

/** A hash of a declaration, equal on every node. */
export function versionOf(declaration: Declaration): string {
  return textFingerprint(JSON.stringify(toDeclaration(declaration)));
}

/**
 * Checks that a declaration could be created on this node.
 * @param within path of the declaration in the request body; '' if it is the body
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
 * Rejects a destination that is listed twice without a selector: each element would be stored there twice. Stored
 * exchanges are not checked.
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
 * Checks that this server can run a declaration, which may be a stored one.
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
 * Checks that the namespaces have capacity for the queues of a new or changed exchange. Not for a stored one, whose
 * queues were admitted before.
 * @throws QuaysideError `too-many-queues`
 */
export function checkQueueLimits(
  { src, dst }: Declaration,
  { broker }: Pick<ExchangeContext, 'broker'>,
): void {
  for (const [ns, queues] of Map.groupBy([src, ...dst], (one) => one.ns)) {
    broker.namespace(ns).checkQueueLimit(queues.map(({ queue }) => queue));
  }
}

/** The error of `reserve: true` if the source does not support reservations. */
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

/** The error of a declaration with an unknown namespace. */
export function noNamespace(path: string, ns: string): QuaysideError {
  return invalidParameter(path, `${path}: there is no namespace ${quote(ns)}.`);
}

/** The part of a definition that is not the declaration. */
export interface ExchangeState {
  readonly stopped: boolean | null;
  readonly lastError: string | null;
}

/** The content of an exchange's definition. */
export interface StoredExchange extends ExchangeState {
  readonly declaration: Declaration;
  /**
   * The user on whose behalf it runs: who declared it, or started it last after its owner was lost. Empty for the node
   * itself, if the configuration file declares it, or if the definition is from before there were owners.
   */
  readonly owner: string;
}

export function toValue({ declaration, owner, stopped, lastError }: StoredExchange): StoredExchange {
  return { declaration: toDeclaration(declaration), owner, stopped, lastError };
}

/** @throws QuaysideError `invalid-parameter` if the definition is not that of an exchange */
export function toStored(value: unknown): StoredExchange {
  const { declaration, owner, stopped, lastError } = value as {
    declaration?: unknown;
    owner?: unknown;
    stopped?: unknown;
    lastError?: unknown;
  };
  return {
    declaration: parseDeclaration(declaration),
    owner: typeof owner === 'string' ? owner : '',
    stopped: typeof stopped === 'boolean' ? stopped : null,
    lastError: typeof lastError === 'string' ? lastError : null,
  };
}

/** Returns the rights of a user; null: there is no such user. */
export type FindOwner = (name: string) => Pick<UserRights, 'may'> | null;

/** Why an exchange may not run on behalf of its owner any more; null: it may. Does not mention namespaces. */
export function lostOwner(
  { owner, declaration: { src, dst } }: Pick<StoredExchange, 'owner' | 'declaration'>,
  find: FindOwner,
): string | null {
  if (owner === '') return null;
  const rights = find(owner);
  if (rights === null) {
    return `User ${quote(owner)}, who declared this exchange, is no longer a user. A user who starts it becomes its owner.`;
  }
  const hasAll =
    rights.may('exchange', src.ns) &&
    rights.may('read', src.ns) &&
    dst.every(({ ns }) => rights.may('write', ns));
  if (hasAll) return null;
  return `User ${quote(owner)}, who declared this exchange, has lost a right that it needs.`;
}

/** The user on whose behalf an operation is requested. An exchange is visible if the namespace of its source is. */
export type Caller = Pick<UserRights, 'name' | 'maySee' | 'maySeeBodies'>;

/** The node itself, which may do and see everything. No user has an empty name. */
export const NODE: UserRights = {
  name: '',
  may: () => true,
  maySee: () => true,
  maySeeBodies: () => true,
};

/** A character that names from clients cannot contain. */
const SEPARATOR = '\u001f';

/**
 * The key of an exchange whose id is taken by one that its creator may not see. Ids are unique on the whole server, but
 * rejecting such an id would reveal the other exchange. So the new one is stored under a key made of the id and the
 * namespace of its source. For most exchanges id and key are equal.
 */
export function scopedKey(id: string, namespace: string): string {
  return id + SEPARATOR + namespace;
}

/** The id that the creator of an exchange gave. */
export function idOf(key: string): string {
  const end = key.indexOf(SEPARATOR);
  return end < 0 ? key : key.slice(0, end);
}

/**
 * Maps ids to keys, for a caller who sees all of these exchanges. The first exchange of an id has that id, the second
 * one `<id>@<namespace of its source>`.
 * @param keys sorted
 */
export function idsOf(keys: readonly string[]): Map<string, string> {
  const byId = new Map<string, string>();
  for (const key of keys) {
    let id = idOf(key);
    if (byId.has(id)) id = `${id}@${key.slice(id.length + SEPARATOR.length)}`;
    while (byId.has(id)) id += '@';
    byId.set(id, key);
  }
  return byId;
}
