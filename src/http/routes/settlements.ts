import { requireCapability, requireExpiry } from '../../broker/capabilities.ts';
import {
  FINISH,
  type Queue,
  RELEASE,
  type Receipt,
  type SettleAction,
  type SettleItem,
  type SettleOutcome,
  type SettleResult,
} from '../../broker/queue.ts';
import type { GroupName } from '../../model/element.ts';
import { bodyTooLarge, type QuaysideError } from '../../model/errors.ts';
import { LIMITS } from '../../model/limits.ts';
import { parse } from '../../model/members.ts';
import { isGroup } from '../../model/names.ts';
import { STRICT } from '../../model/records.ts';
import { hasMoreValues } from '../../util/json-scanner.ts';
import { inUnit, Moment, namedObject, optional, type Schema, type Static, Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import type { RequestHead } from '../head.ts';
import { checkOpaque, group, isOpaque, limitedString, opaque, wholeNumber } from '../parameters.ts';
import { parseJson, tooMany } from '../request.ts';
import { empty, json, type Route, route } from '../route.ts';

const EmptyObject = namedObject('Empty', {});

const Extended = namedObject('Extended', { until: Moment });

/** Empty, unless the request has `Prefer: return=representation`. */
const RolledBack = Type.Object({
  state: Type.Optional(Type.Union([Type.Literal('waiting'), Type.Literal('dead-lettered')])),
});

const receiptQuery = {
  group: group('The group of the reserve, if it named one.'),
  token: opaque(
    '`x-ks-lease` of the reserve: the call affects this reservation only, never a later one. Required if another user reserved the element.',
  ),
};

const problems = [
  'element-not-found',
  'not-reserved',
  'lease-lost',
  'token-required',
  'not-supported',
  'invalid-parameter',
] as const;

const doneResponse = json('Done.', EmptyObject);

/**
 * Maximum body size of a settlement of many: enough for 10,000 items with a token, a group and a short reason each.
 * JSON is parsed synchronously, and 4 MiB with few values take up to 60 ms.
 */
const MAX_SETTLE_BYTES = 4_194_304;
/** Values of an item, each with the item itself and all members; and those around the items. */
const ITEM_VALUES = 8;
const OUTER_VALUES = 16;

/** The actions of a settlement of many, which are the members of its body. */
const BATCH_ACTIONS = ['commit', 'rollback', 'release', 'extend', 'bury'] as const;
type BatchAction = (typeof BATCH_ACTIONS)[number];

const OUTCOMES = [
  'done',
  'dead-lettered',
  'not-found',
  'not-reserved',
  'lease-lost',
  'token-required',
] as const satisfies readonly SettleOutcome[];

const receiptMembers = {
  id: Type.String(),
  token: optional(Type.String()),
  group: optional(Type.String()),
};
const reasonMember = { reason: optional(Type.String()) };
const durationMember = (minimum: number) =>
  optional(inUnit('milliseconds', Type.Integer({ minimum, maximum: LIMITS.delayMs })));

const Item = Type.Object(receiptMembers, STRICT);
const RollbackItem = Type.Object({ ...receiptMembers, delay: durationMember(0), ...reasonMember }, STRICT);
const ExtendItem = Type.Object({ ...receiptMembers, lease: durationMember(1) }, STRICT);
const BuryItem = Type.Object({ ...receiptMembers, ...reasonMember }, STRICT);
/** An item of any action. */
type SettleItemBody = Static<typeof RollbackItem> & Static<typeof ExtendItem>;

/** Items, each an object or the id alone. */
const items = <T>(item: Schema<T>) => Type.Optional(Type.Array(Type.Union([Type.String(), item])));

const SettleManyRequest = namedObject(
  'SettleManyRequest',
  {
    commit: items(Item),
    rollback: items(RollbackItem),
    release: items(Item),
    extend: items(ExtendItem),
    bury: items(BuryItem),
  },
  STRICT,
);

const SettledMany = namedObject('SettledMany', {
  results: Type.Array(
    Type.Object({
      id: Type.String(),
      action: Type.Enum([...BATCH_ACTIONS]),
      outcome: Type.Enum([...OUTCOMES]),
      until: Type.Optional(Moment),
    }),
  ),
});

/** Routes that remove and settle elements, one or many. */
export const settleRoutes: readonly Route[] = [
  route({
    id: 'remove',
    methods: ['DELETE'],
    path: '/q/:namespace/:queue/:id',
    summary: 'Remove a waiting element',
    access: 'manage',
    isAudited: true,
    responses: [empty(204, 'Removed.')],
    problems: ['element-not-found', 'element-reserved', 'not-supported', 'invalid-parameter'],
    async handle(call) {
      requireCapability(call.namespace, 'remove');
      await call.queue.remove(checkOpaque('id', call.param('id')));
      call.sendEmpty(204);
    },
  }),
  ...(
    [
      ['commit', 'Finish a reserved element', FINISH],
      ['release', 'Release a reserved element unprocessed; no try is counted', RELEASE],
    ] as const
  ).map(([id, summary, action]) =>
    route({
      id,
      methods: ['PATCH', 'POST'],
      path: `/q/:namespace/:queue/${id}/:id`,
      summary,
      access: 'read',
      query: receiptQuery,
      responses: [doneResponse],
      problems,
      handle(call, query) {
        requireCapability(call.namespace, 'reserve');
        return call.queue.settle(receipt(call, query), action).then(() => call.sendText(200, '{}'));
      },
    }),
  ),
  route({
    id: 'rollback',
    methods: ['PATCH', 'POST'],
    path: '/q/:namespace/:queue/rollback/:id',
    summary: 'Roll back a reserved element; counts a failed try',
    access: 'read',
    query: {
      delay: wholeNumber(
        'Time until it is eligible again. Defaults to the retry delay of the queue if it has one, else to none.',
        { from: 0, to: LIMITS.delayMs, unit: 'milliseconds' },
        null,
      ),
      reason: limitedString(
        'Why it failed: stored with the element, and `x-dl-reason` of a dead letter.',
        LIMITS.reasonBytes,
      ),
      ...receiptQuery,
    },
    headers: { prefer: '`return=representation`: the response contains the outcome for the element.' },
    responses: [
      {
        ...doneResponse,
        schema: RolledBack,
        headers: { 'preference-applied': '`return=representation`, if it was requested.' },
      },
    ],
    problems,
    async handle(call, { delay, reason, ...query }) {
      requireCapability(call.namespace, 'reserve');
      if (delay !== null && delay > 0) requireCapability(call.namespace, 'sched', 'delay');
      if (reason !== null) requireExpiry(call.namespace, 'reason', 'reasons');
      const { outcome } = await call.queue.settle(receipt(call, query), rollbackAction(delay, reason));
      if (!prefersRepresentation(call.head)) call.sendText(200, '{}');
      else
        call.sendJson({ state: outcome === 'dead-lettered' ? outcome : 'waiting' }, REPRESENTATION_APPLIED);
    },
  }),
  route({
    id: 'extend',
    methods: ['PATCH', 'POST'],
    path: '/q/:namespace/:queue/extend/:id',
    summary: 'Renew the lease of a reserved element',
    access: 'read',
    query: {
      lease: wholeNumber(
        'Length from now; defaults to the lease of the queue.',
        { from: 1, to: LIMITS.delayMs, unit: 'milliseconds' },
        null,
      ),
      ...receiptQuery,
    },
    responses: [
      json('The new end of the lease.', Extended, {
        headers: { 'x-ks-lease-until': 'The same moment.' },
      }),
    ],
    problems,
    async handle(call, { lease, ...query }) {
      requireCapability(call.namespace, 'reserve');
      const until = new Date(await call.queue.extend(receipt(call, query), lease)).toISOString();
      call.sendJson({ until }, ['x-ks-lease-until', until]);
    },
  }),
  route({
    id: 'settleMany',
    methods: ['POST'],
    path: '/q/:namespace/:queue/settle',
    summary: 'Commit, roll back, release, extend and bury many reserved elements in one call',
    access: 'read',
    body: 'json',
    request: SettleManyRequest,
    responses: [json('The outcome of each, in the order of the request.', SettledMany)],
    problems: ['not-supported'],
    async handle(call) {
      requireCapability(call.namespace, 'reserve');
      const { batchBytes, batchCount } = call.front.parts.options;
      const maxBytes = Math.min(batchBytes, MAX_SETTLE_BYTES);
      await call.front.limits.useLargeBody(call, maxBytes, async (body) => {
        // It is parsed synchronously: 4 MiB with many values take up to a second. Counting takes 10 ms.
        const maxValues = ITEM_VALUES * batchCount + OUTER_VALUES;
        if (hasMoreValues(body.toString('latin1'), maxValues)) throw tooManyValues(batchCount);
        await settleMany(call, parseJson(body));
      });
    },
  }),
];

function tooManyValues(limit: number): QuaysideError {
  return bodyTooLarge(
    `The body has more JSON values than ${limit} items can have; ${limit} is the limit (http.batchCount).`,
    limit,
  );
}

const REPRESENTATION_APPLIED = ['preference-applied', 'return=representation'] as const;

interface ReceiptQuery {
  readonly group: GroupName | null;
  readonly token: string | null;
}

function receipt(call: HttpCall, { group, token }: ReceiptQuery): Receipt {
  return { id: checkOpaque('id', call.param('id')), group, token, owner: call.user.name };
}

/** @param delayMs null: the retry delay of the queue, if it has one */
function rollbackAction(delayMs: number | null, reason: string | null): SettleAction {
  return { kind: 'release', delayMs: delayMs ?? 0, isDefaultDelay: delayMs === null, countTry: true, reason };
}

const REPRESENTATION = /(?:^|,)\s*return\s*=\s*"?representation"?\s*(?:[,;]|$)/i;

/** `Prefer: return=representation` (RFC 7240). */
function prefersRepresentation({ prefer }: RequestHead): boolean {
  return prefer !== null && REPRESENTATION.test(prefer);
}

/**
 * Approximate bytes per element in the response. They are counted before anything is changed, because an error response
 * must mean that nothing was changed.
 */
const OUTCOME_BYTES = 128;

async function settleMany(call: HttpCall, payload: unknown): Promise<void> {
  const { queue, user } = call;
  const batch = readSettleItems(payload, queue, user.name, call.front.parts.options.batchCount);
  const toSettle: SettleItem[] = [];
  for (const { settle } of batch) if (typeof settle !== 'string') toSettle.push(settle);
  call.front.limits.holdUnread(call, OUTCOME_BYTES * batch.length);
  const results = toSettle.length === 0 ? [] : await queue.settleAll(toSettle);
  call.sendText(200, `{"results":[${resultsOf(batch, results).join(',')}]}`);
}

/** @param settled the results of the items that were sent to the engine, in their order */
function resultsOf(batch: readonly BatchItem[], settled: readonly SettleResult[]): string[] {
  let at = 0;
  return batch.map(({ id, action, settle }) => {
    const result = typeof settle === 'string' ? null : settled[at++];
    const outcome: SettleOutcome = typeof settle === 'string' ? settle : (result?.outcome ?? 'not-found');
    const until = result?.until == null ? '' : `,"until":"${new Date(result.until).toISOString()}"`;
    return `{"id":${JSON.stringify(id)},"action":"${action}","outcome":"${outcome}"${until}}`;
  });
}

/** One item of a settlement of many. */
interface BatchItem {
  readonly id: string;
  readonly action: BatchAction;
  /** What is sent to the engine; or the outcome, if no element can match. */
  readonly settle: SettleItem | SettleOutcome;
}

/**
 * Reads the body of a settlement of many, in its order. A body of another shape is an error. An item that cannot match
 * any element, for example an id with a space, only gets an outcome.
 * @param owner the user who settles
 * @throws QuaysideError `invalid-parameter` with the path; `body-too-large`; `not-supported`
 */
function readSettleItems(payload: unknown, queue: Queue, owner: string, maxCount: number): BatchItem[] {
  const body = parse(SettleManyRequest, payload);
  const items: BatchItem[] = [];
  for (const action of Object.keys(body) as BatchAction[]) {
    const list: readonly (string | SettleItemBody)[] = body[action] ?? [];
    if (items.length + list.length > maxCount) throw tooMany('items', maxCount);
    for (const item of list) {
      items.push(readItem(action, typeof item === 'string' ? { id: item } : item, queue, owner));
    }
  }
  return items;
}

function readItem(action: BatchAction, item: SettleItemBody, queue: Queue, owner: string): BatchItem {
  const { id, token = null } = item;
  const group = item.group?.trim() ?? null;
  const settleAction = actionOf(action, item, queue);
  let settle: SettleItem | SettleOutcome;
  if (!isOpaque(id) || (group !== null && !isGroup(group))) settle = 'not-found';
  else if (token !== null && !isOpaque(token)) settle = 'lease-lost';
  else settle = queue.item({ id, group, token, owner }, settleAction);
  return { id, action, settle };
}

function actionOf(action: BatchAction, item: SettleItemBody, queue: Queue): SettleAction {
  if (action === 'commit') return FINISH;
  if (action === 'release') return RELEASE;
  if (action === 'extend') return { kind: 'extend', leaseMs: item.lease ?? queue.settings.leaseMs };
  const { namespace } = queue;
  // The engine truncates long reasons: one long error message must not keep the other elements reserved.
  const reason = item.reason || null;
  if (reason !== null) requireExpiry(namespace, undefined, 'reasons');
  if (action === 'bury') {
    // Without a dead-letter queue, the retry delay keeps a worker from getting the element again at once.
    return queue.hasDeadLetterQueue
      ? { kind: 'dead-letter', countTry: true, reason }
      : rollbackAction(null, reason);
  }
  const { delay = null } = item;
  if (delay !== null && delay > 0) requireCapability(namespace, 'sched');
  return rollbackAction(delay, reason);
}
