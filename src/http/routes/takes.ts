import { checkRight, type User } from '../../access/user.ts';
import { requireCapability } from '../../broker/capabilities.ts';
import type { Consumer, GetRequest, Sink } from '../../broker/consumer.ts';
import { engineNow } from '../../broker/engine-time.ts';
import { type JointRequest, JointTake, type Portion, type TakeSource } from '../../broker/joint-take.ts';
import type { Namespace } from '../../broker/namespace.ts';
import type { Queue } from '../../broker/queue.ts';
import { bodyBytes, type Delivery } from '../../model/element.ts';
import { invalidParameter, overloaded, type QuaysideError } from '../../model/errors.ts';
import { LIMITS } from '../../model/limits.ts';
import { atMember, parse } from '../../model/members.ts';
import { Group, Name } from '../../model/names.ts';
import { STRICT } from '../../model/records.ts';
import { nearestName } from '../../util/did-you-mean.ts';
import { quote } from '../../util/quote.ts';
import {
  allowing,
  Count,
  Moment,
  namedObject,
  type OptionalSchema,
  optional,
  orNull,
  type Static,
  Type,
} from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import type { WaitingCall } from '../connection.ts';
import type { RequestHead } from '../head.ts';
import { flag, group, nameOf, oneOf, type QueryParameter, wholeNumber } from '../parameters.ts';
import { parseJson, readBody } from '../request.ts';
import { type Route, route } from '../route.ts';
import { linkInsert } from '../traced-request.ts';
import {
  ELEMENT_HEADER_NOTES,
  isoTime,
  type ManyFormat,
  MULTIPART,
  NDJSON,
  writeMany,
} from '../written-elements.ts';

const MAX_BODY_BYTES = 65_536;
const MILLISECONDS = { to: LIMITS.delayMs, unit: 'milliseconds' } as const;
const ELEMENTS = { from: 1, to: LIMITS.takeCount, unit: 'a count' } as const;

/** The options of a take of many, as members of its JSON body or as query parameters. Null: not given. */
const options = {
  count: wholeNumber('Maximum number of elements; defaults to `min`, or 1.', ELEMENTS, null),
  min: wholeNumber(
    'Wait until this many are ready at once, or until `to` has passed; defaults to 1. Nothing is reserved during the wait.',
    ELEMENTS,
    null,
  ),
  to: wholeNumber(
    'How long to wait; defaults to no limit. 0 does not wait.',
    { ...MILLISECONDS, from: 0 },
    null,
  ),
  tid: nameOf('tid', "The consumer's name, by which it can be cancelled; defaults to a generated one."),
  reserve: { ...flag('Reserve the elements instead of popping them.'), fallback: null as boolean | null },
  lease: wholeNumber(
    'With `reserve`: how long the reservations last; defaults to the lease of the queue.',
    { ...MILLISECONDS, from: 1 },
    null,
  ),
  as: oneOf('`json`: bodies of JSON types are values (`json`) and not `text`. For lines of JSON only.', [
    'json',
  ]),
};

const optionsOfQueue = {
  ...options,
  group: group("On a stream: the group to read as; defaults to the namespace's first."),
};

type Options = { readonly [Name in keyof typeof options]: ReturnType<(typeof options)[Name]['read']> | null };

type MembersFor<P extends Record<string, QueryParameter<unknown>>> = {
  readonly [N in keyof P]: OptionalSchema<NonNullable<ReturnType<P[N]['read']>> | null>;
};

/** The schemas of query parameters as members of a JSON body. */
const membersFor = <P extends Record<string, QueryParameter<unknown>>>(parameters: P) =>
  Object.fromEntries(
    Object.entries(parameters).map(([name, { description, schema }]) => [
      name,
      optional({ ...schema, description }),
    ]),
  ) as MembersFor<P>;

const TakeOptions = namedObject('TakeOptions', membersFor(optionsOfQueue), STRICT);

