import { setImmediate as turn } from 'node:timers/promises';
import { requireExpiry, requireTiming } from '../../broker/capabilities.ts';
import { momentIn } from '../../broker/engine-time.ts';
import type { GroupName, NewElement } from '../../model/element.ts';
import { bodyTooLarge, QuaysideError } from '../../model/errors.ts';
import { contentFingerprint, RequestFingerprint, requestKey, userKey } from '../../model/fingerprint.ts';
import { LIMITS } from '../../model/limits.ts';
import { quote } from '../../util/quote.ts';
import { namedObject, Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import { idempotencyKeyOf } from '../head.ts';
import { duration, groups, seconds, UnixTime, wholeNumber } from '../parameters.ts';
import { readBody, tooMany } from '../request.ts';
import { json, type Route, route } from '../route.ts';
import {
  ElementLine,
  elementOf,
  elementsReader,
  errorIn,
  type GivenElement,
  readAt,
  type SentElements,
} from '../sent-elements.ts';
import { MULTIPART, NDJSON } from '../written-elements.ts';

const Inserted = namedObject('Inserted', { id: Type.String() });

/** The ranges of parameters. */
const DELAY = duration(0);
const TIME_TO_LIVE = duration(1);
const TRIES = { from: 0, to: LIMITS.tries, unit: 'a count' };

const TIMING_NAMES = { matureAt: 'mature', delayMs: 'delay' };

const REPEATED_HEADER = ['x-ks-repeated', 'true'] as const;
const repeatedNote = (description: string) => ({ 'x-ks-repeated': description });

/** The error codes of inserts of one or many elements. */
const insertProblems = [
  'idempotency-mismatch',
  'too-many-groups',
  'namespace-full',
  'queue-full',
  'storage-full',
  'not-supported',
] as const;

/** Elements, or bytes of the body, that an insert of many reads before other requests are served. */
const SLICE_ELEMENTS = 500;
const SLICE_BYTES = 262_144;

const InsertedMany = namedObject('InsertedMany', {
  ids: Type.Array(Type.String(), { description: 'In the order of the elements.' }),
  repeated: Type.Optional(
    Type.Array(Type.Integer({ minimum: 0 }), {
      description:
        'Indexes in `ids`, from 0, of elements that were not stored because their key, or that of the request, was used before.',
    }),
  ),
});

/** Routes that insert elements, one or many. */
export const insertRoutes: readonly Route[] = [
  route({
    id: 'insert',
    methods: ['PUT', 'POST'],
    path: '/q/:namespace/:queue',
    summary: 'Insert an element: the body, byte for byte, of any type',
    access: 'write',
    createsQueue: true,
    body: 'element',
    query: {
      mature: seconds(
        'Not delivered before this moment: Unix time in seconds. Overrides `delay`.',
        UnixTime,
        null,
      ),
      delay: seconds('Not delivered before this many seconds have passed.', DELAY, 0),
      ttl: seconds(
        'Seconds until the element expires: it is then no longer delivered, and goes to the dead-letter queue, if there is one.',
        TIME_TO_LIVE,
        null,
      ),
      tries: wholeNumber('The initial count of failed tries.', TRIES, 0),
      groups: groups("On a stream: the groups that may consume it; defaults to the namespace's."),
    },
    headers: {
      'content-type': 'Stored, and returned character for character.',
      'content-encoding': 'Stored and returned; the body is never decoded.',
      'x-ks-hdr-*': 'Element headers: stored, and returned under the same names.',
      'idempotency-key':
        'If the same user repeats the key with the same content, nothing is stored and the first id is returned; with other content, the insert is rejected.',
    },
    responses: [
      json('Stored.', Inserted, {
        headers: repeatedNote('`true` if the key was used before: nothing was stored.'),
      }),
    ],
    problems: insertProblems,
    handle(call, query) {
      const { queue, user, front } = call;
      const toElement = elementMaker(call, query);
      const sent = elementOf(call.head, NO_BYTES);
      readBody(call, front.parts.options.bodyLimit, (body) => {
        const element = toElement({ ...sent, body });
        let repeatedHeader: readonly string[] | undefined;
        const onRepeat = element.dedupKey === null ? null : () => (repeatedHeader = REPEATED_HEADER);
        return queue.insert([element], { user: user.name, onRepeat }).then(
          // Engines generate ids that need no escaping.
          ([id]) => call.sendText(200, `{"id":"${id}"}`, repeatedHeader),
          (error: unknown) => call.fail(error),
        );
      });
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
      mature: seconds(
        'As on a single insert, for elements that give neither `mature` nor `delay`.',
        UnixTime,
        null,
      ),
      delay: seconds('As on a single insert, for elements that give neither.', DELAY, null),
      ttl: seconds('As on a single insert; applies to elements that give none.', TIME_TO_LIVE, null),
      tries: wholeNumber('As on a single insert; applies to elements that give none.', TRIES, null),
      groups: groups('As on a single insert; applies to elements that give none.'),
    },
    headers: {
      'content-type': `\`${NDJSON}\`, or \`${MULTIPART}\` with its boundary.`,
      'idempotency-key':
        'A key for the whole request instead of keys for its elements. If the same user repeats the key with the same content, nothing is stored and the first ids are returned; with other content, the request is rejected.',
    },
    responses: [
      json('All are stored.', InsertedMany, {
        headers: repeatedNote('`true` if the key of the request was used before: nothing was stored.'),
      }),
    ],
    problems: insertProblems,
    async handle(call, defaults) {
      const { bodyLimit, batchBytes } = call.front.parts.options;
      const read = elementsReader(call.head, bodyLimit);
      const key = idempotencyKeyOf(call.head);
      const request = key === null ? null : { key, fingerprint: new RequestFingerprint() };
      const toElement = elementMaker(call, defaults, request?.fingerprint);
      await call.front.limits.useLargeBody(call, batchBytes, (body) =>
        insertMany(call, read(body), toElement, request),
      );
    },
  }),
];

const NO_BYTES = Buffer.alloc(0);

/** The values of the query, for elements that do not have their own. */
interface Defaults {
  readonly mature: number | null;
  readonly delay: number | null;
  readonly ttl: number | null;
  readonly tries: number | null;
  readonly groups: readonly GroupName[] | null;
}

/**
 * Approximate bytes per element in the response. They are counted before anything is changed, because an error response
 * must mean that nothing was changed.
 */
const ID_BYTES = 32;

/** @param request its idempotency key, and the fingerprint of all elements that were made; null: it has no key */
async function insertMany(
  call: HttpCall,
  { place, elements }: SentElements,
  toElement: (sent: GivenElement) => NewElement,
  request: { readonly key: string; readonly fingerprint: RequestFingerprint } | null,
): Promise<void> {
  const { queue, user } = call;
  const key = request?.key ?? null;
  const { batchCount } = call.front.parts.options;
  const batch: NewElement[] = [];
  /** The numbers of their lines or parts. */
  const numbers: number[] = [];
  let bytes = 0;
  let deliveries = 0;
  for (const next of elements) {
    if (next === null) {
      await turn();
      continue;
    }
    const { number, element, length } = next;
    readAt(place, number, () => {
      if (batch.length === batchCount) throw tooMany('elements', batchCount);
      if (key !== null && element.key !== null) throw secondKey(place, element.key);
      const made = toElement(element);
      deliveries += made.groups.length;
      if (deliveries > LIMITS.insertDeliveries) throw tooManyDeliveries();
      batch.push(made);
    });
    numbers.push(number);
    bytes += length;
    if (batch.length % SLICE_ELEMENTS !== 0 && bytes < SLICE_BYTES) continue;
    bytes = 0;
    await turn();
  }
  if (call.isGone) return;
  call.front.limits.holdUnread(call, ID_BYTES * batch.length);
  const repeated: number[] = [];
  let ids: readonly string[] = [];
  try {
    if (batch.length > 0)
      ids = await queue.insert(batch, {
        user: user.name,
        onRepeat: (index) => repeated.push(index),
        request: request && {
          key: requestKey(user.name, request.key),
          fingerprint: request.fingerprint.text(),
        },
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

/**
 * Checks the values of the query, and returns a function that makes new elements of those that a request gives.
 * @param fingerprint of the request, to which the function adds each element
 * @throws QuaysideError `not-supported`, `invalid-parameter`, as does the function
 */
function elementMaker(
  { queue, user }: HttpCall,
  defaults: Defaults,
  fingerprint?: RequestFingerprint,
): (sent: GivenElement) => NewElement {
  const { namespace, key } = queue;
  const { mature, delay, ttl } = defaults;
  requireTiming(namespace, key, { matureAt: mature, delayMs: delay ?? 0 }, TIMING_NAMES);
  if (ttl !== null) requireExpiry(namespace, 'ttl');
  // One shared array for all elements that name no groups.
  const defaultGroups = queue.groups(defaults.groups);
  return (sent) => {
    const { body, contentType, contentEncoding, headers } = sent;
    const isTimed = sent.matureAt !== null || sent.delayMs !== null;
    const matureAt = isTimed ? sent.matureAt : defaults.mature;
    const delayMs = (isTimed ? sent.delayMs : defaults.delay) ?? 0;
    const ttlMs = sent.ttlMs ?? defaults.ttl;
    if (isTimed) requireTiming(namespace, key, { matureAt, delayMs }, TIMING_NAMES);
    if (sent.ttlMs !== null) requireExpiry(namespace, 'ttl');
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
    const dedupKey = sent.key === null ? null : userKey(user.name, sent.key);
    return {
      ...content,
      dedupKey,
      fingerprint: dedupKey === null ? null : contentFingerprint(content, ttlMs),
      expiresAt: ttlMs === null ? null : momentIn(ttlMs, namespace, key),
    };
  };
}

function tooManyDeliveries(): QuaysideError {
  const limit = LIMITS.insertDeliveries;
  return bodyTooLarge(
    `The elements have more than ${limit} deliveries together, the limit: each has one for each of its groups. Insert fewer at once.`,
    limit,
  );
}
