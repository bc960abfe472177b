import { checkRight } from '../../access/user.ts';
import { EVENT_KINDS, type EventFilter, type EventKind } from '../../events/pictures.ts';
import type { EventPublisher, EventSink, EventSubscription } from '../../events/publisher.ts';
import { invalidParameter, namespaceNotFound } from '../../model/errors.ts';
import { atMember } from '../../model/members.ts';
import { didYouMean } from '../../util/did-you-mean.ts';
import { quote } from '../../util/quote.ts';
import { Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import type { WaitingCall } from '../connection.ts';
import { GzipStream } from '../gzip-stream.ts';
import { acceptsGzip } from '../head.ts';
import { nameOf, type QueryParameter } from '../parameters.ts';
import { INERT_HEADERS, type Route, route } from '../route.ts';

const kinds: QueryParameter<readonly EventKind[] | null> = {
  description: `Which kinds, separated by commas, of ${EVENT_KINDS.join(', ')}; defaults to all.`,
  schema: Type.String(),
  fallback: null,
  read(name, value) {
    return value.split(',').map((part) => {
      const given = part.trim();
      const kind = EVENT_KINDS.find((one) => one === given);
      if (kind !== undefined) return kind;
      const hint = didYouMean(given, EVENT_KINDS) || ` Allowed: ${EVENT_KINDS.join(', ')}.`;
      throw invalidParameter(name, `${name} has ${quote(given)}, which is no kind of events.${hint}`);
    });
  },
};

/** Tells proxies not to buffer or recompress the response, which would delay events. */
const UNBUFFERED = { 'cache-control': 'no-store, no-transform', 'x-accel-buffering': 'no' };
const CONTENT_TYPE = 'text/event-stream; charset=utf-8';
const NOTHING = Buffer.alloc(0);

export const eventRoutes: readonly Route[] = [
  route({
    id: 'events',
    methods: ['GET'],
    path: '/events',
    summary: 'Follow the changes that the user may see, as server-sent events',
    access: 'user',
    query: {
      ns: nameOf('namespace', 'Only events about this namespace.'),
      queue: nameOf('queue', 'Only events about this queue; requires `ns`.'),
      kinds,
    },
    headers: {
      'last-event-id':
        'The id of the last event that the client received: later ones are sent if this node still has them.',
    },
    responses: [
      {
        status: 200,
        description: 'A full picture, then each change, until the client disconnects.',
        contentType: 'text/event-stream',
        headers: {
          'content-encoding': '`gzip`, if the client accepts it.',
          'x-accel-buffering': '`no`, for nginx.',
        },
      },
    ],
    problems: ['namespace-not-found', 'invalid-name', 'forbidden', 'too-many-subscribers', 'shutting-down'],
    responseHeaders: { ...INERT_HEADERS, ...UNBUFFERED },
    handle(call, { ns, queue, kinds }) {
      const { events, broker } = call.front.parts;
      if (queue !== null && ns === null) {
        throw invalidParameter('queue', `queue=${quote(queue)} needs ns, the namespace of the queue.`);
      }
      if (ns !== null) {
        atMember('ns', () => {
          broker.namespace(ns);
          if (!call.user.maySee(ns)) throw namespaceNotFound(ns);
          if (queue !== null) checkRight(call.user, 'read', ns);
        });
      }
      new EventStream(call).start(events, { kinds: new Set(kinds ?? EVENT_KINDS), ns, queue });
    },
  }),
];

/**
 * A response of server-sent events for one subscriber. It ends when the client disconnects or the subscription ends.
 */
class EventStream implements EventSink, WaitingCall {
  readonly #call: HttpCall;
  /** Null: the client does not accept it. */
  readonly #gzip: GzipStream | null;
  #subscription: EventSubscription | null = null;

  constructor(call: HttpCall) {
    this.#call = call;
    this.#gzip = acceptsGzip(call.request.rawHeaders) ? new GzipStream() : null;
  }

  /**
   * Subscribes. Ends the stream also when the client closes its half of the connection: proxies do only that when their
   * client has disconnected.
   * @throws QuaysideError `too-many-subscribers`, `shutting-down`, `malformed-request` if nothing more can be read
   * from the client
   */
  start(events: EventPublisher, filter: EventFilter): void {
    const { user, head, connection, response, session, isGone } = this.#call;
    if (isGone) return;
    if (connection.hasInputEnded) throw connection.inputEnded();
    this.#subscription = events.subscribe({
      user,
      filter,
      lastEventId: head.lastEventId,
      sink: this,
    });
    connection.waitingCall = this;
    const forgetSession = session?.onEnd(() => this.onInputEnd());
    response.once('close', () => {
      if (connection.waitingCall === this) connection.waitingCall = null;
      forgetSession?.();
      this.#subscription?.close();
    });
  }

  onInputEnd(): void {
    this.#subscription?.close();
    if (!this.#call.response.writableEnded) this.end(NOTHING);
  }

  write(bytes: Buffer, onWritten: () => void): void {
    this.#begin();
    this.#call.write(this.#gzip?.push(bytes) ?? bytes, onWritten);
  }

  end(bytes: Buffer): void {
    this.#begin();
    this.#call.response.end(this.#gzip?.end(bytes) ?? bytes);
  }

  #begin(): void {
    if (this.#call.response.headersSent) return;
    this.#call.startStream(CONTENT_TYPE, this.#gzip === null ? [] : ['content-encoding', 'gzip']);
  }
}
