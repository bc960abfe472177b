import {
  allowing,
  Count,
  inUnit,
  Moment,
  named,
  namedObject,
  optional,
  orNull,
  type Schema,
  type Static,
  Type,
} from '../util/schema.ts';
import { DELIVERY_STATES } from './element.ts';
import { LIMITS } from './limits.ts';
import { WellFormed } from './members.ts';
import { DEAD_LETTER_QUEUE, Group, Name } from './names.ts';
import { RIGHTS } from './rights.ts';

/**
 * The JSON records that the HTTP interface sends, and those that it receives in several places. Each is declared once,
 * as a schema: `/openapi.json` documents it, the server's code returns its type, and the console reads the same type.
 * What is received is checked by its schema, see `parse`; what is sent is not.
 */

/** The keywords of objects that are received: a misspelt member would silently do nothing. */
export const STRICT = { additionalProperties: false };

// Queues

const sizes = {
  next_mature_t: orNull(Moment),
  totalSize: Count,
  size: Count,
  schedSize: Count,
  resvSize: Count,
};
const QueueSizes = Type.Object(sizes);
/** Counts of a queue under the names of the spec. */
export type QueueSizes = Static<typeof QueueSizes>;

const Counters = namedObject('QueueCounters', {
  put: Count,
  get: Count,
  reserve: Count,
  commit: Count,
  rollback: Count,
  deadletter: Count,
});

const Rates = namedObject(
  'QueueRates',
  { insert: Type.Number(), take: Type.Number(), settle: Type.Number() },
  { description: 'Per second; a take is a get or a reserve, a settlement a commit or a rollback.' },
);
export type Rates = Static<typeof Rates>;

const RecentRates = Type.Object({ '1m': Rates, '5m': Rates });
/** The rates over the last minute and the last five. */
export type RecentRates = Static<typeof RecentRates>;

/** The queue information record (spec 2.2), with additional members. */
export const QueueRecord = namedObject('QueueInformation', {
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
      // `mongo_opts` is always empty; the spec names it.
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
  groups: Type.Optional(Type.Record(QueueSizes)),
  oldestReadyAge: orNull(Type.Number({ minimum: 0 }), {
    description: 'Seconds since the earliest maturity of the ready elements; null: none is ready.',
  }),
  rates: Type.Optional(
    orNull(RecentRates, {
      description:
        'Averages over one minute and over five. Left out with `group`; null just after the start.',
    }),
  ),
});
export type QueueRecord = Static<typeof QueueRecord>;

const Column = Type.Array(orNull(Type.Number()));
const hour = { from: Moment, intervalMs: Type.Integer() };
const columns = {
  size: Column,
  schedSize: Column,
  resvSize: Column,
  insert: Column,
  take: Column,
  settle: Column,
};

/** The last hour of a queue in columns: one value per interval, the oldest first; null: unknown. */
export const QueueHistory = namedObject('QueueHistory', {
  ...hour,
  ...columns,
  /** Seconds; null also if no element was ready. */
  oldestReadyAge: Column,
});
export type QueueHistory = Static<typeof QueueHistory>;

/** The sum of several histories. */
export const SumHistory = namedObject('SumHistory', { ...hour, ...columns });
export type SumHistory = Static<typeof SumHistory>;

const SetOrUnset = Type.Enum(['set', 'unset']);

/** The record of a waiting consumer (spec 2.3), with additional members. */
export const PendingConsumer = namedObject('PendingConsumer', {
  tid: Type.String(),
  since: Moment,
  callback: SetOrUnset,
  cleanup_timeout: SetOrUnset,
  wakeup_timeout: SetOrUnset,
  user: orNull(Type.String(), { description: 'Null: an exchange.' }),
  protocol: Type.Enum(['http', 'stomp', 'amqp', 'exchange']),
  address: orNull(Type.String()),
  group: orNull(Type.String(), { description: 'On a stream.' }),
});
export type PendingConsumer = Static<typeof PendingConsumer>;

const RecentRate = Type.Number({ minimum: 0, description: 'Per second, over the last minute.' });

