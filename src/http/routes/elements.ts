import { momentIn } from '../../broker/engine-time.ts';
import { FINISH, RELEASE, type Receipt } from '../../broker/queue.ts';
import { EXPIRY, needs, needsExpiry } from '../../broker/queue-options.ts';
import { contentFingerprint, userKey } from '../../model/fingerprint.ts';
import { checkHeaders, ELEMENT_HEADER_PREFIX } from '../../model/headers.ts';
import { LIMITS } from '../../model/limits.ts';
import { Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import { idempotencyKeyOf, type RequestHead } from '../head.ts';
import {
  checkOpaque,
  duration,
  group,
  groups,
  opaque,
  seconds,
  text,
  unixTime,
  whole,
} from '../parameters.ts';
import { readBody } from '../request.ts';
import { json, Moment, namedObject, type Route, route } from '../route.ts';

const Inserted = namedObject('Inserted', { id: Type.String() });

const REPEATED = ['x-ks-repeated', 'true'] as const;

const Nothing = namedObject('Empty', {});

const Extended = namedObject('Extended', { until: Moment });

/** Empty, unless the request prefers a representation. */
const RolledBack = Type.Object({
  state: Type.Optional(Type.Union([Type.Literal('waiting'), Type.Literal('dead-lettered')])),
});

const which = {
  group: group('The group of the reserve, where one was given.'),
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

const done = json('Done.', Nothing);

export const elementRoutes: readonly Route[] = [
  route({
    id: 'insert',
    methods: ['PUT', 'POST'],
    path: '/q/:namespace/:queue',
    summary: 'Insert an element: the body, byte for byte, of any type',
    access: 'write',
    makesQueue: true,
    body: 'element',
    query: {
      mature: unixTime('Not handed out before this moment: unix time in seconds. Beats `delay`.'),
      delay: seconds('Not handed out before so many seconds have passed.', LIMITS.delayMs, 0),
      ttl: duration(
        'Seconds until the element expires: it is then no longer delivered, and goes to the dead-letter queue, if there is one.',
        LIMITS.delayMs,
      ),
      tries: whole('The initial count of failed tries.', { from: 0, to: LIMITS.tries, unit: 'a count' }, 0),
      groups: groups("On a stream: the groups that may consume it; not given: the namespace's."),
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
        headers: [
          { name: 'x-ks-repeated', description: '`true` if the key was used before: nothing was stored.' },
        ],
      }),
    ],
    problems: [
      'body-too-large',
      'idempotency-mismatch',
      'too-many-groups',
      'namespace-full',
      'queue-full',
      'storage-full',
      'not-supported',
    ],
    handle(call, query) {
      const { head, namespace, queue } = call;
      const { mature, delay, ttl, tries } = query;
      if (mature !== null || delay > 0) needs(namespace, 'sched');
      if (ttl !== null) needsExpiry(namespace, EXPIRY);
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
        const fingerprint = dedupKey === null ? null : contentFingerprint(content, ttl);
        const expiresAt = ttl === null ? null : momentIn(ttl, namespace, queue.key);
        let more: readonly string[] | undefined;
        const onRepeat = dedupKey === null ? null : () => (more = REPEATED);
        const element = { ...content, dedupKey, fingerprint, expiresAt };
        queue.insert([element], { user: call.user.name, onRepeat }).then(
          // The port promises ids that need no escape.
          ([id]) => call.text(200, `{"id":"${id}"}`, more),
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
      needs(call.namespace, 'remove');
      await call.queue.remove(checkOpaque('id', call.param('id')));
      call.empty(204);
    },
  }),
  route({
    id: 'commit',
    methods: ['PATCH', 'POST'],
    path: '/q/:namespace/:queue/commit/:id',
    summary: 'Finish a reserved element',
    access: 'read',
    query: which,
    responses: [done],
    problems,
    handle(call, { group, token }) {
      needs(call.namespace, 'reserve');
      call.queue.settle(receipt(call, group, token), FINISH).then(
        () => call.text(200, '{}'),
        (error: unknown) => call.fail(error),
      );
    },
  }),
  route({
    id: 'rollback',
    methods: ['PATCH', 'POST'],
    path: '/q/:namespace/:queue/rollback/:id',
    summary: 'Roll back a reserved element; counts a failed try',
    access: 'read',
    query: {
      delay: whole(
        'Time until it is eligible again. Defaults to the retry delay of the queue if it has one, else to none.',
        { from: 0, to: LIMITS.delayMs, unit: 'milliseconds' },
        null,
      ),
      reason: text(
        'Why it failed: stored with the element, and `x-dl-reason` of a dead letter.',
        LIMITS.reasonBytes,
      ),
      ...which,
    },
    headers: [
      {
        name: 'prefer',
        description: '`return=representation`: the response contains the outcome for the element.',
      },
    ],
    responses: [
      {
        ...done,
        schema: RolledBack,
        headers: [
          { name: 'preference-applied', description: '`return=representation`, if it was requested.' },
        ],
      },
    ],
    problems,
    handle(call, { delay, reason, group, token }) {
      needs(call.namespace, 'reserve');
      if (delay !== null && delay > 0) needs(call.namespace, 'sched');
      if (reason !== null) needsExpiry(call.namespace, 'reasons');
      call.queue
        .settle(receipt(call, group, token), {
          kind: 'release',
          delayMs: delay ?? 0,
          isDefaultDelay: delay === null,
          countTry: true,
          reason,
        })
        .then(
          ({ outcome }) => {
            if (!prefersRepresentation(call.head)) call.text(200, '{}');
            else
              call.text(
                200,
                JSON.stringify({ state: outcome === 'dead-lettered' ? outcome : 'waiting' }),
                REPRESENTATION_APPLIED,
              );
          },
          (error: unknown) => call.fail(error),
        );
    },
  }),
  route({
    id: 'release',
    methods: ['PATCH', 'POST'],
    path: '/q/:namespace/:queue/release/:id',
    summary: 'Release a reserved element unprocessed; no try is counted',
    access: 'read',
    query: which,
    responses: [done],
    problems,
    handle(call, { group, token }) {
      needs(call.namespace, 'reserve');
      call.queue.settle(receipt(call, group, token), RELEASE).then(
        () => call.text(200, '{}'),
        (error: unknown) => call.fail(error),
      );
    },
  }),
  route({
    id: 'extend',
    methods: ['PATCH', 'POST'],
    path: '/q/:namespace/:queue/extend/:id',
    summary: 'Renew the lease of a reserved element',
    access: 'read',
    query: {
      lease: whole(
        'Length from now; defaults to the lease of the queue.',
        { from: 1, to: LIMITS.delayMs, unit: 'milliseconds' },
        null,
      ),
      ...which,
    },
    responses: [
      json('The new end of the lease.', Extended, {
        headers: [{ name: 'x-ks-lease-until', description: 'The same moment.' }],
      }),
    ],
    problems,
    async handle(call, { lease, group, token }) {
      needs(call.namespace, 'reserve');
      const until = new Date(await call.queue.extend(receipt(call, group, token), lease)).toISOString();
      call.text(200, JSON.stringify({ until }), ['x-ks-lease-until', until]);
    },
  }),
];

const REPRESENTATION_APPLIED = ['preference-applied', 'return=representation'] as const;

function receipt(call: HttpCall, group: string | null, token: string | null): Receipt {
  return { id: checkOpaque('id', call.param('id')), group, token, owner: call.user.name };
}

const REPRESENTATION = /(?:^|,)\s*return\s*=\s*"?representation"?\s*(?:[,;]|$)/i;

/** `Prefer: return=representation` (RFC 7240). */
function prefersRepresentation({ prefer }: RequestHead): boolean {
  return prefer !== null && REPRESENTATION.test(prefer);
}
