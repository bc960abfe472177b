import type { User } from '../../access/user.ts';
import type { PendingConsumer, SessionInfo } from '../../broker/consumer.ts';
import type { Namespace } from '../../broker/namespace.ts';
import { Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import { nameOf, whole } from '../parameters.ts';
import { type Route, route } from '../route.ts';
import { Count, Moment, named, orNull } from '../schemas.ts';
import { PendingConsumerShape } from './queues.ts';

const QueueNames = { ns: Type.String(), queue: Type.String() };
const Node = Type.String({
  description: 'Id of the node that answered, as in `/nodes`: it knows its own clients only.',
});

const WaitingConsumers = named(
  'WaitingConsumers',
  Type.Object({
    node: Node,
    total: Type.Integer({ description: 'How many wait that the user may see.' }),
    consumers: Type.Array(Type.Intersect([Type.Object(QueueNames), PendingConsumerShape])),
  }),
);

const Sessions = named(
  'Sessions',
  Type.Object({
    node: Node,
    total: Type.Integer({ description: 'How many sessions there are that the user may see.' }),
    sessions: Type.Array(
      named(
        'Session',
        Type.Object({
          id: Type.String({ description: 'As in the log; the tids of its consumers begin with it.' }),
          protocol: Type.Enum(['stomp', 'amqp']),
          user: Type.String(),
          address: Type.String(),
          since: Moment,
          consumers: Type.Array(
            Type.Object({
              ...QueueNames,
              group: orNull(Type.String()),
              kind: Type.Enum(['take', 'browse']),
              window: orNull(
                Type.Integer({ description: 'Elements that the client may hold; null for `browse`.' }),
              ),
              unacknowledged: Count,
            }),
          ),
        }),
      ),
    ),
  }),
);

const MAX_PAGE = 1_000;
const limit = whole('At most so many.', { from: 1, to: MAX_PAGE, unit: 'a count' }, MAX_PAGE);

const AuditLines = Type.Array(
  named(
    'AuditLine',
    Type.Object({
      at: Moment,
      user: Type.String(),
      action: Type.String({ description: 'The operation, such as `pause`.' }),
      address: Type.String(),
      namespace: orNull(Type.String()),
      queue: orNull(Type.String()),
      details: Type.Record(Type.Unknown()),
    }),
  ),
);

/** Who uses this node, and who changed what. */
export const clientRoutes: readonly Route[] = [
  route({
    id: 'waitingConsumers',
    methods: ['GET', 'HEAD'],
    path: '/consumers',
    summary: 'List the get and reserve calls that wait on this node in any queue, the longest first',
    access: 'user',
    query: {
      ns: nameOf('ns', 'Only in this namespace; not given: in all where the user has `manage`.'),
      limit,
    },
    responses: [
      { status: 200, description: 'They.', contentType: 'application/json', schema: WaitingConsumers },
    ],
    problems: ['invalid-name'],
    handle: (call, { ns, limit }) =>
      call.front.listInTurn(call, async () => {
        const { broker } = call.front.parts;
        const waiting = broker
          .namespaces()
          .filter(({ name }) => (ns === null || name === ns) && call.user.may('manage', name))
          .flatMap(waitingIn)
          .sort((a, b) => Date.parse(a.since) - Date.parse(b.since));
        call.value({ node: nodeOf(call), total: waiting.length, consumers: waiting.slice(0, limit) });
      }),
  }),
  route({
    id: 'sessions',
    methods: ['GET', 'HEAD'],
    path: '/sessions',
    summary: 'List the STOMP and AMQP sessions of this node, with their consumers, the longest first',
    access: 'user',
    query: { limit },
    responses: [{ status: 200, description: 'They.', contentType: 'application/json', schema: Sessions }],
    handle(call, { limit }) {
      const sessions = (call.front.parts.sessions?.() ?? []).flatMap((session) => shown(session, call.user));
      sessions.sort((a, b) => Date.parse(a.since) - Date.parse(b.since));
      call.value({ node: nodeOf(call), total: sessions.length, sessions: sessions.slice(0, limit) });
    },
  }),
  route({
    id: 'audit',
    methods: ['GET', 'HEAD'],
    path: '/audit',
    summary: 'Read who changed what on this node: the last thousand lines of its audit log, the latest first',
    access: 'user',
    query: { limit },
    responses: [
      {
        status: 200,
        description: 'Those that the user may see.',
        contentType: 'application/json',
        schema: AuditLines,
      },
    ],
    handle(call, { limit }) {
      call.value(call.front.auditTrail.visibleTo(call.user).slice(0, limit));
    },
  }),
];

function nodeOf({ front: { parts } }: HttpCall): string {
  return parts.broker.nodes().find(({ isSelf }) => isSelf)?.id ?? '';
}

function waitingIn(namespace: Namespace): (PendingConsumer & { ns: string; queue: string })[] {
  const ns = namespace.name;
  return [...namespace.waitingOfUsers().keys()].flatMap((queue) =>
    namespace
      .visit(queue)
      .consumers()
      .map((consumer) => ({ ns, queue, ...consumer })),
  );
}

/** A session as a user may see it: their own whole; of others, consumers in namespaces where they have `manage`. */
function shown(session: SessionInfo, user: User): SessionInfo[] {
  if (user.isAdministrator || session.user === user.name) return [session];
  const consumers = session.consumers.filter(({ ns }) => user.may('manage', ns));
  return consumers.length === 0 ? [] : [{ ...session, consumers }];
}