/** A queue found by a search. */
const FoundQueue = namedObject('FoundQueue', {
  ns: Type.String(),
  queue: Type.String(),
  ...sizes,
  oldestReadyAge: orNull(Type.Number({ description: 'Seconds; null: no element is ready.' })),
  paused: Type.Boolean(),
  insert: RecentRate,
  take: RecentRate,
  settle: RecentRate,
});
export type FoundQueue = Static<typeof FoundQueue>;

const { next_mature_t: _, ...counts } = sizes;

/** One page of found queues. */
export const FoundQueues = namedObject('FoundQueues', {
  queues: Type.Array(FoundQueue),
  matched: Type.Integer({ description: 'How many queues match the filter, on all pages.' }),
  total: Type.Integer({ description: 'How many queues the user may read.' }),
  sums: Type.Object(counts, { description: 'Of all queues that match the filter.' }),
  unavailable: Type.Array(Type.String(), { description: 'Namespaces whose engine is unavailable.' }),
});
export type FoundQueues = Static<typeof FoundQueues>;

// Options of queues

const MAX_SECONDS = LIMITS.delayMs / 1000;

function seconds(description: string): Schema<number> {
  return allowing(
    `a number of seconds above 0 and up to ${MAX_SECONDS}`,
    Type.Number({ exclusiveMinimum: 0, maximum: MAX_SECONDS, description }),
  );
}

/** Defaults of the members of a retry delay; `first` is required. */
export const RETRY_DEFAULTS = { factor: 2, max: 3600, jitter: 0 } as const;

/**
 * The options of a queue in the configuration file and in JSON, where null turns an option off. The descriptions are
 * also those of the page about the file.
 */
export const QUEUE_OPTIONS = {
  lease: seconds('how long a lease lasts, seconds; a call may ask for another length'),
  deadLetter: Type.Object(
    {
      maxTries: Type.Integer({
        minimum: 1,
        maximum: LIMITS.tries,
        description: 'number of failed tries after which an element moves to the dead-letter queue',
      }),
      queue: Type.Optional({
        ...Name,
        default: DEAD_LETTER_QUEUE,
        description: 'name of that queue, in the same namespace',
      }),
    },
    { ...STRICT, description: 'moves elements that fail too often; if not given, they are retried for ever' },
  ),
  retryDelay: Type.Object(
    {
      first: seconds('delay after the first failed try, seconds'),
      factor: Type.Optional(
        Type.Number({
          minimum: 1,
          maximum: 100,
          default: RETRY_DEFAULTS.factor,
          description: 'factor by which the delay grows with each further failed try',
        }),
      ),
      max: Type.Optional(
        seconds(
          `longest delay, seconds; defaults to ${RETRY_DEFAULTS.max}, or to \`first\` if that is longer`,
        ),
      ),
      jitter: Type.Optional(
        Type.Number({
          minimum: 0,
          maximum: 1,
          default: RETRY_DEFAULTS.jitter,
          description:
            'largest share by which a delay is shortened, so that elements do not all return at once',
        }),
      ),
    },
    {
      ...STRICT,
      description:
        'how long an element waits after a rollback that names no delay, and after a lease expiry; if not given, it does not wait',
    },
  ),
  retention: seconds(
    'streams: longest time that an element is stored, seconds; if not given, it is stored until its last group has finished it',
  ),
  ttl: seconds('time to live of elements that are inserted without one, seconds'),
  maxElements: Type.Integer({
    minimum: 1,
    description:
      'maximum number of elements of a queue, in a stream counted once for each group; further inserts are rejected with `507`, consuming continues',
  }),
};

const queueOptions = {
  lease: QUEUE_OPTIONS.lease,
  deadLetter: orNull(QUEUE_OPTIONS.deadLetter),
  retryDelay: orNull(QUEUE_OPTIONS.retryDelay),
  retention: orNull(QUEUE_OPTIONS.retention),
  ttl: orNull(QUEUE_OPTIONS.ttl),
  maxElements: orNull(QUEUE_OPTIONS.maxElements),
};

