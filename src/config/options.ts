import { LIMITS } from '../model/limits.ts';
import { DEAD_LETTER_QUEUE } from '../model/service-headers.ts';
import { type Properties, type Static, Type } from '../util/schema.ts';

/**
 * Every option, declared once: its type, default, bounds and help. The check of the file, the reading of the
 * environment, `--help`, `--print-config` and the table in `docs/reference/configuration.md` all come from here.
 *
 * Lengths are in seconds, sizes in bytes. `secret` marks what is masked when shown, wholly or as
 * a URL, and may be given by a file (`…_FILE`); `hint` says what to do if the value is wrong.
 */

/** Keys that are not declared are errors. */
const CLOSED = { additionalProperties: false };

/** A certificate for a listener. */
const tlsOptions = <More extends Properties>(description: string, more: More) =>
  Type.Optional(
    Type.Object(
      {
        cert: Type.String({ minLength: 1, description: 'PEM file of the certificate chain' }),
        key: Type.String({ minLength: 1, description: 'PEM file of its private key' }),
        ...more,
      },
      { ...CLOSED, description: `${description}; its files are read again on SIGHUP` },
    ),
  );

const hostOption = (description: string) => Type.String({ minLength: 1, default: '127.0.0.1', description });

/** Where a listener is bound, and what protects it. */
const HOST = hostOption('address or name to listen on');
const HOST_OR_SOCKET = hostOption(
  'address or name to listen on, or the absolute path of a Unix socket, which gets mode `0660`',
);

const INSECURE = Type.Boolean({
  default: false,
  description: 'allows listening beyond this machine without TLS: passwords then travel in the clear',
});

/** A front end other than HTTP: off unless it is given a port. Its users are those of `http.users`. */
const frontEndOptions = <More extends Properties>(
  name: string,
  path: string,
  customaryPort: number,
  tooLarge: string,
  certificateLogin: string,
  more: More,
) =>
  Type.Object(
    {
      host: HOST,
      port: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: 65_535,
          description: `port, ${customaryPort} by custom; 0 takes a free one; without it ${name} is off`,
        }),
      ),
      bodyLimit: Type.Integer({
        minimum: 1,
        maximum: 1_073_741_824,
        default: 1_048_576,
        description: tooLarge,
      }),
      maxSockets: Type.Integer({
        minimum: 1,
        default: 10_000,
        description: 'connections kept at once; further ones are closed',
      }),
      tls: tlsOptions(`serves ${name} over TLS (1.2 and up)`, {
        clientCa: Type.Optional(
          Type.String({
            minLength: 1,
            description: `PEM file of the authorities that sign client certificates: a client with such a certificate may log in without a password, ${certificateLogin}, as the user whose name is the only common name (CN) of the certificate; if not given, no client is asked for a certificate`,
          }),
        ),
      }),
      insecure: INSECURE,
      trustedProxies: Type.Array(Type.String(), {
        default: [],
        description:
          'proxies that send a PROXY protocol header (version 2), which says where a client connects from: addresses or networks (`10.0.0.0/8`); their connections without one are closed',
      }),
      webSocket: Type.Boolean({
        default: false,
        description: `also serves ${name} over WebSocket, at \`${path}\` of the HTTP port, with the TLS, the trusted proxies and the allowed origins of HTTP`,
      }),
      ...more,
    },
    { ...CLOSED, default: {} },
  );

const StompOptions = frontEndOptions(
  'STOMP',
  '/stomp',
  61613,
  'largest body of a SEND, bytes; larger ones end the session with an ERROR',
  'if CONNECT has neither login nor passcode',
  {
    trailingNewline: Type.Boolean({
      default: true,
      description:
        'sends one LF after each frame, which some clients wait for, such as the stomp extension of PHP',
    }),
  },
);

const AmqpOptions = frontEndOptions(
  'AMQP 1.0',
  '/amqp',
  5672,
  'largest body of a message, bytes; larger ones are rejected',
  'by SASL EXTERNAL',
  {
    anonymousUser: Type.Optional(
      Type.String({
        minLength: 1,
        description:
          'user of `http.users` with whose rights a client acts that logs in by SASL ANONYMOUS; without it, that is not served',
      }),
    ),
  },
);

const ENGINE_URL = '^[a-z][a-z0-9+.-]*:';

