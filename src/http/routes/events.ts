import { refusal } from '../../access/user.ts';
import { EVENT_KINDS, type EventKind } from '../../events/pictures.ts';
import { invalidParameter, namespaceNotFound } from '../../model/errors.ts';
import { didYouMean } from '../../util/did-you-mean.ts';
import { quote } from '../../util/quote.ts';
import { Type } from '../../util/schema.ts';
import { EventStream } from '../event-stream.ts';
import { nameOf, type QueryParameter } from '../parameters.ts';
import { INERT, type Route, route } from '../route.ts';

const kinds: QueryParameter<readonly EventKind[] | null> = {
  description: `Which kinds, separated by commas, of ${EVENT_KINDS.join(', ')}; not given: all.`,
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

/** A proxy that gathers a response, or compresses it, would hold events back. */
const UNBUFFERED = INERT.map((value) => (value === 'no-store' ? 'no-store, no-transform' : value));

export const eventRoutes: readonly Route[] = [
  route({
    id: 'events',
    methods: ['GET'],
    path: '/events',
    summary: 'Follow what changes, as server-sent events, as far as the user may see it',
    access: 'user',
    query: {
      ns: nameOf('ns', 'Only what is about this namespace.'),
      queue: nameOf('queue', 'Only what is about this queue; needs `ns`.'),
      kinds,
    },
    headers: [
      {
        name: 'last-event-id',
        description:
          'The id of the last event that the client has: what follows it is sent, if that is known here.',
      },
    ],
    responses: [
      {
        status: 200,
        description: 'A full picture, and then what changes, until the client disconnects.',
        contentType: 'text/event-stream',
        headers: [{ name: 'x-accel-buffering', description: '`no`, for nginx.' }],
      },
    ],
    problems: ['namespace-not-found', 'invalid-name', 'forbidden', 'too-many-subscribers', 'shutting-down'],
    responseHeaders: [...UNBUFFERED, 'x-accel-buffering', 'no'],
    handle(call, { ns, queue, kinds }) {
      const { events, broker } = call.front.parts;
      if (queue !== null && ns === null) {
        throw invalidParameter('queue', `queue=${quote(queue)} needs ns, the namespace of the queue.`);
      }
      if (ns !== null) {
        broker.namespace(ns);
        if (!call.user.maySee(ns)) throw namespaceNotFound(ns);
        const reason = queue === null ? null : refusal(call.user, 'read', ns);
        if (reason !== null) throw reason;
      }
      new EventStream(call).begin(events, { kinds: new Set(kinds ?? EVENT_KINDS), ns, queue });
    },
  }),
];