/** The options of a queue as clients see them; lengths are in seconds, as in the configuration file. */
export const ShownOptions = namedObject(
  'QueueOptions',
  {
    lease: Type.Optional(queueOptions.lease),
    deadLetter: Type.Optional(queueOptions.deadLetter),
    retryDelay: Type.Optional(queueOptions.retryDelay),
    retention: Type.Optional(queueOptions.retention),
    ttl: Type.Optional(queueOptions.ttl),
    maxElements: Type.Optional(queueOptions.maxElements),
  },
  STRICT,
);
export type ShownOptions = Static<typeof ShownOptions>;

const OptionSource = Type.Enum(['stored', 'pattern', 'namespace']);

export const OptionsRecord = namedObject('QueueOptionsRecord', {
  stored: ShownOptions,
  pattern: orNull(Type.String(), {
    description: 'The pattern of the configuration file that applies to the name of the queue.',
  }),
  effective: Type.Object(queueOptions),
  sources: Type.Object({
    lease: OptionSource,
    deadLetter: OptionSource,
    retryDelay: OptionSource,
    retention: OptionSource,
    ttl: OptionSource,
    maxElements: OptionSource,
  }),
  version: Type.String({ description: 'Changes with what is stored; for `If-Match`.' }),
});
export type OptionsRecord = Static<typeof OptionsRecord>;
export type OptionName = keyof OptionsRecord['effective'];

// Elements

const DeliveryStates = Type.Enum(DELIVERY_STATES);

export const BrowsedElement = namedObject('BrowsedElement', {
  id: Type.String(),
  state: DeliveryStates,
  mature: Moment,
  insertedAt: Moment,
  expiresAt: orNull(Moment),
  tries: Count,
  reason: orNull(Type.String({ description: 'The reason of the last failed try.' })),
  bytes: Type.Integer({ minimum: 0, description: 'The length of the body.' }),
  contentType: orNull(Type.String()),
  contentEncoding: orNull(Type.String()),
  headers: Type.Record(Type.String()),
  holder: orNull(
    Type.Object({
      tid: orNull(Type.String()),
      user: orNull(Type.String({ description: 'Null: an exchange.' })),
      since: Moment,
      until: Moment,
    }),
  ),
  text: Type.Optional(Type.String({ description: 'The body, if its bytes are UTF-8.' })),
  base64: Type.Optional(Type.String({ description: 'The body, if they are not.' })),
  truncated: Type.Boolean({ description: 'Whether only the first part of the body is shown.' }),
});
export type BrowsedElement = Static<typeof BrowsedElement>;

/** An error that a selector threw. Line and column count from 1; null if unknown. */
const SelectorFailure = Type.Object({
  id: Type.String(),
  message: Type.String(),
  line: orNull(Count),
  column: orNull(Count),
});
export type SelectorFailure = Static<typeof SelectorFailure>;

export const BrowsePage = namedObject('BrowsePage', {
  elements: Type.Array(BrowsedElement),
  next: orNull(Type.String({ description: 'Pass it as `after`; null: there are no more elements.' })),
  looked: Type.Integer({ minimum: 0, description: 'How many elements were examined.' }),
  failed: Type.Integer({ minimum: 0, description: 'For how many of them the selector threw an error.' }),
  error: orNull(SelectorFailure),
});
export type BrowsePage = Static<typeof BrowsePage>;

const DeadLetterQueue = Type.Object({
  ns: Type.String(),
  queue: Type.String(),
  count: Count,
  oldest: orNull(Moment),
  reasons: Type.Array(Type.Object({ reason: orNull(Type.String()), count: Count })),
  sources: Type.Array(Type.Object({ queue: orNull(Type.String()), count: Count })),
  looked: Count,
  complete: Type.Boolean({ description: 'Whether all of its elements were examined.' }),
});
export type DeadLetterQueue = Static<typeof DeadLetterQueue>;

export const DeadLetters = namedObject('DeadLetters', {
  queues: Type.Array(DeadLetterQueue),
  complete: Type.Boolean({ description: 'Whether all queues are listed.' }),
  unavailable: Type.Array(Type.String(), { description: 'Namespaces whose engine is unavailable.' }),
});
export type DeadLetters = Static<typeof DeadLetters>;

