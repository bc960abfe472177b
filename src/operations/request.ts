import type { Broker } from '../broker/broker.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import { DELIVERY_STATES, type DeliveryState, type ElementId, type GroupName } from '../model/element.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { checkHeaders } from '../model/headers.ts';
import { LIMITS } from '../model/limits.ts';
import {
  atMember,
  booleanMember,
  bytesMember,
  type Members,
  memberPath,
  membersOf,
  nameMember,
  wholeMember,
  wrongMember,
} from '../model/members.ts';
import { checkGroup } from '../model/names.ts';
import { ACTIONS, type Action, MAX_IDS, MAX_RATE } from '../model/records.ts';
import { SERVICE_HEADERS } from '../model/service-headers.ts';
import { toByteString } from '../util/byte-string.ts';
import { quote } from '../util/quote.ts';

/** The states that `where.state` may name. */
export const STATES = [...DELIVERY_STATES, 'all'] as const;

/** A queue that a request names. */
interface NamedQueue {
  readonly ns: string;
  /** Empty with `migrate`, which names namespaces. */
  readonly queue: string;
}

/** Which elements of the source an operation applies to. */
interface Where {
  /** Null: the default states of the action. `all`: every state that the action may change. */
  readonly state: (typeof STATES)[number] | null;
  /** On a stream; null: the namespace's default. */
  readonly group: GroupName | null;
  readonly ids: readonly ElementId[] | null;
  /** Source of a selector. */
  readonly selector: string | null;
  /** Only elements that were inserted longer ago than this, ms. */
  readonly olderThanMs: number | null;
}

/** A bulk operation as it was requested. */
export interface OperationRequest {
  readonly action: Action;
  readonly source: NamedQueue;
  readonly where: Where;
  /** Target of `move`, `copy` and `migrate`; null for other actions. */
  readonly to: NamedQueue | null;
  /** For `delay`: ms from the start of the operation; null for other actions. */
  readonly delayMs: number | null;
  /** For `set`: the change; null for other actions. */
  readonly set: ElementChange | null;
  /** Maximum elements to change; null: no limit. */
  readonly limit: number | null;
  /** Maximum elements per second; null: no limit. */
  readonly rate: number | null;
  /** Changes nothing: counts, and shows samples. */
  readonly dryRun: boolean;
}

type OperationRight = 'manage' | 'write' | 'browse' | 'read';

/** The rights of a user that operations check. */
export interface OperatorRights {
  may(right: OperationRight, namespace: string): boolean;
}

/**
 * The rights that the user of an operation needs until its end: `manage` in the source's namespace, `write` where
 * elements are stored, and `read` if they leave the namespace.
 */
export function rightsFor({
  action,
  source,
  to,
  where,
  dryRun,
}: OperationRequest): (readonly [right: OperationRight, namespace: string])[] {
  const storesInSource = action === 'redrive' || action === 'set';
  const looks = dryRun || where.selector !== null;
  return [
    ['manage', source.ns],
    ...(storesInSource ? [['write', source.ns] as const] : []),
    ...(looks ? [['browse', source.ns] as const] : []),
    ...(to === null ? [] : [['write', to.ns] as const]),
    // Nobody else limits what the namespace will store on the target's engine.
    ...(to === null || action !== 'migrate' ? [] : [['manage', to.ns] as const]),
    // Otherwise a user with `manage` only could copy bodies to a namespace where they may read them.
    ...(to === null || to.ns === source.ns ? [] : [['read', source.ns] as const]),
  ];
}

/** The change that `set` makes to an element. */
export interface ElementChange {
  /** Flat list: name, value, …. The value null removes the header. */
  readonly headers: readonly (string | null)[];
  /** Null: unchanged. */
  readonly tries: number | null;
}

const MAX_LIMIT = 1_000_000_000;

const MEMBERS = ['action', 'source', 'where', 'to', 'delay', 'set', 'limit', 'rate', 'dryRun'] as const;

/**
 * Parses the body of a request for an operation. Unknown members are rejected: a misspelt `where` would match
 * everything.
 * @throws QuaysideError `invalid-parameter` with the path of the member
 */
