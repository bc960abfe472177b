import { checkBodies } from '../../access/user.ts';
import type { Queue } from '../../broker/queue.ts';
import { DELIVERY_STATES } from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import { LIMITS } from '../../model/limits.ts';
import { BrowsePage, type DeadLetterQueue, DeadLetters } from '../../model/records.ts';
import { type DeadLetterSummary, summarizeDeadLetters } from '../../operations/dead-letters.ts';
import type { SearchPage } from '../../operations/search.ts';
import { quote } from '../../util/quote.ts';
import { jsonPieces } from '../listing.ts';
import { checkOpaque, group, limitedString, nameOf, oneOf, opaque, wholeNumber } from '../parameters.ts';
import { json, type Route, route } from '../route.ts';
import {
  browsedElement,
  ELEMENT_HEADER_NOTES,
  isoTime,
  PREVIEW_BYTES,
  type ShownBody,
} from '../written-elements.ts';

/** Elements of a page: maximum and default. */
const MAX_PAGE = 1_000;
const DEFAULT_PAGE = 100;
const MAX_CURSOR_LENGTH = 128;
/** Maximum number of queues in one summary; options of queues may name any number of dead-letter queues. */
const MAX_DEAD_LETTER_QUEUES = 1_000;

const STATES = [...DELIVERY_STATES, 'all'] as const;
const BODIES = ['none', 'preview', 'full'] as const satisfies readonly ShownBody[];

export const browseRoutes: readonly Route[] = [
  route({
    id: 'browse',
    path: '/q/:namespace/:queue/elements',
    summary: 'Browse elements in delivery order, without taking them',
    access: 'browse',
    query: {
      state: oneOf('Only those in this state; defaults to all of them.', STATES),
      group: group("On a stream: the group whose deliveries are read; defaults to the namespace's first."),
      id: opaque('Only the element of this id.'),
      after: opaque('Continues behind the page whose `next` this is.', MAX_CURSOR_LENGTH),
      limit: wholeNumber(
        'Maximum number of elements.',
        { from: 1, to: MAX_PAGE, unit: 'a count' },
        DEFAULT_PAGE,
      ),
      body: oneOf<ShownBody>(
        `How much of each body is returned; defaults to a preview, its first ${PREVIEW_BYTES} bytes.`,
        BODIES,
      ),
      where: limitedString(
        'Only those that this selector accepts, such as `env.msg.tries > 3`.',
        LIMITS.selectorBytes,
      ),
    },
    responses: [
      json('A page. It may have few elements, or none, and not be the last: see `next`.', BrowsePage),
    ],
    problems: ['forbidden', 'not-supported', 'shutting-down'],
    handle: (call, { state, group, id, after, limit, body, where }) =>
      call.front.limits.listInTurn(call, async () => {
        const { user, namespace, queue } = call;
        const hidesBodies = !user.maySeeBodies(namespace.name);
        const bodyMode = hidesBodies ? 'none' : (body ?? 'preview');
        const states = state === null || state === 'all' ? DELIVERY_STATES : [state];
        const options = { payer: user.name, path: 'where', bodies: bodyMode !== 'none', hidesBodies };
        const filter = { states, group, selector: where, ...(id !== null && { ids: [id] }) };
        const page = await call.front.parts.searches
          .page(queue, filter, options, after, limit)
          .catch((error: unknown) => {
            throw asParameterError(error);
          });
        await call.sendPieces(pageJson(page, bodyMode));
      }),
  }),
  route({
    id: 'browseElement',
    path: '/q/:namespace/:queue/elements/:id',
    summary: 'Read one element without taking it: its body, byte for byte',
    access: 'browse',
    query: {
      group: group("On a stream: the group whose delivery is read; defaults to the namespace's first."),
    },
    responses: [
      {
        status: 200,
        description: 'The element, as a get would return it.',
        contentType: '*/*',
        headers: {
          'x-ks-id': 'Its id.',
          'x-ks-tries': 'Failed tries so far.',
          'x-ks-mature': 'Its maturity, ISO 8601.',
          ...ELEMENT_HEADER_NOTES,
          'x-ks-state': '`ready`, `scheduled` or `reserved`.',
          'x-ks-inserted': 'When it was inserted, ISO 8601.',
          'x-ks-lease-until': 'If it is reserved: when its lease ends, ISO 8601.',
        },
      },
    ],
    problems: ['element-not-found', 'forbidden', 'not-supported', 'invalid-parameter'],
    async handle(call, { group }) {
      const { user, namespace, queue } = call;
      const id = checkOpaque('id', call.param('id'));
      checkBodies(user, namespace.name);
      const options = { group, states: DELIVERY_STATES, ids: [id], after: null, limit: 1, bodies: true };
      const [found] = (await queue.scan({ ...options, user: user.name })).deliveries;
      if (found === undefined) {
        throw new QuaysideError(
          'element-not-found',
          `Queue ${quote(queue.key.name)} has no element ${quote(id)}.`,
        );
      }
      const { state, insertedAt, lease } = found;
      const headers = ['x-ks-state', state, 'x-ks-inserted', isoTime(insertedAt)];
      if (lease !== null) headers.push('x-ks-lease-until', isoTime(lease.until));
      // The lease belongs to its holder. The scan returns no token.
      call.sendElement({ ...found, lease: null }, () => {}, headers);
    },
  }),
  route({
    id: 'deadLetters',
    path: '/dead-letters',
    summary: 'Summarize the dead-letter queues of the namespaces in which the user may browse',
    access: 'user',
    query: { ns: nameOf('namespace', 'Only those of this namespace.') },
    responses: [
      json('Their counts, and the reasons and sources of the elements that were examined.', DeadLetters),
    ],
    problems: ['namespace-not-found', 'forbidden', 'invalid-name', 'storage-unavailable', 'outcome-unknown'],
    handle: (call, { ns }) =>
      call.front.limits.listInTurn(call, async () => {
        const queues = call
          .namespacesWith('browse', ns)
          .flatMap((namespace) =>
            namespace.options.deadLetterQueues.map((name): Queue => namespace.visit(name)),
          );
        const summarized = queues.slice(0, MAX_DEAD_LETTER_QUEUES);
        const { summaries, unavailable } = await summarizeDeadLetters(summarized, call.front.parts.clock);
        const complete = summaries.length === queues.length;
        call.sendJson({ queues: summaries.map(summaryRecord), complete, unavailable } satisfies DeadLetters);
      }),
  }),
];

/** Reports an invalid selector as `invalid-parameter`: here it is a query parameter, not a member of a body. */
function asParameterError(error: unknown): unknown {
  if (!(error instanceof QuaysideError) || error.code !== 'invalid-body') return error;
  return error.with({ code: 'invalid-parameter' });
}

function summaryRecord(summary: DeadLetterSummary): DeadLetterQueue {
  const { ns, queue, count, oldestAt, reasons, sources, looked, isComplete } = summary;
  return {
    ns,
    queue,
    count,
    oldest: oldestAt === null ? null : isoTime(oldestAt),
    reasons: reasons.map(({ value, count }) => ({ reason: value, count })),
    sources: sources.map(({ value, count }) => ({ queue: value, count })),
    looked,
    complete: isComplete,
  };
}

function pageJson({ matches, next, ...rest }: SearchPage, bodyMode: ShownBody): Generator<string> {
  const end = `],${JSON.stringify({ next, ...rest }).slice(1)}`;
  return jsonPieces('{"elements":[', matches, (delivery) => browsedElement(delivery, bodyMode), end);
}
