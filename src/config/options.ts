import { LIMITS } from '../model/limits.ts';
import { declarationMembers, QUEUE_OPTIONS, STRICT } from '../model/records.ts';
import { ownCommand } from '../util/own-command.ts';
import { type Properties, type Static, Type } from '../util/schema.ts';

/**
 * Declares every option with its type, default, bounds and help. Checks of the file, environment variables, `--help`,
 * `--print-config` and the table in `docs/reference/configuration.md` are all derived from these declarations.
 *
 * Durations are in seconds, sizes in bytes. `secret` marks values that are masked in output, entirely or as part of a
 * URL, and that can be read from a file (`…_FILE`); `path` marks paths, which are resolved, entirely or as part of a
 * URL; `hint` tells how to correct an invalid value.
 */

/** A number of something, at least one. */
const countOption = (description: string, more: object = {}) =>
  Type.Integer({ minimum: 1, description, ...more });

const portOption = (description: string, more: object = {}) =>
  Type.Integer({ minimum: 0, maximum: 65_535, description, ...more });

const bodyLimitOption = (description: string) =>
  countOption(description, { maximum: LIMITS.maxBodyLimit, default: 1_048_576 });

const maxSocketsOption = (most: number) =>
  countOption('open connections at once; further ones are closed', { default: most });

/** The path of a file or folder. */
const pathOption = (description: string, more: object = {}) =>
  Type.String({ minLength: 1, path: 'whole', description, ...more });

/** The TLS options of a listener. */
const tlsOptions = <More extends Properties>(description: string, more: More) =>
  Type.Optional(
    Type.Object(
      {
        cert: pathOption('PEM file of the certificate chain'),
        key: pathOption('PEM file of its private key'),
        ...more,
      },
      { ...STRICT, description: `${description}; SIGHUP reads its files again` },
    ),
  );

const hostOption = (description: string) => Type.String({ minLength: 1, default: '127.0.0.1', description });

/** Where a listener is bound. */
const HOST = hostOption('address or name to listen on');
const HOST_OR_SOCKET = hostOption(
  'address or name to listen on, or the absolute path of a Unix socket, which gets mode `0660`',
);

const INSECURE = Type.Boolean({
  default: false,
  description:
    'allows listening on an address other than loopback without TLS: passwords then travel unencrypted',
});

/** A front end other than HTTP: disabled unless a port is given. Its users are those of `http.users`. */
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
        portOption(`port, usually ${customaryPort}; 0 takes a free one; if not given, ${name} is off`),
      ),
      bodyLimit: bodyLimitOption(tooLarge),
      maxSockets: maxSocketsOption(10_000),
      tls: tlsOptions(`serves ${name} over TLS (1.2 and up)`, {
        clientCa: Type.Optional(
          pathOption(
            `PEM file of the authorities that sign client certificates: a client with such a certificate may log in without a password, ${certificateLogin}, as the user whose name is the only common name (CN) of the certificate; if not given, no client is asked for a certificate`,
          ),
        ),
      }),
      insecure: INSECURE,
      trustedProxies: Type.Array(Type.String(), {
        default: [],
        description:
          'addresses or networks (`10.0.0.0/8`) of proxies that send the address of a client in a PROXY protocol header (version 2); their connections without this header are closed',
      }),
      webSocket: Type.Boolean({
        default: false,
        description: `also serves ${name} over WebSocket, at \`${path}\` of the HTTP port, with the TLS, the trusted proxies and the allowed origins of HTTP`,
      }),
      ...more,
    },
    { ...STRICT, default: {} },
  );

const StompOptions = frontEndOptions(
  'STOMP',
  '/stomp',
  61613,
  'largest body of a SEND, bytes; a larger one ends the session with an ERROR',
  'if CONNECT has neither login nor passcode',
  {
    trailingNewline: Type.Boolean({
      default: true,
      description: 'sends one LF after each frame; some clients need it, such as the stomp extension of PHP',
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
          'user of `http.users` whose rights apply to clients that log in by SASL ANONYMOUS; if not given, ANONYMOUS is not offered',
      }),
    ),
  },
);

/** The URL of an engine. */
const engineUrlOption = (description: string, more: object = {}) =>
  Type.String({
    secret: 'in-url',
    path: 'in-url',
    pattern: '^[a-z][a-z0-9+.-]*:',
    description,
    ...more,
  });

