import { momentIn } from '../../broker/engine-time.ts';
import { EXPIRY, needs, needsExpiry } from '../../broker/queue-options.ts';
import { contentFingerprint, userKey } from '../../model/fingerprint.ts';
import { checkHeaders } from '../../model/headers.ts';
import { LIMITS } from '../../model/limits.ts';
import { Type } from '../../util/schema.ts';
import { idempotencyKeyOf } from '../idempotency-key.ts';
import { checkOpaque, duration, groups, seconds, unixTime, whole } from '../parameters.ts';
import { readBody } from '../request.ts';
import { type Route, route } from '../route.ts';
import { named } from '../schemas.ts';

const Inserted = named('Inserted', Type.Object({ id: Type.String() }));

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
        queue.insert([{ ...content, dedupKey, fingerprint, expiresAt }], onRepeat).then(
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

const REPEATED = ['x-ks-repeated', 'true'] as const;
