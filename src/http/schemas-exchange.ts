import { Type } from 'typebox';
import { LONGEST_LOOP, MOST_LOOPS } from '../exchange/graph.ts';
import { named } from './schemas.ts';

// The shapes of JSON answers about exchanges, for `/openapi.json`. Shown, not enforced.

const Count = Type.Integer({ minimum: 0 });
const Moment = Type.String({ format: 'date-time' });
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
  loops: Type.Array(Type.Array(Type.String(), { minItems: 1, maxItems: LONGEST_LOOP + 1 }), {
    maxItems: MOST_LOOPS,
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