const UserOptions = Type.Object(
  {
    password: Type.String({
      secret: 'whole',
      hint: `Create a hash with ${ownCommand('hash-password')} and write it between single quotes`,
      description: `argon2id hash as ${ownCommand('hash-password')} prints it; a plain password is accepted with a warning`,
    }),
    rights: Type.Optional(
      Type.Record(Type.Array(Type.String()), {
        description:
          'lists of `read`, `write`, `manage`, `browse`, `exchange` by namespace; `*` stands for namespaces that are not named; if not given, all rights',
      }),
    ),
    maskBodies: Type.Optional(
      Type.Boolean({
        description:
          'hides the bodies of elements in namespaces for which the user has `browse` but not `read`',
      }),
    ),
  },
  { ...STRICT, hint: 'Write a password between quotes, or { password: …, rights: … }' },
);

const HttpOptions = Type.Object(
  {
    host: HOST_OR_SOCKET,
    port: portOption('port; 0 takes a free one', { default: 3444 }),
    bodyLimit: bodyLimitOption('largest body of a request, bytes; larger ones are answered with 413'),
    batchCount: countOption(
      'elements in one insert of many, or items in one settlement of many; a request with more is answered with 413',
      { maximum: 100_000, default: 10_000 },
    ),
    batchBytes: countOption(
      'largest body of an insert of many or a settlement of many, bytes; larger ones are answered with 413. Also the largest response of a take of many',
      { maximum: LIMITS.maxBodyLimit, default: 16_777_216 },
    ),
    maxSockets: maxSocketsOption(20_000),
    users: Type.Record(UserOptions, {
      default: {},
      description:
        'users by name; the short form `name: password` is meant for trials. If no user is given, the first start creates an administrator',
    }),
    tls: tlsOptions('serves HTTPS (TLS 1.2 and up)', {}),
    insecure: INSECURE,
    allowedOrigins: Type.Array(
      Type.String({ pattern: '^https?://[^/]+$', hint: 'Write it as https://jobs.example' }),
      {
        default: [],
        description:
          'origins whose pages may call the server from a browser (CORS), in addition to its own; also needed behind a proxy that rewrites `Host`',
      },
    ),
    trustedProxies: Type.Array(Type.String(), {
      default: [],
      description:
        'proxies whose `X-Forwarded-For` or `Forwarded` names the client of a request: addresses, networks (`10.0.0.0/8`), or `unix:` for peers of a Unix socket',
    }),
    metricsWithoutLogin: Type.Boolean({
      default: false,
      description: 'serves the metrics of all namespaces at `/metrics` without credentials',
    }),
  },
  { ...STRICT, default: {} },
);

/** Options of queues by name; they override those of the namespace. */
const QueueOptions = Type.Object(
  {
    lease: Type.Optional({
      ...QUEUE_OPTIONS.lease,
      description: 'as in the namespace, whose value is the default',
    }),
    deadLetter: Type.Optional(QUEUE_OPTIONS.deadLetter),
    retryDelay: Type.Optional(QUEUE_OPTIONS.retryDelay),
    retention: Type.Optional({ ...QUEUE_OPTIONS.retention, description: 'streams: as in the namespace' }),
    ttl: Type.Optional(QUEUE_OPTIONS.ttl),
    maxElements: Type.Optional(QUEUE_OPTIONS.maxElements),
  },
  STRICT,
);

const SignallerOptions = Type.Object(
  {
    url: Type.Optional(
      engineUrlOption("engine that transports them, or `local:` for none; defaults to the namespace's own"),
    ),
    channel: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: 255,
        description: 'name of their channel; defaults to `namespace:` and the name of the namespace',
      }),
    ),
  },
  { ...STRICT, description: 'signals between nodes' },
);

const StatsOptions = Type.Object(
  {
    url: Type.Optional(engineUrlOption("engine that stores them; defaults to the namespace's own")),
    coll: Type.Optional(
      Type.String({
        pattern: '^[^/]{1,64}$',
        hint: 'Choose up to 64 characters without a slash',
        description: 'name that distinguishes them from those of other installations; defaults to `stats`',
      }),
    ),
  },
  { ...STRICT, description: 'counts of inserted and finished elements, which the status of a queue shows' },
);