const UserOptions = Type.Object(
  {
    password: Type.String({
      secret: 'whole',
      hint: 'Make a hash with `npm start -- hash-password` and write it between single quotes',
      description:
        'argon2id hash as `npm start -- hash-password` prints it; a plain one is taken with a warning',
    }),
    rights: Type.Optional(
      Type.Record(Type.Array(Type.String()), {
        description:
          'lists of `read`, `write`, `manage`, `browse`, `exchange` by namespace; `*` for those not named; without it, all',
      }),
    ),
    maskBodies: Type.Optional(
      Type.Boolean({
        description: 'hides the bodies of elements where the user has `browse` but not `read`',
      }),
    ),
  },
  { ...CLOSED, hint: 'Write a password between quotes, or { password: …, rights: … }' },
);

const HttpOptions = Type.Object(
  {
    host: HOST_OR_SOCKET,
    port: Type.Integer({
      minimum: 0,
      maximum: 65_535,
      default: 3444,
      description: 'port; 0 takes a free one',
    }),
    bodyLimit: Type.Integer({
      minimum: 1,
      maximum: 1_073_741_824,
      default: 1_048_576,
      description: 'largest body of a request, bytes; larger ones are answered with 413',
    }),
    batchCount: Type.Integer({
      minimum: 1,
      maximum: 100_000,
      default: 10_000,
      description:
        'elements of one insert of many, and items of one settlement of many; more are answered with 413',
    }),
    batchBytes: Type.Integer({
      minimum: 1,
      maximum: 268_435_456,
      default: 16_777_216,
      description:
        'largest body of an insert of many or a settlement of many, bytes, larger ones are answered with 413; and what a take of many returns at most',
    }),
    maxSockets: Type.Integer({
      minimum: 1,
      default: 20_000,
      description: 'connections kept at once; further ones are closed',
    }),
    users: Type.Record(UserOptions, {
      default: {},
      description:
        'users by name; the short form `name: password` is meant for trials. Without any, the first start makes an administrator',
    }),
    tls: tlsOptions('serves HTTPS (TLS 1.2 and up)', {}),
    insecure: INSECURE,
    allowedOrigins: Type.Array(
      Type.String({ pattern: '^https?://[^/]+$', hint: 'Write it as https://jobs.example' }),
      {
        default: [],
        description:
          'origins, in addition to its own, whose pages may call from a browser (CORS); also for a proxy that rewrites `Host`',
      },
    ),
    trustedProxies: Type.Array(Type.String(), {
      default: [],
      description:
        'proxies whose `X-Forwarded-For` or `Forwarded` says where a request comes from: addresses, networks (`10.0.0.0/8`), or `unix:` for peers of a Unix socket',
    }),
    metricsWithoutLogin: Type.Boolean({
      default: false,
      description: 'serves `/metrics` without credentials, of all namespaces',
    }),
  },
  { ...CLOSED, default: {} },
);

const DeadLetterOptions = Type.Object(
  {
    maxTries: Type.Integer({
      minimum: 1,
      maximum: LIMITS.tries,
      description: 'failed tries at which an element moves to the dead-letter queue',
    }),
    queue: Type.String({
      minLength: 1,
      default: DEAD_LETTER_QUEUE,
      description: 'name of that queue, in the same namespace',
    }),
  },
  { ...CLOSED, description: 'moves elements that fail too often; without it they are tried for ever' },
);

const LONGEST_S = 315_360_000;

const RetryDelayOptions = Type.Object(
  {
    first: Type.Number({
      exclusiveMinimum: 0,
      maximum: LONGEST_S,
      description: 'delay after the first failed try, seconds',
    }),
    factor: Type.Number({
      minimum: 1,
      maximum: 100,
      default: 2,
      description: 'how many times as long each further delay is',
    }),
    max: Type.Optional(
      Type.Number({
        exclusiveMinimum: 0,
        maximum: LONGEST_S,
        description: 'longest delay, seconds; 3600 if it is not given, or `first` if that is longer',
      }),
    ),
    jitter: Type.Number({
      minimum: 0,
      maximum: 1,
      default: 0,
      description:
        'part of itself by which a delay is shortened at most, so that elements do not return all at once',
    }),
  },
  {
    ...CLOSED,
    description:
      'how long an element waits after a rollback that names no delay, and after its lease expired; without it, not at all',
  },
);

