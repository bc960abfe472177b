import { FINISH, RELEASE, type Receipt } from '../../broker/queue.ts';
import { needs, needsExpiry } from '../../broker/queue-options.ts';
import { LIMITS } from '../../model/limits.ts';
import { Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import { checkOpaque, group, opaque, prefersRepresentation, text, whole } from '../parameters.ts';
import { type Route, route } from '../route.ts';
import { Moment, named } from '../schemas.ts';

const Nothing = named('Empty', Type.Object({}));

const Extended = named('Extended', Type.Object({ until: Moment }));

/** Empty, unless the request prefers a representation. */
const RolledBack = Type.Object({
  state: Type.Optional(Type.Union([Type.Literal('waiting'), Type.Literal('dead-lettered')])),
});

const which = {
  group: group('The group of the reserve, where one was given.'),
  token: opaque(
    '`x-ks-lease` of the reserve: only this very reservation is meant, not a later one. Needed for a reservation of another user.',
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

const done = { status: 200, description: 'Done.', contentType: 'application/json', schema: Nothing } as const;

export const settlementRoutes: readonly Route[] = [
  route({
    id: 'commit',
    methods: ['PATCH', 'POST'],
    path: '/q/:namespace/:queue/commit/:id',
    summary: 'Finish a reserved element',
    access: 'read',
    makesQueue: false,
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
    summary: 'Give a reserved element back; one failed try more',
    access: 'read',
    makesQueue: false,
    query: {
      delay: whole(
        'After how long it is eligible again. Not given: after the retry delay of the queue if it has one, else at once.',
        { from: 0, to: LIMITS.delayMs, unit: 'milliseconds' },
        null,
      ),
      reason: text(
        'Why it failed: kept with the element, and `x-dl-reason` of a dead letter.',
        LIMITS.reasonBytes,
      ),
      ...which,
    },
    headers: [
      {
        name: 'prefer',
        description: '`return=representation`: the response says what became of the element.',
      },
    ],
    responses: [
      {
        ...done,
        schema: RolledBack,
        headers: [
          { name: 'preference-applied', description: '`return=representation`, if it was asked for.' },
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
                REPRESENTATION,
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
    summary: 'Give a reserved element back unprocessed; no try is counted',
    access: 'read',
    makesQueue: false,
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
    makesQueue: false,
    query: {
      lease: whole(
        'How long from now it runs; not given: the usual length of the queue.',
        { from: 1, to: LIMITS.delayMs, unit: 'milliseconds' },
        null,
      ),
      ...which,
    },
    responses: [
      {
        status: 200,
        description: 'The new end of the lease.',
        contentType: 'application/json',
        schema: Extended,
        headers: [{ name: 'x-ks-lease-until', description: 'The same moment.' }],
      },
    ],
    problems,
    async handle(call, { lease, group, token }) {
      needs(call.namespace, 'reserve');
      const until = new Date(await call.queue.extend(receipt(call, group, token), lease)).toISOString();
      call.text(200, JSON.stringify({ until }), ['x-ks-lease-until', until]);
    },
  }),
];

const REPRESENTATION = ['preference-applied', 'return=representation'] as const;

function receipt(call: HttpCall, group: string | null, token: string | null): Receipt {
  return { id: checkOpaque('id', call.param('id')), group, token, owner: call.user.name };
}