const NamespaceOptions = Type.Object(
  {
    url: engineUrlOption(
      'engine: `sqlite:FILE` (relative to `dataDir`), `sqlite::memory:`, `redis://…` or `postgres://…`; two namespaces with the same URL share one engine',
      { hint: 'Name an engine, as in "sqlite:N.db"' },
    ),
    variant: Type.Enum(['simple', 'stream', 'list'], {
      default: 'simple',
      description:
        '`stream`: several consumer groups read each element; `list`: `redis:` only, the fastest, offers insert and get only',
    }),
    groups: Type.Optional(
      Type.Array(Type.String(), {
        minItems: 1,
        maxItems: 64,
        description: 'default groups of a stream; defaults to `[default]`',
      }),
    ),
    lease: { ...QUEUE_OPTIONS.lease, default: 120 },
    deadLetter: Type.Optional(QUEUE_OPTIONS.deadLetter),
    retryDelay: Type.Optional(QUEUE_OPTIONS.retryDelay),
    queues: Type.Optional(
      Type.Record(QueueOptions, {
        description:
          "options of queues by name or by pattern, in which `*` stands for any characters. The most specific match applies; options that it does not give default to the namespace's. See [policies](../guides/policies.md)",
      }),
    ),
    retention: Type.Optional(QUEUE_OPTIONS.retention),
    maxQueues: countOption(
      'maximum number of queues in the namespace; a request that would create one more is rejected. Queues for dead letters and for elements that no exchange could forward are created beyond it, too, but they count',
      { default: 10_000 },
    ),
    maxElements: Type.Optional(
      countOption(
        'maximum number of elements in the namespace, in a stream counted once for each group; further inserts are rejected with `507`, consuming continues; no bound if not given',
      ),
    ),
    maxBytes: Type.Optional(
      Type.Integer({
        minimum: 1_048_576,
        description:
          'SQLite: largest size of the file, or of the memory of `sqlite::memory:`, for all of its namespaces together, bytes. Redis: memory that the queues of the namespace use. PostgreSQL: size of the elements of the namespace. Further inserts are rejected with `507`, consuming continues. Defaults to 1 GiB for `sqlite::memory:`, else to no bound',
      }),
    ),
    maxExchanges: countOption(
      'maximum number of exchanges with a source in the namespace; creating one more is rejected. Exchanges that are stored or in the configuration run in any case',
      { default: 1000 },
    ),
    maxGroups: countOption(
      'streams: maximum number of consumer groups of one queue in addition to the default ones; an insert that would create one more is rejected',
      { maximum: 10_000, default: 1_000 },
    ),
    durability: Type.Optional(
      Type.Enum(['full', 'normal'], {
        description:
          '`sqlite:` only. `full`, the default: a change is on disk before it is acknowledged; `normal`: a power loss may undo the last acknowledged changes',
      }),
    ),
    cacheBytes: Type.Optional(
      Type.Integer({
        minimum: 1_048_576,
        description: '`sqlite:` only. Page cache of the engine, bytes; defaults to 16 MiB',
      }),
    ),
    damagedLog: Type.Optional(
      Type.Enum(['refuse', 'drop'], {
        description:
          '`sqlite:` only. What happens at start if the write-ahead log is damaged. `refuse`, the default: the start fails. `drop`: the server keeps a copy of the log, discards it from the damage on, and continues. Use `drop` for one start, after you have examined the log',
      }),
    ),
    signaller: Type.Optional(SignallerOptions),
    stats: Type.Optional(StatsOptions),
  },
  STRICT,
);

const ExchangeOptions = Type.Object(
  {
    src: { ...declarationMembers.src, description: 'queue from which elements are taken' },
    dst: {
      ...declarationMembers.dst,
      description: 'queues to which elements are copied, each with `ns`, `queue` and optionally `selector`',
    },
    consumer: { ...declarationMembers.consumer, default: {}, description: 'options of its consumer' },
  },
  STRICT,
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
        'share of the traces starting at this node that is recorded; if a request has a `traceparent`, its sampled flag decides',
    }),
    maxQueue: countOption(
      'maximum number of spans waiting to be sent; further ones are dropped and counted',
      {
        maximum: 1_000_000,
        default: 8_192,
      },
    ),
    service: Type.String({
      minLength: 1,
      default: 'quayside',
      description: 'name of the service in the traces (`service.name`)',
    }),
  },
  {
    ...STRICT,
    description: 'sends traces to an OpenTelemetry collector; if not given, nothing is traced',
  },
);

