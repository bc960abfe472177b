import { MAX_FACTOR, parseOptions, RETRY_DEFAULTS } from '../../broker/queue-options.ts';
import { invalidParameter } from '../../model/errors.ts';
import { LIMITS } from '../../model/limits.ts';
import { checkName } from '../../model/names.ts';
import { quote } from '../../util/quote.ts';
import { Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import { entityTag, readVersions } from '../head.ts';
import { group } from '../parameters.ts';
import { readJson } from '../request.ts';
import { Count, json, Moment, namedObject, orNull, type Route, route } from '../route.ts';

const Counters = namedObject('QueueCounters', {
  put: Count,
  get: Count,
  reserve: Count,
  commit: Count,
  rollback: Count,
  deadletter: Count,
});

const sizes = {
  next_mature_t: orNull(Moment),
  totalSize: Count,
  size: Count,
  schedSize: Count,
  resvSize: Count,
};

const Rates = namedObject(
  'QueueRates',
  { insert: Type.Number(), take: Type.Number(), settle: Type.Number() },
  { description: 'Per second; a take is a get or a reserve, a settlement a commit or a rollback.' },
);

/** Spec 2.2, with additional members. */
export const QueueInformation = namedObject('QueueInformation', {
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
    description: 'Seconds since the oldest ready element became ready; null: none is ready.',
  }),
  rates: Type.Optional(
    Type.Union([Type.Object({ '1m': Rates, '5m': Rates }), Type.Null()], {
      description:
        'Averages over one minute and over five. Left out with `group`; null just after the start.',
    }),
  ),
});

const Column = Type.Array(orNull(Type.Number()));

const History = namedObject('QueueHistory', {
  from: Moment,
  intervalMs: Type.Integer(),
  size: Column,
  schedSize: Column,
  resvSize: Column,
  oldestReadyAge: Column,
  insert: Column,
  take: Column,
  settle: Column,
});

const SetOrUnset = Type.Union([Type.Literal('set'), Type.Literal('unset')]);

/** Spec 2.3. */
export const PendingConsumerShape = namedObject('PendingConsumer', {
  tid: Type.String(),
  since: Moment,
  callback: SetOrUnset,
  cleanup_timeout: SetOrUnset,
  wakeup_timeout: SetOrUnset,
  user: Type.Union([Type.String(), Type.Null()], { description: 'Null: an exchange.' }),
  protocol: Type.Enum(['http', 'stomp', 'amqp', 'exchange']),
  address: orNull(Type.String()),
  group: Type.Union([Type.String(), Type.Null()], { description: 'On a stream.' }),
});
const PendingConsumers = Type.Array(PendingConsumerShape);

const Paused = Type.Boolean();

/** Maximum body size of a `PUT`: two names and a few numbers. */
const MAX_BYTES = 16 * 1024;

const MAX_SECONDS = LIMITS.delayMs / 1000;

const Seconds = Type.Number({ exclusiveMinimum: 0, maximum: MAX_SECONDS, description: 'Seconds.' });

const DeadLetter = Type.Object({
  maxTries: Type.Integer({ minimum: 1, maximum: LIMITS.tries }),
  queue: Type.Optional(Type.String({ minLength: 1 })),
});

const RetryDelay = Type.Object({
  first: Seconds,
  factor: Type.Optional(Type.Number({ minimum: 1, maximum: MAX_FACTOR, default: RETRY_DEFAULTS.factor })),
  max: Type.Optional(
    Type.Number({
      exclusiveMinimum: 0,
      maximum: MAX_SECONDS,
      description: `Seconds; ${RETRY_DEFAULTS.max} by default, or \`first\` if that is longer.`,
    }),
  ),
  jitter: Type.Optional(Type.Number({ minimum: 0, maximum: 1, default: RETRY_DEFAULTS.jitter })),
});

const SecondsOrNull = orNull(Seconds);

const members = {
  lease: Seconds,
  deadLetter: orNull(DeadLetter),
  retryDelay: orNull(RetryDelay),
  retention: SecondsOrNull,
  ttl: SecondsOrNull,
  maxElements: orNull(Type.Integer({ minimum: 1 })),
};

export const QueueOptionsSchema = namedObject('QueueOptions', {
  lease: Type.Optional(members.lease),
  deadLetter: Type.Optional(members.deadLetter),
  retryDelay: Type.Optional(members.retryDelay),
  retention: Type.Optional(members.retention),
  ttl: Type.Optional(members.ttl),
  maxElements: Type.Optional(members.maxElements),
});

const Source = Type.Enum(['stored', 'pattern', 'namespace']);

const QueueOptionsRecord = namedObject('QueueOptionsRecord', {
  stored: QueueOptionsSchema,
  pattern: Type.Union([Type.String(), Type.Null()], {
    description: 'The pattern of the configuration file that applies to the name of the queue.',
  }),
  effective: Type.Object(members),
  sources: Type.Object({
    lease: Source,
    deadLetter: Source,
    retryDelay: Source,
    retention: Source,
    ttl: Source,
    maxElements: Source,
  }),
  version: Type.String({ description: 'Changes with what is stored; for `If-Match`.' }),
});

const OPTIONS_PATH = '/q/:namespace/:queue/options';

const optionsResponse = json(
  'The stored and the effective options, and the source of each.',
  QueueOptionsRecord,
  {
    headers: [{ name: 'etag', description: 'The `version` of the record, in quotes.' }],
  },
);