export const Imported = namedObject('Imported', {
  imported: Count,
  repeated: Type.Integer({
    minimum: 0,
    description: 'Skipped: the queue has them, or they were imported before.',
  }),
});
export type Imported = Static<typeof Imported>;

// Exchanges

const queueName = { ns: Name, queue: Name };
const MAX_PARALLEL = 16;
const MAX_WINDOW = 65_536;
/** Maximum number of destinations. More are a mistake or an attack, since each element may be copied to all of them. */
const MAX_DESTINATIONS = 256;

const DeclaredDestination = Type.Object(
  {
    ...queueName,
    selector: optional(
      Type.String({ description: 'A function of the element, such as `env => env.msg.tries < 3`.' }),
    ),
  },
  STRICT,
);

/**
 * The members of an exchange's declaration, in the configuration file and in JSON. None has a `default`, which
 * generators would make required in the type. The descriptions are also those of the page about the file.
 */
export const declarationMembers = {
  src: Type.Object(queueName, STRICT),
  dst: allowing(
    `an array of 1 to ${MAX_DESTINATIONS} destinations`,
    Type.Array(DeclaredDestination, { minItems: 1, maxItems: MAX_DESTINATIONS }),
  ),
  consumer: Type.Object(
    {
      parallel: Type.Optional(
        Type.Integer({
          minimum: 1,
          maximum: MAX_PARALLEL,
          description: 'number of concurrent loops; defaults to 1',
        }),
      ),
      wsize: Type.Optional(
        Type.Integer({
          minimum: 1,
          maximum: MAX_WINDOW,
          description: 'maximum number of elements in flight; defaults to 1000',
        }),
      ),
      reserve: Type.Optional(
        Type.Boolean({
          description:
            'whether elements are reserved and committed, or popped; defaults to false. If all queues share an engine that supports reservations, elements are always reserved',
        }),
      ),
    },
    STRICT,
  ),
};

/** The payload of a create (spec 4.2). */
export const ExchangeDeclaration = namedObject('ExchangeDeclaration', declarationMembers, STRICT);
export type ExchangeDeclaration = Static<typeof ExchangeDeclaration>;

/** Loops of exchanges in one record. */
export const MAX_LOOPS = 10;
/** Exchanges in one of these loops. */
export const MAX_LOOP_LENGTH = 16;

const shortQueue = { q: Type.String(), ns: Type.String() };
const PayloadKind = Type.Enum(['json', 'text', 'bytes']);
const payload = {
  payload: PayloadKind,
  content_type: Type.String(),
  content_encoding: orNull(Type.String()),
};
/** A position in a selector, from 1; null if the error has none. */
const Place = orNull(Type.Integer({ minimum: 1 }));

/** How selectors saw one element. */
const Sighting = Type.Object({ id: Type.String(), at: Moment, ...payload });
export type Sighting = Static<typeof Sighting>;

const DestinationError = Type.Object({
  destination: Count,
  message: Type.String(),
  line: Place,
  column: Place,
  at: Moment,
  count: Count,
});
export type DestinationError = Static<typeof DestinationError>;

const DestinationCounters = Type.Object({ matched: Count, skipped: Count, failed: Count });

/** The members of an exchange record (spec 2.4); those behind `stopped` are additions. */
export const exchangeMembers = {
  src: Type.Object(shortQueue),
  // `hidden`: the reader may not see the namespace. Names and counters are then empty, and the rest is left out.
  dst: Type.Array(
    Type.Object({
      ...shortQueue,
      selector: Type.Optional(Type.String()),
      hidden: Type.Optional(Type.Literal(true)),
    }),
  ),
  opts: declarationMembers.consumer,
  cid: Type.String(),
  pending_acks: Type.Record(Type.Object({ t: Moment, id: Type.String() })),
  pending_tids: Type.Record(Moment),
  wsize: Type.Integer(),
  stopped: orNull(Type.Boolean()),
  // Left out if a destination is hidden: it is a hash of the whole declaration, and would confirm guesses.
  version: Type.Optional(Type.String()),
  stats: Type.Object({
    no_route: Count,
    too_many_hops: Count,
    put_back: Count,
    selector_ms: Count,
    dst: Type.Array(DestinationCounters),
  }),
  errors: Type.Array(DestinationError),
  lastError: orNull(Type.String()),
  // How selectors saw the latest elements.
  saw: Type.Object({ last: orNull(Sighting), last_no_route: orNull(Sighting) }),
  // Loops of the declared graph that pass through this exchange, as far as the reader may see them.
  loops: Type.Array(Type.Array(Type.String(), { minItems: 1, maxItems: MAX_LOOP_LENGTH + 1 }), {
    maxItems: MAX_LOOPS,
  }),
};