export function parseRequest(payload: unknown): OperationRequest {
  const members = membersOf(payload, '', MEMBERS);
  const { action, dryRun = false } = members;
  const known = ACTIONS.find((one) => one === action);
  if (known === undefined) throw wrongMember('action', action, `one of ${ACTIONS.join(', ')}`);
  const isDryRun = booleanMember('dryRun', dryRun);
  if (known === 'migrate') return parseMigration(members);
  const isMove = known === 'move' || known === 'copy';
  const source = queueAt(members.source, 'source');
  const where = parseWhere(members.where);
  checkState(known, where);
  return {
    action: known,
    source,
    where,
    to: expectsMember(members, 'to', known, isMove) ? queueAt(members.to, 'to') : null,
    delayMs: expectsMember(members, 'delay', known, known === 'delay')
      ? wholeMember('delay', members.delay, 0, LIMITS.delayMs, 'milliseconds')
      : null,
    set: expectsMember(members, 'set', known, known === 'set') ? parseSet(members.set) : null,
    limit: optional(members.limit, (value) => wholeMember('limit', value, 1, MAX_LIMIT, 'a count')),
    rate: optional(members.rate, (value) => wholeMember('rate', value, 1, MAX_RATE, 'elements a second')),
    dryRun: isDryRun,
  };
}

/** A migration moves a whole namespace, so members that select elements are rejected. */
function parseMigration(members: Members): OperationRequest {
  for (const name of MEMBERS) {
    if (name !== 'action' && name !== 'source' && name !== 'to')
      expectsMember(members, name, 'migrate', false);
  }
  return {
    action: 'migrate',
    source: namespaceAt(members.source, 'source'),
    where: { state: null, group: null, ids: null, selector: null, olderThanMs: null },
    to: namespaceAt(members.to, 'to'),
    delayMs: null,
    set: null,
    limit: null,
    rate: null,
    dryRun: false,
  };
}

/**
 * Returns whether the action has this member. @throws QuaysideError `invalid-parameter` if it has not, and it is given
 */
function expectsMember(members: Members, name: string, action: Action, isMeant: boolean): boolean {
  if (!isMeant && members[name] !== undefined) {
    throw invalidParameter(name, `${name} has no meaning with the action ${action}. Leave it out.`);
  }
  return isMeant;
}

function parseWhere(value: unknown): Where {
  const members = membersOf(value ?? {}, 'where', ['state', 'group', 'ids', 'selector', 'olderThan']);
  const { state, group, ids, selector, olderThan } = members;
  const named = STATES.find((one) => one === state);
  if (state !== undefined && named === undefined) {
    throw wrongMember('where.state', state, `one of ${STATES.join(', ')}`);
  }
  return {
    state: named ?? null,
    group: optional(group, (given) =>
      checkGroup('where.group', stringAt(given, 'where.group', LIMITS.groupLength)),
    ),
    ids: optional(ids, parseIds),
    selector: optional(selector, (given) => stringAt(given, 'where.selector', LIMITS.selectorBytes)),
    olderThanMs: optional(
      olderThan,
      (given) => wholeMember('where.olderThan', given, 0, LIMITS.delayMs / 1000, 'seconds') * 1000,
    ),
  };
}

/**
 * Checks that the action may change elements in this state: only `release` changes reserved elements, and no others.
 */
function checkState(action: Action, { state }: Where): void {
  if (action === 'count' || state === null || state === 'all') return;
  if ((action === 'release') === (state === 'reserved')) return;
  const allowed = action === 'release' ? 'reserved' : 'ready, scheduled, all';
  throw invalidParameter(
    'where.state',
    `where.state cannot be ${state} with the action ${action}. Allowed: ${allowed}.`,
  );
}

function parseIds(value: unknown): ElementId[] {
  if (!Array.isArray(value)) throw wrongMember('where.ids', value, 'an array of ids');
  if (value.length === 0 || value.length > MAX_IDS) {
    throw invalidParameter('where.ids', `where.ids must have 1 to ${MAX_IDS} ids, not ${value.length}.`);
  }
  return [...new Set(value.map((id, i) => stringAt(id, `where.ids[${i}]`, LIMITS.idLength)))];
}

