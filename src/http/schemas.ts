import { type TSchema, Type } from 'typebox';
import { MAX_LOOP_LENGTH, MAX_LOOPS } from '../exchange/cycles.ts';

// The shapes of JSON responses, for `/openapi.json`. Shown, not enforced: the types of the code enforce them.

/** A schema that `/openapi.json` holds under this name, so that generated clients have a type of it. */
export function named<T extends TSchema>($id: string, schema: T): T {
  return Object.assign(schema, { $id });
}

const Count = Type.Integer({ minimum: 0 });
const Moment = Type.String({ format: 'date-time' });

export const Inserted = named('Inserted', Type.Object({ id: Type.String() }));

export const Nothing = named('Empty', Type.Object({}));

export const Extended = named('Extended', Type.Object({ until: Moment }));

/** Empty, unless the request prefers a representation. */
export const RolledBack = Type.Object({
  state: Type.Optional(Type.Union([Type.Literal('waiting'), Type.Literal('dead-lettered')])),
});

export const NamespaceNames = Type.Array(Type.String());

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

/** Spec 2.2. */
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
    stats: Type.Intersect([
      Counters,
      Type.Object({ groups: Type.Optional(Type.Record(Type.String(), Counters)) }),
    ]),
    paused: Type.Boolean(),
    ...sizes,
    groups: Type.Optional(Type.Record(Type.String(), Type.Object(sizes))),
  }),
);

export const QueuesByName = named('QueuesByName', Type.Record(Type.String(), QueueInformation));

export const QueueArray = named(
  'QueueArray',
  Type.Object({
    data: Type.Array(Type.Intersect([QueueInformation, Type.Object({ id: Type.String() })])),
    unavailable: Type.Optional(
      Type.Array(Type.String(), {
        description: 'Namespaces whose engine is away, so that their queues are not here.',
      }),
    ),
  }),
);

export const QueueTree = Type.Array(
  named(
    'QueueFolder',
    Type.Object({
      title: Type.String(),
      key: Type.String(),
      folder: Type.Literal(true),
      expanded: Type.Literal(true),
      unavailable: Type.Optional(
        Type.Literal(true, { description: 'Its engine is away, so that its queues are not here.' }),
      ),
      children: Type.Array(
        Type.Object({
          title: Type.String(),
          key: Type.String(),
          put: Count,
          get: Count,
          reserve: Count,
          commit: Count,
          rollback: Count,
          size: Count,
          total: Count,
          sched: Count,
          resv: Count,
          next_t: Type.Union([Moment, Type.Null()]),
          paused: Type.Boolean(),
        }),
      ),
    }),
  ),
);

const SetOrUnset = Type.Union([Type.Literal('set'), Type.Literal('unset')]);

/** Spec 2.3. */
export const PendingConsumers = Type.Array(
  named(
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
  ),
);

export const Paused = Type.Boolean();

export const Live = named('Live', Type.Object({ status: Type.Literal('live') }));

export const Nodes = Type.Array(
  named(
    'Node',
    Type.Object({
      id: Type.String(),
      host: Type.String(),
      pid: Type.Integer(),
      version: Type.String(),
      startedAt: Moment,
      isSelf: Type.Boolean(),
      namespaces: Type.Array(Type.String()),
      conflicts: Type.Array(
        Type.Object({
          namespace: Type.String(),
          option: Type.String(),
          here: Type.String(),
          there: Type.String(),
        }),
      ),
    }),
  ),
);

export const Readiness = named(
  'Readiness',
  Type.Object({
    status: Type.Union([Type.Literal('ready'), Type.Literal('not ready')]),
    checks: Type.Optional(Type.Record(Type.String(), Type.String())),
    nodes: Type.Optional(Nodes),
  }),
);

export const Backup = Type.Object({
  name: Type.String(),
  folder: Type.String({ description: 'Its path on the server.' }),
  takenAt: Moment,
  version: Type.String({ description: 'Of the server.' }),
  files: Type.Array(
    Type.Object({
      file: Type.String(),
      url: Type.String(),
      namespaces: Type.Array(Type.String()),
      bytes: Type.Integer(),
    }),
  ),
  skipped: Type.Array(
    Type.Object(
      { url: Type.String(), namespaces: Type.Array(Type.String()) },
      {
        description: 'Engines that are backed up by other means, or that are in memory.',
      },
    ),
  ),
});

/** RFC 9457, with members of our own. */
export const Problem = named(
  'Problem',
  Type.Object({
    title: Type.String(),
    status: Type.Integer(),
    code: Type.String(),
    detail: Type.String(),
    parameter: Type.Optional(Type.String()),
  }),
);

const Payload = {
  payload: Type.Enum(['json', 'text', 'bytes']),
  content_type: Type.String(),
  content_encoding: Type.Union([Type.String(), Type.Null()]),
};
const Place = Type.Union([Type.Integer({ minimum: 1 }), Type.Null()]);
const Queue = { q: Type.String(), ns: Type.String() };

const Sighting = Type.Object({
  id: Type.String(),
  at: Moment,
  ...Payload,
});