const Source = Type.Object(
  {
    ns: Type.String(),
    queue: Name,
    group: optional({ ...Group, description: 'As on one queue.' }),
    weight: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: LIMITS.takeWeight,
        description: 'With `fair`: its share; defaults to 1.',
      }),
    ),
  },
  STRICT,
);

const TakeFromSeveral = namedObject(
  'TakeFromSeveral',
  {
    from: allowing(
      `an array of 1 to ${LIMITS.takeQueues} queues`,
      Type.Array(Source, { minItems: 1, maxItems: LIMITS.takeQueues }),
    ),
    order: Type.Optional(
      allowing(
        '"strict" or "fair"',
        Type.Enum(['strict', 'fair'], {
          description: '`strict`, the default: as listed. `fair`: random, in proportion to the weights.',
        }),
      ),
    ),
    ...membersFor(options),
  },
  STRICT,
);

const lineMembers = {
  id: Type.String(),
  tries: Count,
  mature: Moment,
  contentType: orNull(Type.String()),
  contentEncoding: orNull(Type.String()),
  headers: Type.Record(Type.String()),
  text: Type.Optional(Type.String({ description: 'The body, if its bytes are UTF-8.' })),
  base64: Type.Optional(Type.String({ description: 'The body, if they are not.' })),
  json: Type.Optional(Type.Unknown({ description: 'With `as=json`: the body, if its type is JSON.' })),
  lease: orNull(Type.String()),
  leaseUntil: orNull(Moment),
};

const TakenElement = namedObject('TakenElement', lineMembers);
const TakenFromSeveral = namedObject('TakenFromSeveral', {
  ns: Type.String(),
  queue: Type.String(),
  ...lineMembers,
});

const headers = {
  accept: `\`${NDJSON}\`, the default, or \`${MULTIPART}\`: one part for each element, byte for byte, with the headers of a get.`,
  prefer: '`wait=N`, in seconds, applies if `to` is not given.',
};

const MULTIPART_RESPONSE = {
  status: 200,
  description: 'The same as parts of multipart, if `Accept` prefers it.',
  contentType: MULTIPART,
} as const;

const problems = [
  'pop-cancelled',
  'pop-timeout',
  'too-many-consumers',
  'too-many-queues',
  'shutting-down',
  'not-supported',
] as const;