export const ExchangeRecord = namedObject('ExchangeInformation', exchangeMembers);
export type ExchangeRecord = Static<typeof ExchangeRecord>;

/** What an exchange would do with one destination of a sample. */
const TriedDestination = Type.Object({
  ...shortQueue,
  accepted: Type.Boolean(),
  error: orNull(Type.String()),
  line: Place,
  column: Place,
  // Console lines of the selector.
  logs: Type.Array(Type.String()),
  // The timing and tries that the selector set on the copy; null if it set none.
  mature: orNull(Moment),
  delay: orNull(Type.Number()),
  tries: orNull(Count),
  // The copy for this destination, even if it is not `accepted`. A long payload is cut.
  hdrs: Type.Record(Type.String()),
  payload: Type.String(),
  payload_encoding: Type.Enum(['text', 'base64']),
  // The length of the uncut payload.
  payload_bytes: Count,
});
export type TriedDestination = Static<typeof TriedDestination>;

/** What an exchange would do with a sample. */
export const ExchangeTrial = namedObject('ExchangeTrial', {
  // The type of `env.msg.payload`, and the headers of the element that determined it.
  saw: Type.Object(payload),
  // Empty if no selector ran.
  dst: Type.Array(TriedDestination),
  // `__no_route__` or `__too_many_hops__` if the element would go there.
  strays_to: orNull(Type.String()),
  // Why the selectors could not finish: they exceeded their time or memory.
  overrun: orNull(Type.String()),
  // If they could not finish: the console lines that they had written until then, of all destinations.
  logs: Type.Array(Type.String()),
  selector_ms: Type.Number(),
});
export type ExchangeTrial = Static<typeof ExchangeTrial>;

// Bulk operations

/** What a bulk operation does to each element that matches; `migrate` moves a whole namespace to another engine. */
const ACTIONS = ['count', 'delete', 'move', 'copy', 'redrive', 'release', 'delay', 'set', 'migrate'] as const;
export type Action = (typeof ACTIONS)[number];

export const OPERATION_STATES = ['running', 'done', 'cancelled', 'failed'] as const;
export type OperationState = (typeof OPERATION_STATES)[number];

/** Maximum ids of one operation: as many as one engine call can look up. */
const MAX_IDS = 1_000;
/** Elements per second. */
const MAX_RATE = 1_000_000;

const MAX_LIMIT = 1_000_000_000;

const OperationPlace = Type.Object(
  {
    ns: Name,
    queue: Type.Optional({
      ...Name,
      description: 'Required, except with `migrate`, which applies to a namespace and takes none.',
    }),
  },
  STRICT,
);
export type OperationPlace = Static<typeof OperationPlace>;

/** The states that `where.state` may name. */
export const OPERATION_SCOPES = [...DELIVERY_STATES, 'all'] as const;

const OperationWhere = Type.Object(
  {
    state: Type.Optional(Type.Enum(OPERATION_SCOPES)),
    group: optional(Group),
    ids: optional(
      allowing(
        `an array of 1 to ${MAX_IDS} ids`,
        Type.Array(Type.String({ minLength: 1, maxLength: LIMITS.idLength }), {
          minItems: 1,
          maxItems: MAX_IDS,
        }),
      ),
    ),
    selector: optional(
      Type.String({
        minLength: 1,
        maxLength: LIMITS.selectorBytes,
        description: 'A function of the element, such as `env => env.msg.tries > 3`.',
      }),
    ),
    olderThan: optional(
      inUnit(
        'seconds',
        Type.Integer({
          minimum: 0,
          maximum: LIMITS.delayMs / 1000,
          description: 'Seconds since the insert.',
        }),
      ),
    ),
  },
  STRICT,
);
export type OperationWhere = Static<typeof OperationWhere>;

