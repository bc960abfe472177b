import { invalidParameter } from '../../model/errors.ts';
import { checkName } from '../../model/names.ts';
import { quote } from '../../util/quote.ts';
import { Type } from '../../util/schema.ts';
import { group } from '../parameters.ts';
import { type Route, route } from '../route.ts';
import { Count, Moment, named } from '../schemas.ts';

const Counters = named(
  'QueueCounters',
  Type.Object({
    put: Count,
    get: Count,
    reserve: Count,
    commit: Count,
    rollback: Count,
    deadletter: Count,
  }),
);

const sizes = {
  next_mature_t: Type.Union([Moment, Type.Null()]),
  totalSize: Count,
  size: Count,
  schedSize: Count,
  resvSize: Count,
};

const Rates = named(
  'QueueRates',
  Type.Object(
    { insert: Type.Number(), take: Type.Number(), settle: Type.Number() },
    { description: 'Per second; a take is a get or a reserve, a settlement a commit or a rollback.' },
  ),
);

/** Spec 2.2, and what we add to it. */
export const QueueInformation = named(
  'QueueInformation',
  Type.Object({
    type: Type.String({ examples: ['sqlite:simple'] }),
    capabilities: Type.Object({
      sched: Type.Boolean(),
      reserve: Type.Boolean(),
      pipeline: Type.Boolean(),
      tape: Type.Boolean(),
      remove: Type.Boolean(),
    }),
    factory: Type.Object({
      name: Type.String(),
      type: Type.String(),
      opts: Type.Object({ name: Type.String(), url: Type.String() }),
      signaller: Type.Object({
        type: Type.String(),
        opts: Type.Object({ url: Type.String(), mongo_opts: Type.Object({}), channel: Type.String() }),
      }),
      stats: Type.Object({
        type: Type.String(),
        opts: Type.Object({ url: Type.String(), coll: Type.String() }),
      }),
    }),
    stats: Type.Intersect([Counters, Type.Object({ groups: Type.Optional(Type.Record(Counters)) })]),
    paused: Type.Boolean(),
    ...sizes,
    groups: Type.Optional(Type.Record(Type.Object(sizes))),
    oldestReadyAge: Type.Union([Type.Number({ minimum: 0 }), Type.Null()], {
      description: 'For how many seconds the oldest ready element has been ready; null: none is.',
    }),
    rates: Type.Optional(
      Type.Union([Type.Object({ '1m': Rates, '5m': Rates }), Type.Null()], {
        description: 'Over one minute and over five. Left out with `group`; null just after the start.',
      }),
    ),
  }),
);

const Column = Type.Array(Type.Union([Type.Number(), Type.Null()]));

const History = named(
  'QueueHistory',
  Type.Object({
    from: Moment,
    intervalMs: Type.Integer(),
    size: Column,
    schedSize: Column,
    resvSize: Column,
    oldestReadyAge: Column,
    insert: Column,
    take: Column,
    settle: Column,
  }),
);

const SetOrUnset = Type.Union([Type.Literal('set'), Type.Literal('unset')]);

/** Spec 2.3. */
export const PendingConsumerShape = named(
  'PendingConsumer',
  Type.Object({
    tid: Type.String(),
    since: Moment,
    callback: SetOrUnset,
    cleanup_timeout: SetOrUnset,
    wakeup_timeout: SetOrUnset,
    user: Type.Union([Type.String(), Type.Null()], { description: 'Null: an exchange.' }),
    protocol: Type.Enum(['http', 'stomp', 'amqp', 'exchange']),
    address: Type.Union([Type.String(), Type.Null()]),
    group: Type.Union([Type.String(), Type.Null()], { description: 'On a stream.' }),
  }),
);
const PendingConsumers = Type.Array(PendingConsumerShape);

const Paused = Type.Boolean();