export const takeRoutes: readonly Route[] = [
  route({
    id: 'take',
    methods: ['GET'],
    path: '/q/:namespace/:queue',
    summary: 'Get (pop) or reserve the next element; waits until one is ready',
    access: 'read',
    csrf: 'all',
    query: {
      to: options.to,
      tid: options.tid,
      reserve: flag('Reserve the element instead of popping it.'),
      group: optionsOfQueue.group,
      lease: wholeNumber(
        'With `reserve`: how long the reservation lasts; defaults to the lease of the queue.',
        { ...MILLISECONDS, from: 1 },
        null,
      ),
    },
    headers: { prefer: '`wait=N`, in seconds, applies if `to` is not given.' },
    responses: [
      {
        status: 200,
        description: 'The element, as it was inserted.',
        contentType: '*/*',
        headers: {
          'x-ks-id': 'Its id, for commit and rollback.',
          'x-ks-tries': 'Failed tries so far.',
          'x-ks-mature': 'The maturity at which it was delivered, ISO 8601.',
          ...ELEMENT_HEADER_NOTES,
          'x-ks-lease': 'After a reserve: the token of the lease.',
          'x-ks-lease-until': 'After a reserve: when the lease ends, ISO 8601.',
        },
      },
    ],
    problems,
    handle(call, query) {
      const { tid, group } = query;
      const leaseMs = leaseIn(call.queue, query);
      const timeoutMs = query.to ?? preferredWait(call.head);
      if (timeoutMs !== 0) call.namespace.checkQueueLimit([call.queue.key.name]);
      const request = { group, leaseMs, timeoutMs, tid, owner: call.user.name, from: call };
      new Take(call, null).waitIn(call.queue, request);
    },
  }),
  route({
    id: 'takeMany',
    methods: ['POST'],
    path: '/q/:namespace/:queue/take',
    summary: 'Get (pop) or reserve many elements at once; waits for the first, or for `min`',
    access: 'read',
    body: 'json',
    query: optionsOfQueue,
    request: TakeOptions,
    headers,
    responses: [
      {
        status: 200,
        description: 'The elements, one per line, in delivery order.',
        contentType: NDJSON,
        schema: TakenElement,
        headers: { 'x-ks-time': 'The present time by the clock of the leases, ISO 8601.' },
      },
      MULTIPART_RESPONSE,
    ],
    problems,
    handle(call, query) {
      readMany(call, (payload) => {
        const given = merged(query, parse(TakeOptions, payload ?? {}));
        const group = given.group?.trim() ?? null;
        const leaseMs = leaseIn(call.queue, given);
        startTake(call, given, [{ queue: call.queue, group, leaseMs, weight: 1 }], 'strict');
      });
    },
  }),
  route({
    id: 'takeFromSeveral',
    methods: ['POST'],
    path: '/take',
    summary: 'Get (pop) or reserve elements of several queues with one blocked call',
    access: 'user',
    body: 'json',
    query: options,
    request: TakeFromSeveral,
    headers,
    responses: [
      {
        status: 200,
        description: 'The elements, one per line, each with its queue.',
        contentType: NDJSON,
        schema: TakenFromSeveral,
      },
      MULTIPART_RESPONSE,
    ],
    problems: [
      ...problems,
      'invalid-name',
      'forbidden',
      'namespace-not-found',
      'storage-unavailable',
      'outcome-unknown',
    ],
    handle(call, query) {
      // Ignored like other unknown parameters, it would take elements of another group. So would a misspelt one.
      for (const name of new URLSearchParams(call.search).keys()) {
        if (nearestName(name, ['group']) === null) continue;
        throw invalidParameter(
          name,
          `${quote(name)} is not a parameter of this path. Give the group in the body: from[0].group.`,
        );
      }
      readMany(call, (payload) => {
        const { from, order = 'strict', ...members } = parse(TakeFromSeveral, payload ?? undefined);
        const given = merged(query, members);
        startTake(call, given, sourcesIn(call, from, given), order);
      });
    },
  }),
];

/** Reads the body, then waits for the call's turn on its connection. Passes null to `start` if there is no body. */
function readMany(call: HttpCall, start: (payload: unknown) => void): void {
  readBody(call, MAX_BODY_BYTES, (body) => {
    const payload = body.length === 0 ? null : parseJson(body);
    call.front.inTurn(call, () => {
      try {
        // An earlier call on the connection may have waited for hours.
        call.renewUser();
        start(payload);
      } catch (error) {
        call.fail(error);
      }
    });
  });
}

/** Merges the options of the query and of the body. @throws QuaysideError `invalid-parameter` if one is in both */
function merged<O extends object>(query: Readonly<O>, body: Readonly<Partial<O>>): O {
  const values: Record<string, unknown> = { ...query };
  for (const [name, value] of Object.entries(body)) {
    if (value === null) continue;
    if (values[name] !== null) {
      throw invalidParameter(
        name,
        `${name} was given in the query, as ${quote(values[name])}, and in the body, as ${quote(value)}. Give it once.`,
      );
    }
    values[name] = value;
  }
  return values as O;
}

/** Checks that a waiting call may create its queues. @throws QuaysideError `too-many-queues` */
function checkQueueLimits(sources: readonly TakeSource[]): void {
  for (const [namespace, namespaceSources] of Map.groupBy(sources, ({ queue }) => queue.namespace)) {
    namespace.checkQueueLimit(namespaceSources.map(({ queue }) => queue.key.name));
  }
}