const IF_MATCH = {
  name: 'if-match',
  description: 'The options are changed only if the stored ones have one of these versions.',
};

function sendOptions(call: HttpCall): void {
  const record = call.queue.optionsRecord();
  call.sendJson(record, ['etag', entityTag(record.version)]);
}

/** The versions that the request allows to replace; null: any. */
function expectedVersions({ head: { ifMatch } }: HttpCall): ReadonlySet<string> | null {
  return ifMatch === null ? null : readVersions(ifMatch);
}

/** Status, pause, waiting consumers and stored options of a queue (docs/guides/policies.md). */
export const queueRoutes: readonly Route[] = [
  route({
    id: 'queueStatus',
    path: '/q/:namespace/:queue/status',
    summary: 'Read the queue information record',
    access: 'read',
    query: { group: group('On a stream: count only the deliveries of this group.') },
    responses: [
      json(
        'The record. It has zeros if the queue does not exist; reading it does not create the queue.',
        QueueInformation,
      ),
    ],
    async handle(call, query) {
      const { namespace, queue } = call;
      if (query.group !== null && !namespace.isStream) {
        throw invalidParameter(
          'group',
          `Group ${quote(query.group)} does not exist: namespace ${namespace.name} has plain queues. Leave group out.`,
        );
      }
      call.sendJson(await queue.status(query.group));
    },
  }),
  route({
    id: 'queueHistory',
    path: '/q/:namespace/:queue/history',
    summary: 'Read the last hour of a queue, minute by minute, as this node saw it',
    access: 'read',
    responses: [json('Columns of 60 values, the oldest first; null where this node has no value.', History)],
    handle(call) {
      call.sendJson(call.queue.history());
    },
  }),
  route({
    id: 'isPaused',
    path: '/q/:namespace/:queue/paused',
    summary: 'Read the pause flag',
    access: 'read',
    responses: [json('`true` or `false`.', Paused)],
    handle(call) {
      call.sendJson(call.queue.paused);
    },
  }),
  route({
    id: 'pause',
    methods: ['PATCH', 'POST'],
    path: '/q/:namespace/:queue/pause',
    summary: 'Pause the queue on every node: its consumers wait, inserts continue',
    access: 'manage',
    createsQueue: true,
    isAudited: true,
    responses: [{ status: 201, description: 'Paused; idempotent.', contentType: null }],
    async handle(call) {
      await call.queue.pause();
      call.sendEmpty(201);
    },
  }),
  route({
    id: 'resume',
    methods: ['PATCH', 'POST'],
    path: '/q/:namespace/:queue/resume',
    summary: 'Resume the queue: its consumers continue',
    access: 'manage',
    createsQueue: true,
    isAudited: true,
    responses: [{ status: 201, description: 'Running; idempotent.', contentType: null }],
    async handle(call) {
      await call.queue.resume();
      call.sendEmpty(201);
    },
  }),
  route({
    id: 'queueOptions',
    path: OPTIONS_PATH,
    summary: 'Read the options of the queue, and the source of each',
    access: 'read',
    responses: [optionsResponse],
    handle: sendOptions,
  }),
  route({
    id: 'setQueueOptions',
    methods: ['PUT', 'POST'],
    path: OPTIONS_PATH,
    summary: 'Replace the stored options of the queue, on every node',
    access: 'manage',
    createsQueue: true,
    isAudited: true,
    body: 'json',
    request: QueueOptionsSchema,
    headers: [IF_MATCH],
    responses: [optionsResponse],
    problems: [
      'invalid-parameter',
      'invalid-name',
      'invalid-body',
      'body-too-large',
      'not-supported',
      'precondition-failed',
    ],
    handle: (call) =>
      readJson(call, MAX_BYTES, async (payload) => {
        await call.queue.storeOptions(parseOptions(payload), expectedVersions(call));
        sendOptions(call);
      }),
  }),
  route({
    id: 'removeQueueOptions',
    methods: ['DELETE'],
    path: OPTIONS_PATH,
    summary: 'Delete the stored options of the queue; those of the configuration apply again',
    access: 'manage',
    isAudited: true,
    headers: [IF_MATCH],
    responses: [{ status: 204, description: 'Deleted; idempotent.', contentType: null }],
    problems: ['precondition-failed'],
    async handle(call) {
      await call.queue.storeOptions(null, expectedVersions(call));
      call.sendEmpty(204);
    },
  }),
  route({
    id: 'listConsumers',
    path: '/q/:namespace/:queue/consumers',
    summary: 'List the blocked get and reserve calls of all nodes, in order of arrival',
    access: 'manage',
    responses: [json('Pending consumer records, of every group and protocol.', PendingConsumers)],
    async handle(call) {
      call.sendJson(await call.queue.allConsumers());
    },
  }),
  route({
    id: 'cancel',
    methods: ['DELETE'],
    path: '/q/:namespace/:queue/consumer/:tid',
    summary:
      'Cancel the blocked calls with this tid: all of them if the user has the right `manage`, else only those of the user',
    access: 'member',
    isAudited: true,
    responses: [
      {
        status: 200,
        description: 'No call is blocked under this tid any more; the cancelled ones are answered with 410.',
        contentType: null,
      },
    ],
    problems: ['invalid-name'],
    handle(call) {
      const { user, namespace, queue } = call;
      const tid = checkName('tid', call.param('tid'));
      queue.cancel(tid, user.may('manage', namespace.name) ? null : user.name);
      call.sendEmpty(200);
    },
  }),
];