/** Options of queues by their names, over those of their namespace. */
const QueueOptions = Type.Object(
  {
    lease: Type.Optional(
      Type.Number({
        exclusiveMinimum: 0,
        maximum: LONGEST_S,
        description: 'as in the namespace, which has it if it is not given',
      }),
    ),
    deadLetter: Type.Optional(DeadLetterOptions),
    retryDelay: Type.Optional(RetryDelayOptions),
    retention: Type.Optional(
      Type.Number({ exclusiveMinimum: 0, maximum: LONGEST_S, description: 'streams: as in the namespace' }),
    ),
    ttl: Type.Optional(
      Type.Number({
        exclusiveMinimum: 0,
        maximum: LONGEST_S,
        description: 'time to live of elements that are inserted without one, seconds',
      }),
    ),
    maxElements: Type.Optional(
      Type.Integer({
        minimum: 1,
        description:
          'elements of each of these queues, in a stream once for each group; inserts beyond are refused with `507`, consuming continues',
      }),
    ),
  },
  CLOSED,
);

const SignallerOptions = Type.Object(
  {
    url: Type.Optional(
      Type.String({
        secret: 'in-url',
        pattern: ENGINE_URL,
        description:
          "engine that carries them, or `local:` for none; the namespace's own where it is not given",
      }),
    ),
    channel: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: 255,
        description: 'name of their channel; `namespace:` and the name where it is not given',
      }),
    ),
  },
  { ...CLOSED, description: 'signals between nodes' },
);

const StatsOptions = Type.Object(
  {
    url: Type.Optional(
      Type.String({
        secret: 'in-url',
        pattern: ENGINE_URL,
        description: "engine that keeps them; the namespace's own where it is not given",
      }),
    ),
    coll: Type.Optional(
      Type.String({
        pattern: '^[^/]{1,64}$',
        hint: 'Choose up to 64 characters without a slash',
        description:
          'name that sets them apart from those of other installations; `stats` where it is not given',
      }),
    ),
  },
  { ...CLOSED, description: 'counts of what came and went, as the status of a queue shows them' },
);

const NamespaceOptions = Type.Object(
  {
    url: Type.String({
      secret: 'in-url',
      pattern: ENGINE_URL,
      hint: 'Name an engine, as in "sqlite:N.db"',
      description:
        'engine: `sqlite:FILE` (relative to `dataDir`), `sqlite::memory:`, `redis://…` or `postgres://…`; a URL given twice is one engine',
    }),
    variant: Type.Enum(['simple', 'stream', 'list'], {
      default: 'simple',
      description:
        '`stream`: several consumer groups read each element; `list`: `redis:` only, the fastest, with insert and get alone',
    }),
    groups: Type.Optional(
      Type.Array(Type.String(), {
        minItems: 1,
        maxItems: 64,
        description: 'default groups of a stream; `[default]` where it is not given',
      }),
    ),
    lease: Type.Number({
      exclusiveMinimum: 0,
      maximum: 315_360_000,
      default: 120,
      description: 'how long a reservation holds, seconds; a call may ask for another length',
    }),
    deadLetter: Type.Optional(DeadLetterOptions),
    retryDelay: Type.Optional(RetryDelayOptions),
    queues: Type.Optional(
      Type.Record(QueueOptions, {
        description:
          "options of queues by name or by pattern, in which `*` stands for any characters. The most specific one that matches applies, and what it does not give is the namespace's; see [policies](../guides/policies.md)",
      }),
    ),
    retention: Type.Optional(
      Type.Number({
        exclusiveMinimum: 0,
        maximum: 315_360_000,
        description:
          'streams: how long an element stays at most, seconds; without it, until its last group finished it',
      }),
    ),
    maxQueues: Type.Integer({
      minimum: 1,
      default: 10_000,
      description:
        'queues of the namespace; what would make one more is refused, but for dead letters and what no exchange could forward',
    }),
    maxElements: Type.Optional(
      Type.Integer({
        minimum: 1,
        description:
          'elements of the namespace, in a stream once for each group; inserts beyond are refused with `507`, consuming continues; no bound if it is not given',
      }),
    ),
    maxBytes: Type.Optional(
      Type.Integer({
        minimum: 1_048_576,
        description:
          'SQLite: bytes of the file, or of the memory of `sqlite::memory:`, all of its namespaces together. Redis: bytes of memory that the queues of the namespace take. PostgreSQL: bytes of the elements of the namespace. Inserts beyond are refused with `507`, consuming continues. 1 GiB for `sqlite::memory:` if it is not given, else no bound',
      }),
    ),
    maxExchanges: Type.Integer({
      minimum: 1,
      default: 1000,
      description:
        'exchanges whose source is in the namespace; the create that would make one more is refused, those of the configuration and those stored run',
    }),
    maxGroups: Type.Integer({
      minimum: 1,
      maximum: 10_000,
      default: 1_000,
      description:
        'streams: consumer groups of one queue in addition to the default ones; the insert that would make one more is refused',
    }),
    durability: Type.Optional(
      Type.Enum(['full', 'normal'], {
        description:
          '`sqlite:` only. `full`, where it is not given: an answer means that the disk has it; `normal`: a power loss may take the last answers back',
      }),
    ),
    cacheBytes: Type.Optional(
      Type.Integer({
        minimum: 1_048_576,
        description: '`sqlite:` only. Page cache of the engine, bytes; 16 MiB where it is not given',
      }),
    ),
    damagedLog: Type.Optional(
      Type.Enum(['refuse', 'drop'], {
        description:
          '`sqlite:` only. What a start does if the write-ahead log is damaged. `refuse`, if it is not given: it fails; `drop`: it keeps a copy of the log, loses what was stored from the damage on, and continues. For one start, after a look at the copy',
      }),
    ),
    signaller: Type.Optional(SignallerOptions),
    stats: Type.Optional(StatsOptions),
  },
  CLOSED,
);