function leaseIn(
  { namespace, settings }: Queue,
  { reserve, lease }: Pick<Options, 'reserve' | 'lease'>,
): number | null {
  if (reserve === true) {
    requireCapability(namespace, 'reserve', 'reserve');
    return lease ?? settings.leaseMs;
  }
  if (lease === null) return null;
  throw invalidParameter('lease', `lease=${lease} needs reserve=1: a pop has no lease.`);
}

function startTake(
  call: HttpCall,
  given: Options,
  sources: readonly TakeSource[],
  order: JointRequest['order'],
): void {
  const min = given.min ?? 1;
  const count = given.count ?? min;
  if (min > count)
    throw invalidParameter('min', `min=${min} is more than count=${count}. Allowed: up to count.`);
  const { batchBytes } = call.front.parts.options;
  const timeoutMs = given.to ?? preferredWait(call.head);
  if (timeoutMs !== 0) checkQueueLimits(sources);
  const common = {
    count,
    maxBytes: Math.min(batchBytes, LIMITS.takeBytes),
    timeoutMs,
    tid: given.tid,
    owner: call.user.name,
    from: call,
  };
  const take = new Take(call, {
    isMultipart: prefersParts(call.head.accept),
    asJson: given.as === 'json',
    namesSource: call.route?.id === 'takeFromSeveral',
  });
  const [source, ...others] = sources;
  if (source === undefined || others.length > 0 || min > 1) {
    take.waitInSeveral({ ...common, sources, order, min });
    return;
  }
  const { queue, group, leaseMs } = source;
  take.waitIn(queue, { ...common, group, leaseMs });
}

function sourcesIn(
  call: HttpCall,
  from: Static<typeof TakeFromSeveral>['from'],
  given: Options,
): TakeSource[] {
  const seen = new Map<string, number>();
  return from.map(({ ns, queue: name, group, weight = 1 }, index) => {
    const path = `from[${index}]`;
    const namespace = atMember(`${path}.ns`, () => readableNamespace(call, ns));
    const queue = namespace.visit(name);
    const source = { queue, group: group?.trim() ?? null, leaseMs: leaseIn(queue, given), weight };
    const readAs = atMember(`${path}.group`, () => queue.groupOf(source.group));
    const key = JSON.stringify([ns, name, readAs]);
    const earlier = seen.get(key);
    if (earlier !== undefined) {
      throw invalidParameter(
        path,
        `${path} names the same queue as from[${earlier}], ${quote(name)}. Name each once.`,
      );
    }
    seen.set(key, index);
    return source;
  });
}

/** A namespace that the user may read. A hidden one looks like an unknown one. */
function readableNamespace({ user, front }: HttpCall, ns: string): Namespace {
  checkRight(user, 'read', ns);
  return front.parts.broker.namespace(ns);
}

/**
 * A call that waits for elements. It gets one response, complete or not at all, and returns elements that do not reach
 * the client.
 *
 * States:
 * - waiting, in one queue or several. If the client disconnects, the call leaves them and takes nothing. It also leaves
 *   if the client closes its half of the connection: a client that half-closes and one that is gone both send a FIN,
 *   and only the first write afterwards would tell them apart. It does not wait on a connection that is not being read,
 *   because the server would not notice its end.
 * - delivered: the response is written, but the kernel does not have all of it. If the connection closes now, all
 *   elements of the response are returned to their places.
 * - over: response sent, wait ended without an element, or client disconnected.
 */
class Take implements Sink, WaitingCall {
  readonly #call: HttpCall;
  /** Null: a single element, byte for byte. */
  readonly #format: ManyFormat | null;
  #queues: readonly Queue[] = [];
  /**
   * The consumer of a call that waits in one queue, until it is served. With a closure that leaves the queue instead, a
   * reserve and its commit took a seventh more processor time.
   */
  #consumer: Consumer | null = null;
  #joint: JointTake | null = null;
  /** Elements delivered to this call that the kernel does not have yet. */
  #unsent: readonly Portion[] = [];

  constructor(call: HttpCall, format: ManyFormat | null) {
    this.#call = call;
    this.#format = format;
  }