const ChangedHeaders = Type.Record(allowing('a string, or null to remove the header', orNull(WellFormed)));
const operation = {
  action: Type.Enum(ACTIONS),
  source: OperationPlace,
  limit: inUnit(
    'a count',
    Type.Integer({ minimum: 1, maximum: MAX_LIMIT, description: 'Maximum number of elements to change.' }),
  ),
  rate: inUnit(
    'elements a second',
    Type.Integer({ minimum: 1, maximum: MAX_RATE, description: 'Elements per second.' }),
  ),
};

/** The members of a request that only some actions have. */
export const OPERATION_MEMBERS = {
  to: OperationPlace,
  delay: inUnit(
    'milliseconds',
    Type.Integer({ minimum: 0, maximum: LIMITS.delayMs, description: 'Of `delay`: ms from now.' }),
  ),
  set: Type.Object(
    {
      headers: Type.Optional(ChangedHeaders),
      tries: optional(inUnit('a count', Type.Integer({ minimum: 0, maximum: LIMITS.tries }))),
    },
    { ...STRICT, description: 'Of `set`; the value null removes a header.' },
  ),
} as const;

/** The body of a request that starts an operation. */
export const OperationDeclaration = namedObject(
  'OperationRequest',
  {
    action: operation.action,
    source: operation.source,
    where: optional(OperationWhere),
    to: Type.Optional(OPERATION_MEMBERS.to),
    delay: Type.Optional(OPERATION_MEMBERS.delay),
    set: Type.Optional(OPERATION_MEMBERS.set),
    limit: optional(operation.limit),
    rate: optional(operation.rate),
    dryRun: Type.Optional(Type.Boolean({ description: 'Changes nothing: returns a count and samples.' })),
  },
  STRICT,
);
export type OperationDeclaration = Static<typeof OperationDeclaration>;

/** A matching element, without its body, and with the headers that fit into 1 KiB. */
const ElementSample = Type.Object({
  id: Type.String(),
  state: DeliveryStates,
  mature: Moment,
  insertedAt: Moment,
  tries: Count,
  reason: orNull(Type.String()),
  bytes: Count,
  contentType: orNull(Type.String()),
  headers: Type.Record(Type.String()),
});
export type ElementSample = Static<typeof ElementSample>;

/** An operation as users see it: the request, the progress and the end. */
export const OperationRecord = namedObject('Operation', {
  id: Type.String(),
  action: operation.action,
  source: operation.source,
  where: OperationWhere,
  // Null if the reader may not see its namespace.
  to: Type.Optional(orNull(OperationPlace)),
  delay: Type.Optional(Count),
  set: Type.Optional(Type.Object({ headers: ChangedHeaders, tries: orNull(Count) })),
  limit: orNull(operation.limit),
  rate: orNull(operation.rate),
  dryRun: Type.Boolean(),
  state: Type.Enum(OPERATION_STATES),
  seen: Count,
  matched: Count,
  changed: Count,
  failed: Count,
  estimate: Count,
  samples: Type.Array(ElementSample),
  by: Type.String(),
  startedAt: Moment,
  endedAt: orNull(Moment),
  error: orNull(Type.String()),
});
export type OperationRecord = Static<typeof OperationRecord>;

// Nodes, clients and sessions

const nodesList = {
  node: Type.String({ description: 'Id of the node that answered, as in `/nodes`.' }),
  missing: Type.Array(Type.String(), {
    description: 'Ids of the nodes that did not reply within a second, whose rows are missing.',
  }),
  total: Type.Integer({
    description: 'Number of all rows that the user may see, including those beyond `limit`.',
  }),
};
const NodesList = Type.Object(nodesList);
/** A list that is merged from all nodes, without its rows. */
export type NodesList = Static<typeof NodesList>;

/** The schema of a list that is merged from all nodes. @param member the one with the rows */
function listOfNodes<M extends string, Row>(
  id: string,
  member: M,
  row: Schema<Row>,
): Schema<NodesList & Readonly<Record<M, readonly Row[]>>> {
  return named(id, Type.Object({ ...nodesList, [member]: Type.Array(row) })) as Schema<
    NodesList & Readonly<Record<M, readonly Row[]>>
  >;
}

