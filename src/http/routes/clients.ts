import { Type } from '../../util/schema.ts';
import { MAX_ROWS } from '../node-lists.ts';
import { nameOf, whole } from '../parameters.ts';
import { type Route, route } from '../route.ts';
import { Count, listOfNodes, Moment, NodeOfRow, named, orNull } from '../schemas.ts';
import { PendingConsumerShape } from './queues.ts';

const QueueNames = { ns: Type.String(), queue: Type.String() };

const WaitingConsumers = listOfNodes(
  'WaitingConsumers',
  'consumers',
  Type.Intersect([Type.Object({ node: NodeOfRow, ...QueueNames }), PendingConsumerShape]),
);

const Sessions = listOfNodes(
  'Sessions',
  'sessions',
  named(
    'Session',
    Type.Object({
      node: NodeOfRow,
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
);

const limit = whole('At most so many.', { from: 1, to: MAX_ROWS, unit: 'a count' }, MAX_ROWS);

const AuditLines = listOfNodes(
  'AuditLines',
  'lines',
  named(
    'AuditLine',
    Type.Object({
      node: NodeOfRow,
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

/** Who uses the nodes, and who changed what. */
export const clientRoutes: readonly Route[] = [
  route({
    id: 'waitingConsumers',
    methods: ['GET', 'HEAD'],
    path: '/consumers',
    summary: 'List the get and reserve calls that wait on any node in any queue, the longest first',
    access: 'user',
    query: {
      ns: nameOf('ns', 'Only in this namespace; not given: in all where the user has `manage`.'),
      limit,
    },
    responses: [
      { status: 200, description: 'They.', contentType: 'application/json', schema: WaitingConsumers },
    ],
    problems: ['invalid-name'],
    async handle(call, { ns, limit }) {
      const { rows, ...list } = await call.front.nodeLists.consumers(call.user, ns, limit);
      call.value({ ...list, consumers: rows });
    },
  }),
  route({
    id: 'sessions',
    methods: ['GET', 'HEAD'],
    path: '/sessions',
    summary: 'List the STOMP and AMQP sessions of all nodes, with their consumers, the longest first',
    access: 'user',
    query: { limit },
    responses: [{ status: 200, description: 'They.', contentType: 'application/json', schema: Sessions }],
    async handle(call, { limit }) {
      const { rows, ...list } = await call.front.nodeLists.sessions(call.user, limit);
      call.value({ ...list, sessions: rows });
    },
  }),
  route({
    id: 'audit',
    methods: ['GET', 'HEAD'],
    path: '/audit',
    summary: 'Read who changed what: the last thousand lines of the audit log of each node, the latest first',
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
    async handle(call, { limit }) {
      const { rows, ...list } = await call.front.nodeLists.audit(call.user, limit);
      call.value({ ...list, lines: rows });
    },
  }),
];