  /** Starts to wait. @throws QuaysideError as {@link isGone} and `Queue.get` */
  waitIn(queue: Queue, request: GetRequest): void {
    if (isGone(this.#call)) return;
    this.#queues = [queue];
    this.#consumer = queue.get(request, this);
    this.#watchClient();
  }

  /** Starts to wait in several queues, or for several elements at once. @throws as {@link waitIn} */
  waitInSeveral(request: JointRequest): void {
    if (isGone(this.#call)) return;
    this.#queues = request.sources.map(({ queue }) => queue);
    this.#joint = new JointTake(request, {
      deliver: (portions) => this.#respond(portions),
      end: (reason) => this.end(reason),
    });
    this.#watchClient();
  }

  deliver(first: Delivery, more: readonly Delivery[]): void {
    this.#consumer = null;
    const deliveries = more.length === 0 ? [first] : [first, ...more];
    this.#respond([{ queue: this.#queues[0] as Queue, deliveries }]);
  }

  end(reason: QuaysideError): void {
    if (reason.code !== 'pop-timeout') {
      this.#call.fail(reason);
      return;
    }
    const { extra } = reason.details;
    // The response names the tid. A consumer without one gets it only if it is listed, since few clients use it, so it
    // may be missing here; a joint take always has one. The path need not name a namespace, so take that of the queue.
    const tid = extra?.tid ?? this.#queues[0]?.namespace.makeTid();
    this.#call.fail(reason.with({ extra: { ...extra, tid } }));
  }

  renewUser(affected: ReadonlySet<User> | null): void {
    if (affected?.has(this.#call.user) === false) return;
    try {
      this.#call.renewUser();
      for (const { namespace } of this.#queues) checkRight(this.#call.user, 'read', namespace.name);
    } catch (error) {
      this.#reject(error);
    }
  }

  /** Ends the wait, unless the response has begun. */
  #reject(error: unknown): void {
    if (this.#call.response.headersSent || this.#call.isGone) return;
    this.#abandon();
    this.#call.fail(error);
  }

  #watchClient(): void {
    const { connection, response, session } = this.#call;
    connection.waitingCall = this;
    const forgetSession = session?.onEnd(() => this.#reject(this.#call.sessionLost()));
    response.on('close', () => {
      // The next call on the connection may wait already.
      if (connection.waitingCall === this) connection.waitingCall = null;
      forgetSession?.();
      this.#abandon();
    });
  }

  onInputEnd(): void {
    this.#abandonWait(() => this.#call.connection.inputEnded());
  }

  onPause(): void {
    this.#abandonWait(inputPaused);
  }

  #abandonWait(reason: () => QuaysideError): void {
    const { response, connection } = this.#call;
    // A client that half-closed after the delivery still reads, so only the close of the connection returns the
    // elements. A long response is built in several turns before its first byte is written; without the check of
    // `#unsent` it would still be written after its elements were returned.
    if (this.#unsent.length > 0 || response.headersSent || this.#call.isGone) return;
    this.#abandon();
    connection.respondInTurn(() => {
      if (!response.headersSent && !this.#call.isGone) this.#call.fail(reason());
    });
  }

  /** Stops waiting, and returns elements that the kernel does not have yet. Harmless at any time. */
  #abandon(): void {
    // Leaving is harmless if the call was served, or has left already.
    if (this.#consumer !== null) this.#queues[0]?.leave(this.#consumer);
    this.#joint?.leave();
    const unsent = this.#unsent;
    this.#unsent = [];
    for (const { queue, deliveries } of unsent) queue.returnAllUndelivered(deliveries);
  }

  #respond(portions: readonly Portion[]): void {
    this.#unsent = portions;
    const onWritten = (error?: Error | null): void => {
      if (!error) this.#unsent = [];
    };
    try {
      if (this.#format !== null) this.#writeMany(this.#format, onWritten);
      else this.#call.sendElement(portions[0]?.deliveries[0] as Delivery, onWritten);
    } catch (error) {
      this.#abandon();
      this.#call.fail(error);
    }
  }

  /** @throws QuaysideError `overloaded` */
  #writeMany(format: ManyFormat, onWritten: (error?: Error | null) => void): void {
    const { span, front } = this.#call;
    front.limits.holdUnread(this.#call, bodyBytes(this.#unsent.flatMap(({ deliveries }) => deliveries)));
    if (span !== null) {
      for (const { deliveries } of this.#unsent) {
        for (const delivery of deliveries) linkInsert(span, delivery);
      }
    }
    const { contentType, pieces } = writeMany(this.#unsent, format);
    const { namespace, key } = this.#queues[0] as Queue;
    const headers = (): string[] => {
      // The client may take minutes to read the text, in which the bodies are a second time.
      dropReservedBodies(this.#unsent);
      // The queues of a take from several may be in several engines, each of which has its own clock.
      return format.namesSource ? [] : ['x-ks-time', isoTime(engineNow(namespace, key))];
    };
    this.#call.sendPieces(pieces, headers, contentType, onWritten).catch((error: unknown) => {
      this.#abandon();
      this.#call.fail(error);
    });
  }
}

/**
 * Releases the bodies of elements that were reserved: these are still in their queue, while those that were popped need
 * their bodies to return. Within the arrays, since the code that has read them holds them until the response has ended.
 */
function dropReservedBodies(portions: readonly Portion[]): void {
  for (const portion of portions) {
    const deliveries = portion.deliveries as Delivery[];
    for (const [i, one] of deliveries.entries()) {
      if (one.lease !== null) deliveries[i] = { ...one, body: NO_BODY };
    }
  }
}

const NO_BODY = Buffer.alloc(0);

/**
 * Whether the connection is closed.
 * @throws QuaysideError `malformed-request` if the client closed its half of the connection, `overloaded` if the server
 * could not notice that because it does not read
 */
function isGone({ connection, isGone }: HttpCall): boolean {
  if (isGone) return true;
  if (connection.hasInputEnded) throw connection.inputEnded();
  if (connection.isPaused) throw inputPaused();
  return false;
}

function inputPaused(): QuaysideError {
  return overloaded(
    'The server has paused reading this connection, because too much was sent behind this request, so it could not notice a disconnect. Send less behind a get or reserve, or use another connection.',
  );
}

const QUALITY = /;\s*q=([0-9.]+)/i;

/** Whether `Accept` gives multipart a higher quality than lines; a type that it does not name has quality 0. */
function prefersParts(accept: string | null): boolean {
  return accept !== null && qualityOf(accept, MULTIPART) > qualityOf(accept, NDJSON);
}

function qualityOf(accept: string, type: string): number {
  for (const part of accept.split(',')) {
    const [name = ''] = part.split(';', 1);
    if (name.trim().toLowerCase() !== type) continue;
    const quality = Number(QUALITY.exec(part)?.[1] ?? 1);
    return Number.isNaN(quality) ? 0 : quality;
  }
  return 0;
}

const WAIT = /(?:^|,)\s*wait\s*=\s*"?([^",;\s]*)"?/i;
const SECONDS = /^[0-9]{1,9}$/;

/** `Prefer: wait=N` (RFC 7240) in ms; null if not given. Other preferences are ignored, as the RFC requires. */
function preferredWait({ prefer }: RequestHead): number | null {
  const wait = prefer === null ? null : WAIT.exec(prefer);
  if (wait === null) return null;
  const value = wait[1] ?? '';
  const ms = SECONDS.test(value) ? Number(value) * 1000 : Number.NaN;
  if (ms <= LIMITS.delayMs) return ms;
  throw invalidParameter(
    'prefer',
    `Prefer: wait=${quote(value)} is not allowed. Give whole seconds from 0 to ${LIMITS.delayMs / 1000}.`,
  );
}