export const Options = Type.Object(
  {
    dataDir: pathOption(
      "folder of the server's files; relative to the folder of the configuration file, or to the working folder if there is no such file",
      { default: './data' },
    ),
    backupDir: Type.Optional(
      pathOption(
        'folder to which backups are written, relative to the folder of the configuration file; defaults to `backups` in `dataDir`',
      ),
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
      description: 'namespaces by name; defaults to `N` and `events` (a stream)',
    }),
    exchanges: Type.Record(ExchangeOptions, {
      default: {},
      description: 'exchanges by id; they take precedence over stored ones with the same id',
    }),
    selectors: Type.Enum(['on', 'off'], {
      default: 'on',
      description: '`off` rejects exchanges with selectors, and does not run stored ones: a selector is code',
    }),
    maxHops: countOption(
      'maximum number of exchanges that an element may pass through; after that it goes to `__too_many_hops__`',
      { maximum: 1_000, default: 17 },
    ),
    maxCopies: countOption(
      'maximum number of copies of one element in a loop of exchanges; further ones go to `__too_many_hops__`',
      { maximum: 1_000_000, default: 1_000 },
    ),
    waiting: Type.Object(
      {
        total: countOption(
          'pending gets and reserves at once on this node, most of them waiting for an element',
          { default: 10_000 },
        ),
        perUser: countOption('pending gets and reserves of one user at once', { default: 1_000 }),
      },
      { ...STRICT, default: {} },
    ),
    events: Type.Object(
      {
        total: countOption('subscribers of `GET /events` at once on this node', { default: 2_000 }),
        perUser: countOption('subscribers of one user at once', { default: 200 }),
      },
      { ...STRICT, default: {} },
    ),
    console: Type.Object(
      {
        enabled: Type.Boolean({
          default: true,
          description:
            'serves the console at `/console/` and redirects browsers from `/` to it; `console: false` is short for `false` here',
        }),
        idle: Type.Number({
          minimum: 10,
          maximum: 43_200,
          default: 1_800,
          description:
            'how long a console session lasts without a request, seconds; it ends after 12 hours in any case',
        }),
        secret: Type.Optional(
          Type.String({
            secret: 'whole',
            minLength: 32,
            hint: 'Make one with `openssl rand -base64 32`, and give it to all nodes',
            description:
              'key that signs console sessions, the same on all nodes behind one proxy; if not given, a session is valid only on the node that started it, until that node stops',
          }),
        ),
      },
      { ...STRICT, default: {}, hint: 'Write console: false, or its options below it' },
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
      { ...STRICT, default: {} },
    ),
    shutdown: Type.Object(
      {
        deadline: Type.Number({
          minimum: 0,
          maximum: 3_600,
          default: 10,
          description: 'how long a shutdown waits for pending requests, seconds',
        }),
      },
      { ...STRICT, default: {} },
    ),
    metrics: Type.Object(
      {
        perQueue: Type.Boolean({
          default: false,
          description: 'adds time series for each queue to `/metrics`, up to the first 1000 queues',
        }),
      },
      { ...STRICT, default: {} },
    ),
    tracing: Type.Optional(TracingOptions),
    log: Type.Object(
      {
        level: Type.Enum(['debug', 'info', 'warn', 'error'], {
          default: 'info',
          description:
            'lowest level that is written to standard error; `debug` adds logins, rejected requests and connections',
        }),
        access: Type.Boolean({
          default: false,
          description: 'logs each HTTP request, and each STOMP and AMQP connection, when it ends',
        }),
        format: Type.Enum(['auto', 'json', 'text'], {
          default: 'auto',
          description:
            '`json` or `text`: one line for each event; `auto`: text on a terminal, JSON otherwise',
        }),
      },
      { ...STRICT, default: {} },
    ),
  },
  STRICT,
);

/** A complete, checked configuration with absolute paths. */
export type Config = Static<typeof Options>;
export type NamespaceConfig = Config['namespaces'][string];
export type QueueConfig = NonNullable<NamespaceConfig['queues']>[string];
