import type { Broker } from '../broker/broker.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import type { DeliveryState, ElementId, GroupName } from '../model/element.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { checkHeadersAt, headerEntries } from '../model/json-headers.ts';
import { atMember, memberPath, parse, wrongMember } from '../model/members.ts';
import {
  type Action,
  OPERATION_MEMBERS,
  type OPERATION_SCOPES,
  OperationDeclaration,
  type OperationPlace,
} from '../model/records.ts';
import type { Right } from '../model/rights.ts';
import { SERVICE_HEADERS } from '../model/service-headers.ts';
import { toByteString } from '../util/byte-string.ts';
import { quote } from '../util/quote.ts';

/** A queue that a request names. */
interface NamedQueue {
  readonly ns: string;
  /** Empty with `migrate`, which names namespaces. */
  readonly queue: string;
}

/** Which elements of the source an operation applies to. */
interface Where {
  /** Null: the default states of the action. `all`: every state that the action may change. */
  readonly state: (typeof OPERATION_SCOPES)[number] | null;
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
}: OperationRequest): (readonly [right: Right, namespace: string])[] {
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

/**
 * Parses the body of a request for an operation. Unknown members are rejected: a misspelt `where` would match
 * everything.
 * @throws QuaysideError `invalid-parameter` with the path of the member
 */
export function parseRequest(payload: unknown): OperationRequest {
  const members = parse(OperationDeclaration, payload);
  const { action, source, where, to, delay, set, limit = null, rate = null, dryRun = false } = members;
  if (action === 'migrate') return migrationRequest(members);
  const isMove = action === 'move' || action === 'copy';
  const { state = null, group, ids = null, selector = null, olderThan = null } = where ?? {};
  checkState(action, state);
  return {
    action,
    source: queueAt(source, 'source'),
    where: {
      state,
      group: group?.trim() ?? null,
      ids: ids && [...new Set(ids)],
      selector,
      olderThanMs: olderThan === null ? null : olderThan * 1000,
    },
    to: expectsMember(members, 'to', isMove) ? queueAt(parse(OPERATION_MEMBERS.to, to, 'to'), 'to') : null,
    delayMs: expectsMember(members, 'delay', action === 'delay')
      ? parse(OPERATION_MEMBERS.delay, delay, 'delay')
      : null,
    set: expectsMember(members, 'set', action === 'set')
      ? toChange(parse(OPERATION_MEMBERS.set, set, 'set'))
      : null,
    limit,
    rate,
    dryRun,
  };
}

/** A migration moves a whole namespace, so members that select elements are rejected. */
function migrationRequest(members: OperationDeclaration): OperationRequest {
  for (const name of ['where', 'delay', 'set', 'limit', 'rate', 'dryRun'] as const) {
    expectsMember(members, name, false);
  }
  return {
    action: 'migrate',
    source: namespaceAt(members.source, 'source'),
    where: { state: null, group: null, ids: null, selector: null, olderThanMs: null },
    to: namespaceAt(parse(OPERATION_MEMBERS.to, members.to, 'to'), 'to'),
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
function expectsMember(
  members: OperationDeclaration,
  name: keyof OperationDeclaration,
  isMeant: boolean,
): boolean {
  if (!isMeant && members[name] !== undefined) {
    throw invalidParameter(name, `${name} has no meaning with the action ${members.action}. Leave it out.`);
  }
  return isMeant;
}

/**
 * Checks that the action may change elements in this state: only `release` changes reserved elements, and no others.
 */
function checkState(action: Action, state: Where['state']): void {
  if (action === 'count' || state === null || state === 'all') return;
  if ((action === 'release') === (state === 'reserved')) return;
  const allowed = action === 'release' ? 'reserved' : 'ready, scheduled, all';
  throw invalidParameter(
    'where.state',
    `where.state cannot be ${state} with the action ${action}. Allowed: ${allowed}.`,
  );
}

function toChange({ headers = {}, tries = null }: NonNullable<OperationDeclaration['set']>): ElementChange {
  const entries = headerEntries('set.headers', headers);
  const removed: string[] = [];
  const written: string[] = [];
  for (const [name, text, spelling] of entries) {
    if (text === null) removed.push(name);
    else if (SERVICE_HEADERS.has(name)) {
      const path = memberPath('set.headers', spelling);
      throw invalidParameter(
        path,
        `${path} is a header that the service writes. It can only be removed, with null.`,
      );
    } else written.push(name, toByteString(text));
  }
  const spellings = Object.keys(headers);
  checkHeadersAt('set.headers', written, spellings);
  checkHeadersAt(
    'set.headers',
    removed.flatMap((name) => [name, '']),
    spellings,
  );
  if (entries.length === 0 && tries === null) {
    throw invalidParameter('set', 'set changes nothing. Give headers, tries, or both.');
  }
  return { headers: [...written, ...removed.flatMap((name) => [name, null])], tries };
}

function queueAt({ ns, queue }: OperationPlace, path: string): NamedQueue {
  if (queue === undefined) throw wrongMember(`${path}.queue`, queue, 'a string');
  return { ns, queue };
}

function namespaceAt({ ns, queue }: OperationPlace, path: string): NamedQueue {
  if (queue === undefined) return { ns, queue: '' };
  const at = `${path}.queue`;
  throw invalidParameter(at, `${at} has no meaning with the action migrate. Leave it out.`);
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