const QueueOf = {
  ns: Type.String({ minLength: 1, description: 'namespace of that queue' }),
  queue: Type.String({ minLength: 1, description: 'name of that queue' }),
};

const ExchangeOptions = Type.Object(
  {
    src: Type.Object(QueueOf, { ...CLOSED, description: 'queue that elements are taken from' }),
    dst: Type.Array(
      Type.Object(
        {
          ...QueueOf,
          selector: Type.Optional(
            Type.String({ description: 'JavaScript function of `env` that says whether to copy' }),
          ),
        },
        CLOSED,
      ),
      {
        minItems: 1,
        description: 'queues that elements are copied to, each with `ns`, `queue` and perhaps `selector`',
      },
    ),
    consumer: Type.Object(
      {
        parallel: Type.Optional(Type.Integer({ minimum: 1, maximum: 16, description: 'loops side by side' })),
        wsize: Type.Optional(
          Type.Integer({ minimum: 1, maximum: 65_536, description: 'elements under way at once' }),
        ),
        reserve: Type.Optional(
          Type.Boolean({ description: 'across engines: at least once instead of at most once' }),
        ),
      },
      { ...CLOSED, default: {}, description: 'options of its consumer' },
    ),
  },
  CLOSED,
);

const TracingOptions = Type.Object(
  {
    otlp: Type.String({
      secret: 'in-url',
      pattern: '^https?://',
      hint: 'Write it as http://localhost:4318',
      description:
        'collector that takes OTLP over HTTP in JSON, as in `http://localhost:4318`; `/v1/traces` is added if it has no path; a user and a password in it are sent as Basic credentials',
    }),
    headers: Type.Record(Type.String({ secret: 'whole' }), {
      default: {},
      description: 'headers of each request to the collector by name, such as a token',
    }),
    ratio: Type.Number({
      minimum: 0,
      maximum: 1,
      default: 1,
      description:
        'share of the traces that begin here which is recorded; a request with a `traceparent` is recorded if its sender says so',
    }),
    maxQueue: Type.Integer({
      minimum: 1,
      maximum: 1_000_000,
      default: 8_192,
      description: 'spans that wait to be sent; further ones are dropped, and counted',
    }),
    service: Type.String({
      minLength: 1,
      default: 'quayside',
      description: 'name of the service in the traces (`service.name`)',
    }),
  },
  {
    ...CLOSED,
    description: 'sends traces to an OpenTelemetry collector; without it there are none',
  },
);