const row = { node: Type.String({ description: 'Id of the node, as in `/nodes`.' }) };
const queueNames = { ns: Type.String(), queue: Type.String() };

export const NodeRecord = namedObject('Node', {
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
});
export type NodeRecord = Static<typeof NodeRecord>;

const engine = {
  engine: Type.String({ description: 'Its URL, without secrets.' }),
  type: Type.String({ description: 'The first half of the type of its queues, as in `sqlite:simple`.' }),
  state: Type.Enum(['healthy', 'slow', 'unavailable']),
  // How long a ping took; null if it failed.
  pingMs: orNull(Count),
  // Size of its files, and of the free space on their disk; null if it has no files there, or they cannot be read now.
  disk: orNull(Type.Object({ fileBytes: Count, freeBytes: Count, minFreeBytes: Count })),
};
const EngineReport = Type.Object(engine);
/** An engine as a node sees it now, as other nodes and clients learn of it. */
type EngineReport = Static<typeof EngineReport>;

/** The same, for the node itself. */
export interface EngineHealth extends EngineReport {
  /** `ok`, or why it does not respond. */
  readonly check: string;
}

const EngineRow = namedObject('Engine', { ...row, ...engine, namespaces: Type.Array(Type.String()) });
export type EngineRow = Static<typeof EngineRow>;
export const Engines = listOfNodes('Engines', 'engines', EngineRow);
export type Engines = Static<typeof Engines>;

const WaitingConsumer = Type.Intersect([Type.Object({ ...row, ...queueNames }), PendingConsumer]);
export type WaitingConsumer = Static<typeof WaitingConsumer>;
export const WaitingConsumers = listOfNodes('WaitingConsumers', 'consumers', WaitingConsumer);
export type WaitingConsumers = Static<typeof WaitingConsumers>;

const SessionConsumerInfo = Type.Object({
  ...queueNames,
  group: orNull(Type.String()),
  kind: Type.Enum(['take', 'browse']),
  window: orNull(Type.Integer({ description: 'Elements that the client may hold; null for `browse`.' })),
  // Reserved elements that were sent and are not settled.
  unacknowledged: Count,
});
/** A consumer of a client session. */
export type SessionConsumerInfo = Static<typeof SessionConsumerInfo>;

const session = {
  id: Type.String({ description: 'As in the log; the tids of its consumers start with it.' }),
  protocol: Type.Enum(['stomp', 'amqp']),
  user: Type.String(),
  address: Type.String(),
  since: Moment,
  consumers: Type.Array(SessionConsumerInfo),
};
const SessionInfo = Type.Object(session);
/** A client session of STOMP or AMQP. */
export type SessionInfo = Static<typeof SessionInfo>;

const SessionRow = namedObject('Session', { ...row, ...session });
export type SessionRow = Static<typeof SessionRow>;
export const Sessions = listOfNodes('Sessions', 'sessions', SessionRow);
export type Sessions = Static<typeof Sessions>;

const audit = {
  at: Moment,
  user: Type.String(),
  action: Type.String({ description: 'The operation, such as `pause`.' }),
  address: Type.String(),
  namespace: orNull(Type.String()),
  queue: orNull(Type.String()),
  // The other parameters of the path, such as the id of an exchange, and the result of the operation.
  details: Type.Record(Type.Unknown()),
};
const AuditLine = Type.Object(audit);
/** One use of an audited operation that succeeded. */
export type AuditLine = Static<typeof AuditLine>;

const AuditRow = namedObject('AuditLine', { ...row, ...audit });
export type AuditRow = Static<typeof AuditRow>;
export const AuditLines = listOfNodes('AuditLines', 'lines', AuditRow);
export type AuditLines = Static<typeof AuditLines>;

