import { momentIn } from '../../broker/engine-time.ts';
import type { Queue } from '../../broker/queue.ts';
import { EXPIRY, needs, needsExpiry } from '../../broker/queue-options.ts';
import type { NewElement } from '../../model/element.ts';
import { invalidParameter } from '../../model/errors.ts';
import { contentFingerprint, userKey } from '../../model/fingerprint.ts';
import { checkHeaders } from '../../model/headers.ts';
import { LIMITS } from '../../model/limits.ts';
import { Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import { ELEMENT_HEADER_NOTES } from '../element-headers.ts';
import { idempotencyKeyOf } from '../idempotency-key.ts';
import {
  checkOpaque,
  duration,
  flag,
  group,
  groups,
  nameOf,
  preferredWait,
  seconds,
  unixTime,
  whole,
} from '../parameters.ts';
import { readBody } from '../request.ts';
import { type Route, route } from '../route.ts';
import { named } from '../schemas.ts';
import { Take } from '../take.ts';

const Inserted = named('Inserted', Type.Object({ id: Type.String() }));

const MILLISECONDS = { from: 0, to: LIMITS.delayMs, unit: 'milliseconds' } as const;

export const elementRoutes: readonly Route[] = [
  route({
    id: 'insert',
    methods: ['PUT', 'POST'],
    path: '/q/:namespace/:queue',
    summary: 'Insert an element: the body, byte for byte, of any type',
    access: 'write',
    body: 'element',
    query: {
      mature: unixTime('Not handed out before this moment: unix time in seconds. Beats `delay`.'),
      delay: seconds('Not handed out before so many seconds have passed.', LIMITS.delayMs, 0),
      ttl: duration(
        'Not handed out when so many seconds have passed: it expires, and goes to the dead-letter queue, if there is one.',
        LIMITS.delayMs,
      ),
      tries: whole('The initial count of failed tries.', { from: 0, to: LIMITS.tries, unit: 'a count' }, 0),
      groups: groups("On a stream: the groups that may consume it; not given: the namespace's."),
    },
    headers: [
      { name: 'content-type', description: 'Kept, and returned character for character.' },
      { name: 'content-encoding', description: 'Kept and returned; the body is never decoded.' },
      { name: 'x-ks-hdr-*', description: 'Element headers: kept, and returned under the same names.' },
      {
        name: 'idempotency-key',
        description:
          'An insert of the same user with the same key and content stores nothing and returns the first id; with other content it is refused.',
      },
    ],
    responses: [
      {
        status: 200,
        description: 'Stored.',
        contentType: 'application/json',
        schema: Inserted,
        headers: [
          { name: 'x-ks-repeated', description: '`true` if the key was seen before: nothing was stored.' },
        ],
      },
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
      const headers = checkHeaders(head.elementHeaders);
      const dedupKey = dedupKeyOf(call);
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
        insert(call, queue, { ...content, dedupKey, fingerprint, expiresAt });
      });
    },
  }),
  route({
    id: 'take',
    methods: ['GET'],
    path: '/q/:namespace/:queue',
    summary: 'Get (pop) or reserve the next element; waits for one',
    access: 'read',
    // Only one that waits does, see below.
    makesQueue: false,
    csrf: 'all',
    query: {
      to: whole('How long to wait; not given: for ever. 0 answers at once.', MILLISECONDS, null),
      tid: nameOf('tid', "The consumer's name, by which it can be cancelled; not given: one is made."),
      reserve: flag('Reserve the element instead of popping it.'),
      group: group("On a stream: the group to read as; not given: the namespace's first."),
      lease: whole(
        "With `reserve`: how long the reservation lasts; not given: the queue's usual length.",
        { ...MILLISECONDS, from: 1 },
        null,
      ),
    },
    headers: [
      { name: 'prefer', description: '`wait=N`, in seconds, stands for `to` where that is not given.' },
    ],
    responses: [
      {
        status: 200,
        description: 'The element, as it was inserted.',
        contentType: '*/*',
        headers: [
          { name: 'x-ks-id', description: 'Its id, for commit and rollback.' },
          { name: 'x-ks-tries', description: 'Failed tries so far.' },
          { name: 'x-ks-mature', description: 'The maturity by which it was handed out, ISO 8601.' },
          ...ELEMENT_HEADER_NOTES,
          { name: 'x-ks-lease', description: 'Of a reserve: the token of this reservation.' },
          { name: 'x-ks-lease-until', description: 'Of a reserve: when it ends, ISO 8601.' },
        ],
      },
    ],
    problems: [
      'pop-cancelled',
      'pop-timeout',
      'too-many-consumers',
      'too-many-queues',
      'shutting-down',
      'not-supported',
    ],
    handle(call, { to, tid, reserve, group, lease }) {
      const { namespace, user } = call;
      if (reserve) needs(namespace, 'reserve');
      else if (lease !== null)
        throw invalidParameter('lease', `lease=${lease} needs reserve=1: a pop has no lease.`);
      const timeoutMs = to ?? preferredWait(call.head);
      if (timeoutMs !== 0) call.queue = namespace.queue(call.queue.key.name);
      const leaseMs = reserve ? (lease ?? call.queue.settings.leaseMs) : null;
      new Take(call, { group, leaseMs, timeoutMs, tid, owner: user.name, from: call }).begin();
    },
  }),
  route({
    id: 'remove',
    methods: ['DELETE'],
    path: '/q/:namespace/:queue/:id',
    summary: 'Remove a waiting element',
    access: 'manage',
    makesQueue: false,
    isAudited: true,
    responses: [{ status: 204, description: 'Removed.', contentType: null }],
    problems: ['element-not-found', 'element-reserved', 'not-supported', 'invalid-parameter'],
    async handle(call) {
      needs(call.namespace, 'remove');
      await call.queue.remove(checkOpaque('id', call.param('id')));
      call.empty(204);
    },
  }),
];

function insert(call: HttpCall, queue: Queue, element: NewElement): void {
  let headers: readonly string[] | undefined;
  const onRepeat = element.dedupKey === null ? null : () => (headers = REPEATED);
  queue.insert([element], onRepeat).then(
    // The port promises ids that need no escape.
    ([id]) => call.json(200, `{"id":"${id}"}`, headers),
    (error: unknown) => call.fail(error),
  );
}

const REPEATED = ['x-ks-repeated', 'true'] as const;

function dedupKeyOf({ head, user }: HttpCall): string | null {
  const key = idempotencyKeyOf(head);
  return key === null ? null : userKey(user.name, key);
}
