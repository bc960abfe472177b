import { MAX_FACTOR, parseOptions, RETRY_DEFAULTS } from '../../broker/queue-options.ts';
import { LIMITS } from '../../model/limits.ts';
import { Type } from '../../util/schema.ts';
import { readJson } from '../json-body.ts';
import { type Route, route } from '../route.ts';
import { named } from '../schemas.ts';

/** The largest body of a `PUT`: two names, and a few numbers. */
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
      description: `Seconds; ${RETRY_DEFAULTS.max} if it is not given, or \`first\` if that is longer.`,
    }),
  ),
  jitter: Type.Optional(Type.Number({ minimum: 0, maximum: 1, default: RETRY_DEFAULTS.jitter })),
});

const SecondsOrNull = Type.Union([Seconds, Type.Null()]);

const members = {
  lease: Seconds,
  deadLetter: Type.Union([DeadLetter, Type.Null()]),
  retryDelay: Type.Union([RetryDelay, Type.Null()]),
  retention: SecondsOrNull,
  ttl: SecondsOrNull,
  maxElements: Type.Union([Type.Integer({ minimum: 1 }), Type.Null()]),
};

export const QueueOptionsSchema = named(
  'QueueOptions',
  Type.Object({
    lease: Type.Optional(members.lease),
    deadLetter: Type.Optional(members.deadLetter),
    retryDelay: Type.Optional(members.retryDelay),
    retention: Type.Optional(members.retention),
    ttl: Type.Optional(members.ttl),
    maxElements: Type.Optional(members.maxElements),
  }),
);

const Source = Type.Enum(['stored', 'pattern', 'namespace']);

const QueueOptionsRecord = named(
  'QueueOptionsRecord',
  Type.Object({
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
  }),
);

const PATH = '/q/:namespace/:queue/options';

const shown = {
  status: 200,
  description: 'What is stored, what holds, and where each option comes from.',
  contentType: 'application/json',
  schema: QueueOptionsRecord,
} as const;

/** Options that a queue has over those of the configuration: see `docs/guides/policies.md`. */
export const queueOptionsRoutes: readonly Route[] = [
  route({
    id: 'queueOptions',
    methods: ['GET', 'HEAD'],
    path: PATH,
    summary: 'Read the options of the queue, and where each comes from',
    access: 'read',
    makesQueue: false,
    responses: [shown],
    handle(call) {
      call.value(call.queue.optionsRecord());
    },
  }),
  route({
    id: 'setQueueOptions',
    methods: ['PUT', 'POST'],
    path: PATH,
    summary: 'Store options of the queue in place of those that it had, on every node',
    access: 'manage',
    isAudited: true,
    body: 'json',
    request: QueueOptionsSchema,
    responses: [shown],
    problems: ['invalid-parameter', 'invalid-name', 'invalid-body', 'body-too-large', 'not-supported'],
    handle: (call) =>
      readJson(call, MAX_BYTES, async (payload) => {
        await call.queue.storeOptions(parseOptions(payload));
        call.value(call.queue.optionsRecord());
      }),
  }),
  route({
    id: 'removeQueueOptions',
    methods: ['DELETE'],
    path: PATH,
    summary: 'Take the stored options of the queue away; those of the configuration hold again',
    access: 'manage',
    isAudited: true,
    makesQueue: false,
    responses: [{ status: 204, description: 'Nothing is stored, also if nothing was.', contentType: null }],
    async handle(call) {
      await call.queue.storeOptions(null);
      call.empty(204);
    },
  }),
];
