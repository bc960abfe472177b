import { setImmediate as turn } from 'node:timers/promises';
import { EXPIRY, requireCapability, requireExpiry } from '../../broker/capabilities.ts';
import { momentIn } from '../../broker/engine-time.ts';
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
import type { GroupName, NewElement } from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import { contentFingerprint, RequestFingerprint, requestKey, userKey } from '../../model/fingerprint.ts';
import { checkHeaders, ELEMENT_HEADER_PREFIX } from '../../model/headers.ts';
import { LIMITS } from '../../model/limits.ts';
import { type Members, membersOf, wholeMember, wrongMember } from '../../model/members.ts';
import { isGroup } from '../../model/names.ts';
import { quote } from '../../util/quote.ts';
import { Moment, namedObject, orNull, type Properties, type Schema, Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import { idempotencyKeyOf, MAX_KEY_LENGTH, type RequestHead } from '../head.ts';
import {
  checkOpaque,
  duration,
  group,
  groups,
  isOpaque,
  limitedString,
  opaque,
  seconds,
  unixTime,
  wholeNumber,
} from '../parameters.ts';
import { parseJson, readBody } from '../request.ts';
import { json, type Route, route } from '../route.ts';
import { elementsReader, errorIn, type GivenElement, readAt, type SentElements } from '../sent-elements.ts';
import { MULTIPART, NDJSON } from '../written-elements.ts';

const Inserted = namedObject('Inserted', { id: Type.String() });

const REPEATED_HEADER = ['x-ks-repeated', 'true'] as const;
const repeatedNote = (description: string) => [{ name: 'x-ks-repeated', description }];

/** The error codes of inserts of one or many elements. */
const insertProblems = [
  'body-too-large',
  'idempotency-mismatch',
  'too-many-groups',
  'namespace-full',
  'queue-full',
  'storage-full',
  'not-supported',
] as const;

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

/** Elements, or bytes of them, that an insert of many prepares before other requests are served. */
const SLICE_ELEMENTS = 500;
const SLICE_BYTES = 262_144;

/**
 * Maximum body size of a settlement of many: enough for 10,000 items with a token, a group and a short reason each.
 * JSON is parsed synchronously, and 4 MiB take up to 60 ms.
 */
const MAX_SETTLE_BYTES = 4_194_304;

/** The actions of a settlement of many, which are the members of its body. */
const BATCH_ACTIONS = ['commit', 'rollback', 'release', 'extend', 'bury'] as const;
type BatchAction = (typeof BATCH_ACTIONS)[number];

const optional = (schema: Schema) => Type.Optional(orNull(schema));

const ElementLine = namedObject(
  'ElementLine',
  {
    json: Type.Optional(
      Type.Unknown({ description: 'The body: this JSON text, exactly as written in the line.' }),
    ),
    text: optional(Type.String({ description: 'The body: this text in UTF-8.' })),
    base64: optional(Type.String({ description: 'The body: any bytes.' })),
    contentType: optional(Type.String({ description: 'With `json`, defaults to `application/json`.' })),
    contentEncoding: optional(Type.String()),
    headers: optional(Type.Record(Type.String(), { description: 'Element headers, without a prefix.' })),
    mature: optional(Type.Number({ minimum: 0, description: 'Unix time in seconds.' })),
    delay: optional(Type.Number({ minimum: 0, description: 'Seconds.' })),
    tries: optional(Type.Integer({ minimum: 0, maximum: LIMITS.tries })),
    groups: optional(Type.Array(Type.String(), { minItems: 1, maxItems: LIMITS.groups })),
    ttl: optional(Type.Number({ minimum: 0.001, description: 'Seconds.' })),
    key: optional(
      Type.String({ minLength: 1, maxLength: MAX_KEY_LENGTH, description: 'The idempotency key.' }),
    ),
  },
  { description: 'One line. The body is one of `json`, `text` and `base64`.' },
);

const InsertedMany = namedObject('InsertedMany', {
  ids: Type.Array(Type.String(), { description: 'In the order of the elements.' }),
  repeated: Type.Optional(
    Type.Array(Type.Integer({ minimum: 0 }), {
      description:
        'Indexes in `ids`, from 0, of elements that were not stored because their key, or that of the request, was used before.',
    }),
  ),
});

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
const items = (members: Properties): Schema =>
  Type.Optional(Type.Array(Type.Union([Type.String(), Type.Object({ ...receiptMembers, ...members })])));
const reasonMember = { reason: optional(Type.String()) };
const delayMember = (minimum: number) => optional(Type.Integer({ minimum, maximum: LIMITS.delayMs }));

const SettleManyRequest = namedObject('SettleManyRequest', {
  commit: items({}),
  rollback: items({ delay: delayMember(0), ...reasonMember }),
  release: items({}),
  extend: items({ lease: delayMember(1) }),
  bury: items(reasonMember),
});

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

/** Routes that insert, remove and settle elements, one or many. */
export const elementRoutes: readonly Route[] = [
  route({
    id: 'insert',
    methods: ['PUT', 'POST'],
    path: '/q/:namespace/:queue',
    summary: 'Insert an element: the body, byte for byte, of any type',
    access: 'write',
    createsQueue: true,
    body: 'element',
    query: {
      mature: unixTime('Not delivered before this moment: Unix time in seconds. Overrides `delay`.'),
      delay: seconds('Not delivered before this many seconds have passed.', LIMITS.delayMs, 0),
      ttl: duration(
        'Seconds until the element expires: it is then no longer delivered, and goes to the dead-letter queue, if there is one.',
        LIMITS.delayMs,
      ),
      tries: wholeNumber(
        'The initial count of failed tries.',
        { from: 0, to: LIMITS.tries, unit: 'a count' },
        0,
      ),
      groups: groups("On a stream: the groups that may consume it; defaults to the namespace's."),
    },
    headers: [
      { name: 'content-type', description: 'Stored, and returned character for character.' },
      { name: 'content-encoding', description: 'Stored and returned; the body is never decoded.' },
      { name: 'x-ks-hdr-*', description: 'Element headers: stored, and returned under the same names.' },
      {
        name: 'idempotency-key',
        description:
          'If the same user repeats the key with the same content, nothing is stored and the first id is returned; with other content, the insert is rejected.',
      },
    ],
    responses: [
      json('Stored.', Inserted, {
        headers: repeatedNote('`true` if the key was used before: nothing was stored.'),
      }),
    ],
    problems: insertProblems,
    handle(call, query) {
      const { head, namespace, queue } = call;
      const { mature, delay, ttl, tries } = query;
      if (mature !== null || delay > 0) requireCapability(namespace, 'sched');
      if (ttl !== null) requireExpiry(namespace, EXPIRY);
      const groups = queue.groups(query.groups);
      const headers = checkHeaders(head.elementHeaders, undefined, ELEMENT_HEADER_PREFIX);
      const key = head.idempotencyKey === null ? null : idempotencyKeyOf(head);
      const dedupKey = key === null ? null : userKey(call.user.name, key);
      readBody(call, call.front.parts.options.bodyLimit, (body) => {
        const { contentType, contentEncoding } = head;
        const content = {
          body,
          contentType,
          contentEncoding,
          headers,
          matureAt: mature,
          delayMs: delay,
          tries,
          groups,
        };
        let repeatedHeader: readonly string[] | undefined;
        const onRepeat = dedupKey === null ? null : () => (repeatedHeader = REPEATED_HEADER);
        queue.insert([newElement(queue, content, ttl, dedupKey)], { user: call.user.name, onRepeat }).then(
          // Engines generate ids that need no escaping.
          ([id]) => call.sendText(200, `{"id":"${id}"}`, repeatedHeader),
          (error: unknown) => call.fail(error),
        );
      });
    },
  }),
  route({
    id: 'remove',
    methods: ['DELETE'],
    path: '/q/:namespace/:queue/:id',
    summary: 'Remove a waiting element',
    access: 'manage',
    isAudited: true,
    responses: [{ status: 204, description: 'Removed.', contentType: null }],
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
        settle(call, query, action, () => call.sendText(200, '{}'));
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
    headers: [
      {
        name: 'prefer',
        description: '`return=representation`: the response contains the outcome for the element.',
      },
    ],
    responses: [
      {
        ...doneResponse,
        schema: RolledBack,
        headers: [
          { name: 'preference-applied', description: '`return=representation`, if it was requested.' },
        ],
      },
    ],
    problems,
    handle(call, { delay, reason, ...query }) {
      requireCapability(call.namespace, 'reserve');
      if (delay !== null && delay > 0) requireCapability(call.namespace, 'sched');
      if (reason !== null) requireExpiry(call.namespace, 'reasons');
      settle(call, query, rollbackAction(delay, reason), ({ outcome }) => {
        if (!prefersRepresentation(call.head)) call.sendText(200, '{}');
        else
          call.sendJson({ state: outcome === 'dead-lettered' ? outcome : 'waiting' }, REPRESENTATION_APPLIED);
      });
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
        headers: [{ name: 'x-ks-lease-until', description: 'The same moment.' }],
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
    id: 'insertMany',
    methods: ['POST'],
    path: '/q/:namespace/:queue/elements',
    summary: 'Insert many elements, all or none: lines of NDJSON, or parts of multipart/mixed',
    access: 'write',
    createsQueue: true,
    body: 'elements',
    request: ElementLine,
    query: {
      mature: unixTime('As on a single insert, for elements that give neither `mature` nor `delay`.'),
      delay: seconds('As on a single insert, for elements that give neither.', LIMITS.delayMs, null),
      ttl: duration('As on a single insert; applies to elements that give none.', LIMITS.delayMs),
      tries: wholeNumber(
        'As on a single insert; applies to elements that give none.',
        { from: 0, to: LIMITS.tries, unit: 'a count' },
        null,
      ),
      groups: groups('As on a single insert; applies to elements that give none.'),
    },
    headers: [
      {
        name: 'content-type',
        description: `\`${NDJSON}\`, or \`${MULTIPART}\` with its boundary.`,
      },
      {
        name: 'idempotency-key',
        description:
          'A key for the whole request instead of keys for its elements. If the same user repeats the key with the same content, nothing is stored and the first ids are returned; with other content, the request is rejected.',
      },
    ],
    responses: [
      json('All are stored.', InsertedMany, {
        headers: repeatedNote('`true` if the key of the request was used before: nothing was stored.'),
      }),
    ],
    problems: ['invalid-body', ...insertProblems],
    handle(call, defaults) {
      const { bodyLimit, batchBytes } = call.front.parts.options;
      const read = elementsReader(call.head, bodyLimit);
      const key = idempotencyKeyOf(call.head);
      call.queue.groups(defaults.groups);
      return call.front.limits.readLargeInTurn(call, batchBytes, (body) =>
        insertMany(call, read(body), { defaults, key }),
      );
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
    problems: ['invalid-body', 'invalid-parameter', 'body-too-large', 'not-supported'],
    handle(call) {
      requireCapability(call.namespace, 'reserve');
      const { batchBytes } = call.front.parts.options;
      const maxBytes = Math.min(batchBytes, MAX_SETTLE_BYTES);
      return call.front.limits.readLargeInTurn(call, maxBytes, (body) => settleMany(call, parseJson(body)));
    },
  }),
];

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

/** Settles the element that the path names. @param respond sends the response */
function settle(
  call: HttpCall,
  query: ReceiptQuery,
  action: SettleAction,
  respond: (result: SettleResult) => void,
): void {
  call.queue.settle(receipt(call, query), action).then(respond, (error: unknown) => call.fail(error));
}

/** The element to insert. @param dedupKey derived from its idempotency key; null: it has none */
function newElement(
  queue: Queue,
  content: Omit<NewElement, 'dedupKey' | 'fingerprint' | 'expiresAt'>,
  ttlMs: number | null,
  dedupKey: string | null,
): NewElement {
  return {
    ...content,
    dedupKey,
    fingerprint: dedupKey === null ? null : contentFingerprint(content, ttlMs),
    expiresAt: ttlMs === null ? null : momentIn(ttlMs, queue.namespace, queue.key),
  };
}

const REPRESENTATION = /(?:^|,)\s*return\s*=\s*"?representation"?\s*(?:[,;]|$)/i;

/** `Prefer: return=representation` (RFC 7240). */
function prefersRepresentation({ prefer }: RequestHead): boolean {
  return prefer !== null && REPRESENTATION.test(prefer);
}

/** The values of the query, for elements that do not have their own. */
interface Defaults {
  readonly mature: number | null;
  readonly delay: number | null;
  readonly ttl: number | null;
  readonly tries: number | null;
  readonly groups: readonly GroupName[] | null;
}

/**
 * Approximate bytes per element in the response to a request of many. They are counted before anything is changed,
 * because an error response must mean that nothing was changed.
 */
const RECORD_BYTES = { id: 32, outcome: 128 };

/** @param key the idempotency key of the request */
async function insertMany(
  call: HttpCall,
  { place, elements }: SentElements,
  { defaults, key }: { defaults: Defaults; key: string | null },
): Promise<void> {
  const { queue, user } = call;
  const { batchCount } = call.front.parts.options;
  const fingerprint = key === null ? null : new RequestFingerprint();
  const toElement = elementMaker(queue, user.name, { defaults, fingerprint });
  const batch: NewElement[] = [];
  /** The numbers of their lines or parts. */
  const numbers: number[] = [];
  let bytes = 0;
  let deliveries = 0;
  for (const { number, element } of elements) {
    readAt(place, number, () => {
      if (batch.length === batchCount) throw tooMany('elements', batchCount);
      if (key !== null && element.key !== null) throw secondKey(place, element.key);
      const made = toElement(element);
      deliveries += made.groups.length;
      if (deliveries > LIMITS.insertDeliveries) throw tooManyDeliveries();
      batch.push(made);
    });
    numbers.push(number);
    bytes += element.body.byteLength;
    if (batch.length % SLICE_ELEMENTS !== 0 && bytes < SLICE_BYTES) continue;
    bytes = 0;
    await turn();
  }
  if (call.isGone) return;
  call.front.limits.holdUnread(call, RECORD_BYTES.id * batch.length);
  const repeated: number[] = [];
  let ids: readonly string[] = [];
  try {
    const request =
      key === null || fingerprint === null
        ? null
        : { key: requestKey(user.name, key), fingerprint: fingerprint.text() };
    if (batch.length > 0)
      ids = await queue.insert(batch, {
        user: user.name,
        onRepeat: (index) => repeated.push(index),
        request,
      });
  } catch (error) {
    throw key === null ? namedByPlace(error, place, numbers) : error;
  }
  // Engines generate ids that need no escaping.
  const list = ids.length === 0 ? '' : `"${ids.join('","')}"`;
  const more = repeated.length === 0 ? '' : `,"repeated":[${repeated.sort((a, b) => a - b).join(',')}]`;
  call.sendText(
    200,
    `{"ids":[${list}]${more}}`,
    key === null || repeated.length === 0 ? undefined : REPEATED_HEADER,
  );
}

/** The error for an element with a key of its own, in a request that has one. */
function secondKey(place: SentElements['place'], key: string): QuaysideError {
  const parameter = place === 'line' ? 'key' : 'idempotency-key';
  const message = `${parameter} ${quote(key)} cannot be given in addition to the Idempotency-Key of the request. Give either a key for the request or keys for its elements.`;
  return new QuaysideError('invalid-parameter', message, { parameter });
}

/** Adds the number of the line or part to an error about one of the elements. */
function namedByPlace(error: unknown, place: SentElements['place'], numbers: readonly number[]): unknown {
  if (!(error instanceof QuaysideError)) return error;
  const { index, ...extra } = error.details.extra ?? {};
  const number =
    numbers.length === 1 && error.code === 'idempotency-mismatch' ? numbers[0] : numbers[index as number];
  if (number === undefined) return error;
  return errorIn(place, number, error.with({ extra }));
}

/** Returns a function that makes elements of parsed ones. It throws `not-supported` and `invalid-parameter`. */
function elementMaker(
  queue: Queue,
  user: string,
  { defaults, fingerprint }: { defaults: Defaults; fingerprint: RequestFingerprint | null },
): (sent: GivenElement) => NewElement {
  const { namespace } = queue;
  // One shared array for all elements that name no groups.
  const defaultGroups = queue.groups(defaults.groups);
  return (sent) => {
    const { body, contentType, contentEncoding, headers } = sent;
    const isTimed = sent.matureAt !== null || sent.delayMs !== null;
    const matureAt = isTimed ? sent.matureAt : defaults.mature;
    const delayMs = (isTimed ? sent.delayMs : defaults.delay) ?? 0;
    const ttlMs = sent.ttlMs ?? defaults.ttl;
    if (matureAt !== null || delayMs > 0) requireCapability(namespace, 'sched');
    if (ttlMs !== null) requireExpiry(namespace, EXPIRY);
    const content = {
      body,
      contentType,
      contentEncoding,
      headers,
      matureAt,
      delayMs,
      tries: sent.tries ?? defaults.tries ?? 0,
      groups: sent.groups === null ? defaultGroups : queue.groups(sent.groups),
    };
    fingerprint?.add(content, ttlMs);
    return newElement(queue, content, ttlMs, sent.key === null ? null : userKey(user, sent.key));
  };
}

async function settleMany(call: HttpCall, payload: unknown): Promise<void> {
  const { queue, user } = call;
  const batch = readSettleItems(payload, queue, user.name, call.front.parts.options.batchCount);
  const toSettle: SettleItem[] = [];
  for (const { settle } of batch) if (typeof settle !== 'string') toSettle.push(settle);
  call.front.limits.holdUnread(call, RECORD_BYTES.outcome * batch.length);
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

const RECEIPT_MEMBERS = ['id', 'token', 'group'];
const ITEM_MEMBERS: Readonly<Record<BatchAction, readonly string[]>> = {
  commit: RECEIPT_MEMBERS,
  rollback: [...RECEIPT_MEMBERS, 'delay', 'reason'],
  release: RECEIPT_MEMBERS,
  extend: [...RECEIPT_MEMBERS, 'lease'],
  bury: [...RECEIPT_MEMBERS, 'reason'],
};

/**
 * Reads the body of a settlement of many, in its order: `{"commit": […], "rollback": […], "release": […], "extend":
 * […], "bury": […]}`, of items `{"id", "token", "group", "delay", "lease", "reason"}`, or ids. A body of another shape
 * is an error. An item that cannot match any element, for example an id with a space, only gets an outcome.
 * @param owner the user who settles
 * @throws QuaysideError `invalid-parameter` with the path; `body-too-large`; `not-supported`
 */
function readSettleItems(payload: unknown, queue: Queue, owner: string, maxCount: number): BatchItem[] {
  const body = membersOf(payload, '', BATCH_ACTIONS);
  const items: BatchItem[] = [];
  for (const action of Object.keys(body) as BatchAction[]) {
    const list = body[action];
    if (!Array.isArray(list)) throw wrongMember(action, list, 'an array');
    if (items.length + list.length > maxCount) throw tooMany('items', maxCount);
    for (let index = 0; index < list.length; index += 1) {
      items.push(readItem(action, list[index], index, queue, owner));
    }
  }
  return items;
}

function readItem(
  action: BatchAction,
  value: unknown,
  index: number,
  queue: Queue,
  owner: string,
): BatchItem {
  const path = `${action}[${index}]`;
  const members: Members =
    typeof value === 'string' ? { id: value } : membersOf(value, path, ITEM_MEMBERS[action]);
  const id = textMember(members, 'id', path);
  if (id === null) throw wrongMember(`${path}.id`, undefined, 'a string');
  const token = textMember(members, 'token', path);
  const group = textMember(members, 'group', path);
  const settleAction = actionOf(action, members, path, queue);
  let settle: SettleItem | SettleOutcome;
  if (!isOpaque(id) || (group !== null && !isGroup(group))) settle = 'not-found';
  else if (token !== null && !isOpaque(token)) settle = 'lease-lost';
  else settle = queue.item({ id, group, token, owner }, settleAction);
  return { id, action, settle };
}

function actionOf(action: BatchAction, members: Members, path: string, queue: Queue): SettleAction {
  if (action === 'commit') return FINISH;
  if (action === 'release') return RELEASE;
  if (action === 'extend') {
    return { kind: 'extend', leaseMs: milliseconds(members, 'lease', path, 1) ?? queue.settings.leaseMs };
  }
  const { namespace } = queue;
  // The engine truncates long reasons: one long error message must not keep the other elements reserved.
  const reason = textMember(members, 'reason', path) || null;
  if (reason !== null) requireExpiry(namespace, 'reasons');
  if (action === 'bury') return { kind: 'dead-letter', countTry: true, reason };
  const delayMs = milliseconds(members, 'delay', path, 0);
  if (delayMs !== null && delayMs > 0) requireCapability(namespace, 'sched');
  return rollbackAction(delayMs, reason);
}

/** A string, or null if the member is null or not given. */
function textMember(members: Members, name: string, path: string): string | null {
  const value = members[name] ?? null;
  if (value === null || typeof value === 'string') return value;
  throw wrongMember(`${path}.${name}`, value, 'a string');
}

function milliseconds(members: Members, name: string, path: string, from: number): number | null {
  const value = members[name] ?? null;
  return value === null ? null : wholeMember(`${path}.${name}`, value, from, LIMITS.delayMs, 'milliseconds');
}

function tooManyDeliveries(): QuaysideError {
  const limit = LIMITS.insertDeliveries;
  const message = `The elements have more than ${limit} deliveries together, the limit: each has one for each of its groups. Insert fewer at once.`;
  return new QuaysideError('body-too-large', message, { extra: { limit } });
}

/** The error for a request with too many items. @param what names them, in the plural */
function tooMany(what: string, limit: number): QuaysideError {
  return new QuaysideError(
    'body-too-large',
    `There are more than ${limit} ${what}, the limit (http.batchCount).`,
    {
      extra: { limit },
    },
  );
}