const ConsoleSessionRow = namedObject('OwnConsoleSession', {
  node: Type.String({ description: 'Id of the node that served it last, as in `/nodes`.' }),
  id: Type.String({ description: 'Identifies the session; it is no credential.' }),
  startedAt: Moment,
  usedAt: Moment,
  expiresAt: Moment,
  address: Type.String(),
  browser: orNull(Type.String({ description: 'The `User-Agent` of the browser.' })),
  isThis: Type.Boolean({ description: 'Whether the request was sent with the cookie of this session.' }),
});
export type ConsoleSessionRow = Static<typeof ConsoleSessionRow>;
export const OwnConsoleSessions = listOfNodes('OwnConsoleSessions', 'sessions', ConsoleSessionRow);
export type OwnConsoleSessions = Static<typeof OwnConsoleSessions>;

/** A console session, for the page that uses it. */
export const ConsoleSessionRecord = namedObject('ConsoleSession', {
  user: Type.String(),
  isAdministrator: Type.Boolean({
    description: 'Whether the user has all rights because none are listed.',
  }),
  rights: Type.Record(Type.Array(Type.Enum(RIGHTS)), {
    description: 'Rights of the user by namespace; namespaces without any are left out.',
  }),
  maskedBodies: Type.Array(Type.String(), {
    description: 'Namespaces in which the user may browse elements, but not see bodies.',
  }),
  csrfToken: Type.String({ description: 'For the header `X-CSRF-Token`.' }),
  expiresAt: Type.String({ format: 'date-time', description: 'When it ends if no further request is sent.' }),
  server: Type.Object({
    version: Type.String(),
    node: Type.String({ description: 'Id of the node that answered, as in `/nodes`.' }),
    now: Moment,
  }),
});
export type ConsoleSessionRecord = Static<typeof ConsoleSessionRecord>;

/** The rights of a token, for documentation. */
export const TOKEN_RIGHTS_NOTE =
  'By namespace, `*` for those that are not named; null: all rights of the owner.';

const token = {
  id: Type.String(),
  name: Type.String(),
  owner: Type.String({ description: 'The user who owns the token.' }),
  rights: orNull(Type.Record(Type.Array(Type.Enum(RIGHTS))), { description: TOKEN_RIGHTS_NOTE }),
  createdAt: Moment,
  expiresAt: orNull(Moment, { description: 'Null: never.' }),
  lastUsedAt: orNull(Moment, {
    description: 'Last use on this node since its start; null: not used.',
  }),
};

/** An API token, without the secret. */
export const ListedToken = namedObject('Token', token);
export type ListedToken = Static<typeof ListedToken>;

export const IssuedToken = namedObject('CreatedToken', {
  ...token,
  token: Type.String({ description: 'For `Authorization: Bearer`. It is shown only once.' }),
});
export type IssuedToken = Static<typeof IssuedToken>;

/** The content of a backup, as in its manifest. */
export const BackupReport = Type.Object({
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
        description: 'Engines that are not included: they are backed up by other means, or in memory.',
      },
    ),
  ),
});
export type BackupReport = Static<typeof BackupReport>;

// Pictures in the stream of events: what a record shows of a thing that changes often

/** A queue. */
export type QueuePicture = Pick<QueueRecord, keyof QueueSizes | 'paused'> &
  Pick<FoundQueue, 'ns' | 'queue'> & { readonly stats: Static<typeof Counters> };

/** An exchange. The counters of destinations are left out if the viewer may not see one of them. */
export type ExchangePicture = Pick<ExchangeRecord, 'src' | 'stopped' | 'lastError'> & {
  readonly id: string;
  readonly dst: readonly Omit<ExchangeRecord['dst'][number], 'selector'>[];
  readonly stats: Pick<ExchangeRecord['stats'], 'no_route' | 'too_many_hops' | 'put_back'> &
    Partial<Pick<ExchangeRecord['stats'], 'dst'>>;
};

/** A bulk operation. */
export type OperationPicture = Omit<OperationRecord, 'samples' | 'where' | 'set'>;

/** A condition that needs an operator. The members depend on its kind. */
export interface AlarmPicture {
  readonly alarm: string;
  readonly since: string;
  readonly engine?: string;
  readonly namespaces?: readonly string[];
  readonly detail?: string;
  readonly ns?: string;
  readonly queue?: string;
  readonly totalSize?: number;
}