const record = {
  src: Type.Object(Queue),
  dst: Type.Array(
    Type.Object({
      ...Queue,
      selector: Type.Optional(Type.String()),
      hidden: Type.Optional(Type.Literal(true)),
    }),
  ),
  opts: Type.Object({
    parallel: Type.Optional(Type.Integer({ minimum: 1, maximum: 16 })),
    wsize: Type.Optional(Type.Integer({ minimum: 1, maximum: 65_536 })),
    reserve: Type.Optional(Type.Boolean()),
  }),
  cid: Type.String(),
  pending_acks: Type.Record(Type.String(), Type.Object({ t: Moment, id: Type.String() })),
  pending_tids: Type.Record(Type.String(), Moment),
  wsize: Type.Integer(),
  stopped: Type.Union([Type.Boolean(), Type.Null()]),
  version: Type.Optional(Type.String()),
  stats: Type.Object({
    no_route: Count,
    too_many_hops: Count,
    put_back: Count,
    selector_ms: Count,
    dst: Type.Array(Type.Object({ matched: Count, skipped: Count, failed: Count })),
  }),
  errors: Type.Array(
    Type.Object({
      destination: Count,
      message: Type.String(),
      line: Place,
      column: Place,
      at: Moment,
      count: Count,
    }),
  ),
  lastError: Type.Union([Type.String(), Type.Null()]),
  saw: Type.Object({
    last: Type.Union([Sighting, Type.Null()]),
    last_no_route: Type.Union([Sighting, Type.Null()]),
  }),
  loops: Type.Array(Type.Array(Type.String(), { minItems: 1, maxItems: MAX_LOOP_LENGTH + 1 }), {
    maxItems: MAX_LOOPS,
  }),
};

/** Spec 2.4, and what we add to it. */
export const ExchangeInformation = named('ExchangeInformation', Type.Object(record));

export const ExchangesById = named('ExchangesById', Type.Record(Type.String(), ExchangeInformation));

export const ExchangeArray = named(
  'ExchangeArray',
  Type.Object({
    data: Type.Array(Type.Object({ ...record, id: Type.String() })),
  }),
);

export const ExchangeTree = Type.Array(
  named(
    'ExchangeFolder',
    Type.Object({
      title: Type.String(),
      key: Type.String(),
      folder: Type.Literal(true),
      expanded: Type.Literal(true),
      children: Type.Array(Type.Object({ title: Type.String(), key: Type.String(), ...record })),
    }),
  ),
);

export const ExchangeTrial = named(
  'ExchangeTrial',
  Type.Object({
    saw: Type.Object(Payload),
    dst: Type.Array(
      Type.Object({
        ...Queue,
        accepted: Type.Boolean(),
        error: Type.Union([Type.String(), Type.Null()]),
        line: Place,
        column: Place,
        logs: Type.Array(Type.String()),
        mature: Type.Union([Moment, Type.Null()]),
        delay: Type.Union([Type.Number(), Type.Null()]),
        tries: Type.Union([Count, Type.Null()]),
        hdrs: Type.Record(Type.String(), Type.String()),
        payload: Type.String(),
        payload_encoding: Type.Union([Type.Literal('text'), Type.Literal('base64')]),
      }),
    ),
    strays_to: Type.Union([Type.String(), Type.Null()]),
    overrun: Type.Union([Type.String(), Type.Null()]),
    logs: Type.Array(Type.String()),
    selector_ms: Type.Number(),
  }),
);

// The bodies that are sent. What checks them says more than a schema could, so these are shown and not enforced.
// They have no `default`: generators of types would take such a member for one that is always there.

const Name = Type.String({ minLength: 1, description: '1 to 255 bytes of UTF-8 without control characters' });
const QueueName = { ns: Name, queue: Name };
const STRICT = { additionalProperties: false };

/** Spec 4.2, Create payload. */
export const ExchangeDeclaration = named(
  'ExchangeDeclaration',
  Type.Object(
    {
      src: Type.Object(QueueName, STRICT),
      dst: Type.Array(
        Type.Object(
          {
            ...QueueName,
            selector: Type.Optional(
              Type.String({ description: 'A function of the element, such as `env => env.msg.tries < 3`.' }),
            ),
          },
          STRICT,
        ),
        { minItems: 1, maxItems: 256 },
      ),
      consumer: Type.Object(
        {
          parallel: Type.Optional(Type.Integer({ minimum: 1, maximum: 16, description: 'Not given: 1.' })),
          wsize: Type.Optional(
            Type.Integer({ minimum: 1, maximum: 65_536, description: 'Not given: 1000.' }),
          ),
          reserve: Type.Optional(Type.Boolean({ description: 'Not given: false.' })),
        },
        STRICT,
      ),
    },
    STRICT,
  ),
);

export const ExchangeTrialRequest = named(
  'ExchangeTrialRequest',
  Type.Object(
    {
      msg: Type.Optional(
        Type.Object(
          {
            id: Type.Optional(Type.String({ minLength: 1, maxLength: 64 })),
            payload: Type.Optional(Type.Unknown({ description: 'Text, or any JSON.' })),
            hdrs: Type.Optional(Type.Record(Type.String(), Type.String())),
            tries: Type.Optional(Count),
            mature: Type.Optional(Type.Number({ minimum: 0, description: 'Unix time in seconds.' })),
          },
          STRICT,
        ),
      ),
      content_type: Type.Optional(Type.String()),
      declaration: Type.Optional(ExchangeDeclaration),
    },
    STRICT,
  ),
);