function parseSet(value: unknown): ElementChange {
  const { headers = {}, tries } = membersOf(value, 'set', ['headers', 'tries']);
  const entries = Object.entries(membersOf(headers, 'set.headers', null));
  const removed: string[] = [];
  const written: string[] = [];
  const seen = new Set<string>();
  for (const [spelling, text] of entries) {
    const path = memberPath('set.headers', spelling);
    const name = spelling.toLowerCase();
    if (seen.has(name)) throw invalidParameter(path, `${path} is given twice; letter case does not count.`);
    seen.add(name);
    if (text !== null && typeof text !== 'string')
      throw wrongMember(path, text, 'a string, or null to remove the header');
    if (text === null) removed.push(toByteString(name));
    else if (SERVICE_HEADERS.has(name)) {
      throw invalidParameter(
        path,
        `${path} is a header that the service writes. It can only be removed, with null.`,
      );
    } else written.push(toByteString(name), bytesMember(path, text));
  }
  checkHeaders(written);
  checkHeaders(removed.flatMap((name) => [name, '']));
  if (entries.length === 0 && tries === undefined) {
    throw invalidParameter('set', 'set changes nothing. Give headers, tries, or both.');
  }
  return {
    headers: [...written, ...removed.flatMap((name) => [name, null])],
    tries: optional(tries, (one) => wholeMember('set.tries', one, 0, LIMITS.tries, 'a count')),
  };
}

function optional<T>(value: unknown, read: (value: unknown) => T): T | null {
  return value === undefined || value === null ? null : read(value);
}

function queueAt(value: unknown, path: string): NamedQueue {
  const { ns, queue } = membersOf(value, path, ['ns', 'queue']);
  return { ns: nameMember(`${path}.ns`, ns), queue: nameMember(`${path}.queue`, queue) };
}

function namespaceAt(value: unknown, path: string): NamedQueue {
  const { ns } = membersOf(value, path, ['ns']);
  return { ns: nameMember(`${path}.ns`, ns), queue: '' };
}

function stringAt(value: unknown, path: string, maxLength: number): string {
  if (typeof value === 'string' && value.length >= 1 && value.length <= maxLength) return value;
  if (typeof value !== 'string') throw wrongMember(path, value, `a string of 1 to ${maxLength} characters`);
  throw invalidParameter(path, `${path} has ${value.length} characters. Allowed: 1 to ${maxLength}.`);
}

/** The states of the deliveries to search, in the order of the search. */
export function statesOf({ action, where: { state } }: OperationRequest): DeliveryState[] {
  if (action === 'release') return ['reserved'];
  if (state !== null && state !== 'all') return [state];
  // Scheduled first: an element that matures during the operation is then found among the ready ones.
  const waiting: DeliveryState[] = ['scheduled', 'ready'];
  return action === 'count' ? [...waiting, 'reserved'] : waiting;
}

/** The queues of a request on this node. */
export interface OperationQueues {
  readonly source: Queue;
  readonly group: GroupName;
  /** For `move` and `copy`; null for other actions. */
  readonly target: Queue | null;
}

/**
 * Returns the queues that a request names, after checking that their engines support it.
 * @throws QuaysideError `namespace-not-found`, `invalid-parameter`, `not-supported`
 */
export function queuesOf(request: OperationRequest, broker: Broker): OperationQueues {
  const { source, to, where, action, dryRun } = request;
  const namespace = atMember('source.ns', () => broker.namespace(source.ns));
  if (where.group !== null && !namespace.isStream) {
    throw invalidParameter(
      'where.group',
      `where.group ${quote(where.group)} does not exist: namespace ${quote(source.ns)} has plain queues. Leave it out.`,
    );
  }
  const target = to === null ? null : atMember('to.ns', () => broker.namespace(to.ns)).visit(to.queue);
  const queues = {
    source: namespace.visit(source.queue),
    group: where.group ?? namespace.defaultGroup,
    target,
  };
  if (to !== null && to.ns === source.ns && to.queue === source.queue) {
    throw invalidParameter('to', `to is the source. Choose another queue to ${action} elements to.`);
  }
  if (where.ids !== null && !namespace.storage.capabilities.remove)
    throw notSupported('where.ids', namespace);
  if (action !== 'count' && !dryRun) mustSupport(action, namespace);
  return queues;
}

function mustSupport(action: Action, namespace: Namespace): void {
  const { pipeline, remove, reserve } = namespace.storage.capabilities;
  if (action === 'release' ? reserve : remove) {
    const needsPipeline = action === 'move' || action === 'redrive' || action === 'set';
    if (pipeline || !needsPipeline) return;
  }
  throw notSupported(`the action ${action}`, namespace);
}

function notSupported(what: string, { name, type }: Namespace): QuaysideError {
  const hint = 'They can be counted, and purged with DELETE /q/:namespace/:queue/elements';
  return new QuaysideError(
    'not-supported',
    `Queues of namespace ${quote(name)} (${type}) do not support ${what}. ${hint}.`,
  );
}