export const queueRoutes: readonly Route[] = [
  route({
    id: 'queueStatus',
    methods: ['GET', 'HEAD'],
    path: '/q/:namespace/:queue/status',
    summary: 'Read the queue information record',
    access: 'read',
    makesQueue: false,
    query: { group: group('On a stream: count the deliveries of this group alone.') },
    responses: [
      {
        status: 200,
        description: 'The record. One of a queue that does not exist has zeros; reading makes none.',
        contentType: 'application/json',
        schema: QueueInformation,
      },
    ],
    async handle(call, query) {
      const { namespace, queue } = call;
      if (query.group !== null && !namespace.isStream) {
        throw invalidParameter(
          'group',
          `Group ${quote(query.group)} does not exist: namespace ${namespace.name} has plain queues. Leave group out.`,
        );
      }
      call.value(await queue.status(query.group));
    },
  }),
  route({
    id: 'queueHistory',
    methods: ['GET', 'HEAD'],
    path: '/q/:namespace/:queue/history',
    summary: 'Read the last hour of a queue, minute by minute, as this node saw it',
    access: 'read',
    makesQueue: false,
    responses: [
      {
        status: 200,
        description: 'Columns of 60 values, the oldest first; null where this node knows nothing.',
        contentType: 'application/json',
        schema: History,
      },
    ],
    handle(call) {
      call.value(call.queue.history());
    },
  }),
  route({
    id: 'isPaused',
    methods: ['GET', 'HEAD'],
    path: '/q/:namespace/:queue/paused',
    summary: 'Read the pause flag',
    access: 'read',
    makesQueue: false,
    responses: [
      { status: 200, description: '`true` or `false`.', contentType: 'application/json', schema: Paused },
    ],
    handle(call) {
      call.value(call.queue.paused);
    },
  }),
  route({
    id: 'pause',
    methods: ['PATCH', 'POST'],
    path: '/q/:namespace/:queue/pause',
    summary: 'Hold back all consumers of the queue, on every node; they wait, inserts go on',
    access: 'manage',
    isAudited: true,
    responses: [{ status: 201, description: 'Paused, also if it was before.', contentType: null }],
    async handle(call) {
      await call.queue.pause();
      call.empty(201);
    },
  }),
  route({
    id: 'resume',
    methods: ['PATCH', 'POST'],
    path: '/q/:namespace/:queue/resume',
    summary: 'Let the consumers of the queue go on',
    access: 'manage',
    isAudited: true,
    responses: [{ status: 201, description: 'Running, also if it was before.', contentType: null }],
    async handle(call) {
      await call.queue.resume();
      call.empty(201);
    },
  }),
];

export const consumerRoutes: readonly Route[] = [
  route({
    id: 'listConsumers',
    methods: ['GET', 'HEAD'],
    path: '/q/:namespace/:queue/consumers',
    summary: 'List the get and reserve calls that wait, on any node, in the order in which they came',
    access: 'manage',
    makesQueue: false,
    responses: [
      {
        status: 200,
        description: 'Pending consumer records, of every group and protocol.',
        contentType: 'application/json',
        schema: PendingConsumers,
      },
    ],
    async handle(call) {
      call.value(await call.queue.allConsumers());
    },
  }),
  route({
    id: 'cancel',
    methods: ['DELETE'],
    path: '/q/:namespace/:queue/consumer/:tid',
    summary:
      'Cancel the waiting calls with this tid: all of them with the right `manage`, else those of the same user',
    access: 'member',
    makesQueue: false,
    isAudited: true,
    responses: [
      {
        status: 200,
        description: 'Nobody waits with this tid any more; the calls answer 410.',
        contentType: null,
      },
    ],
    problems: ['invalid-name'],
    handle(call) {
      const { user, namespace, queue } = call;
      const tid = checkName('tid', call.param('tid'));
      queue.cancel(tid, user.may('manage', namespace.name) ? null : user.name);
      call.empty(200);
    },
  }),
];