export const Options = Type.Object(
  {
    dataDir: Type.String({
      minLength: 1,
      default: './data',
      description:
        "folder of the server's files; relative to the configuration file's, or to the working folder",
    }),
    backupDir: Type.Optional(
      Type.String({
        minLength: 1,
        description:
          "folder that backups are written to, relative to the configuration file's; `backups` in `dataDir` if it is not given",
      }),
    ),
    http: HttpOptions,
    stomp: StompOptions,
    amqp: AmqpOptions,
    namespaces: Type.Record(NamespaceOptions, {
      minProperties: 1,
      default: {
        N: { url: 'sqlite:N.db' },
        events: { url: 'sqlite:events.db', variant: 'stream', groups: ['default'] },
      },
      hint: 'Name at least one, or leave it out for N and events',
      description: 'namespaces by name; `N` and `events` (a stream) where none is given',
    }),
    exchanges: Type.Record(ExchangeOptions, {
      default: {},
      description: 'exchanges by id; one of these wins over a stored one of the same id',
    }),
    selectors: Type.Enum(['on', 'off'], {
      default: 'on',
      description:
        '`off` refuses exchanges with selectors, and does not run those that are stored: a selector is code',
    }),
    maxHops: Type.Integer({
      minimum: 1,
      maximum: 1_000,
      default: 17,
      description: 'exchanges that an element may pass before it goes to `__too_many_hops__`',
    }),
    maxCopies: Type.Integer({
      minimum: 1,
      maximum: 1_000_000,
      default: 1_000,
      description:
        'copies that one element may become where exchanges form a loop, before they go to `__too_many_hops__`',
    }),
    waiting: Type.Object(
      {
        total: Type.Integer({
          minimum: 1,
          default: 10_000,
          description: 'gets and reserves under way at once on this node: those that wait, above all',
        }),
        perUser: Type.Integer({
          minimum: 1,
          default: 1_000,
          description: 'gets and reserves at once of one user',
        }),
      },
      { ...CLOSED, default: {} },
    ),
    events: Type.Object(
      {
        total: Type.Integer({
          minimum: 1,
          default: 2_000,
          description: 'clients that listen for events at once on this node',
        }),
        perUser: Type.Integer({
          minimum: 1,
          default: 200,
          description: 'clients of one user that listen for events at once',
        }),
      },
      { ...CLOSED, default: {} },
    ),
    console: Type.Object(
      {
        enabled: Type.Boolean({
          default: true,
          description:
            'serves the console at `/console/` and sends browsers there from `/`; `console: false` is short for `false` here',
        }),
        idle: Type.Number({
          minimum: 10,
          maximum: 43_200,
          default: 1_800,
          description:
            'how long a session of the console lasts without a request, seconds; 12 hours at most in all',
        }),
        secret: Type.Optional(
          Type.String({
            secret: 'whole',
            minLength: 32,
            hint: 'Make one with `openssl rand -base64 32`, and give it to all nodes',
            description:
              'what sessions of the console are signed with, at least 32 characters, the same on all nodes behind one proxy; without it a session ends with the process of the node that began it',
          }),
        ),
      },
      { ...CLOSED, default: {}, hint: 'Write console: false, or its options below it' },
    ),
    dedup: Type.Object(
      {
        window: Type.Number({
          minimum: 0,
          maximum: 31_536_000,
          default: 86_400,
          description: 'how long a repeated `Idempotency-Key` is recognised, seconds',
        }),
      },
      { ...CLOSED, default: {} },
    ),
    shutdown: Type.Object(
      {
        deadline: Type.Number({
          minimum: 0,
          maximum: 3_600,
          default: 10,
          description: 'how long a stop waits for requests under way, seconds',
        }),
      },
      { ...CLOSED, default: {} },
    ),
    metrics: Type.Object(
      {
        perQueue: Type.Boolean({
          default: false,
          description: 'adds series of each queue to `/metrics`, for the first 1000 queues',
        }),
      },
      { ...CLOSED, default: {} },
    ),
    tracing: Type.Optional(TracingOptions),
    log: Type.Object(
      {
        level: Type.Enum(['debug', 'info', 'warn', 'error'], {
          default: 'info',
          description:
            'the least level that is written to standard error; `debug` adds logins, rejected requests and connections',
        }),
        access: Type.Boolean({
          default: false,
          description: 'logs each HTTP request, and each STOMP and AMQP connection, when it has ended',
        }),
        format: Type.Enum(['auto', 'json', 'text'], {
          default: 'auto',
          description: 'a line of JSON or of text for each event; `auto`: text on a terminal, JSON otherwise',
        }),
      },
      { ...CLOSED, default: {} },
    ),
  },
  CLOSED,
);

/** A whole configuration, checked. Its paths are absolute. */
export type Config = Static<typeof Options>;
export type NamespaceConfig = Config['namespaces'][string];
export type QueueConfig = NonNullable<NamespaceConfig['queues']>[string];
