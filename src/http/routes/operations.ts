import { checkRight, type User } from '../../access/user.ts';
import { DELIVERY_STATES, WAITING_STATES } from '../../model/element.ts';
import { atMember } from '../../model/members.ts';
import {
  OPERATION_SCOPES,
  OPERATION_STATES,
  OperationDeclaration,
  OperationRecord,
  type OperationState,
} from '../../model/records.ts';
import { deleteQueue, purgeQueue } from '../../operations/removal.ts';
import { type OperationRequest, parseRequest, rightsFor } from '../../operations/request.ts';
import { Count, Type } from '../../util/schema.ts';
import { checkOpaque, flag, nameOf, oneOf } from '../parameters.ts';
import { readJson } from '../request.ts';
import { empty, json, type Route, route } from '../route.ts';

/** Maximum body size: a request may name a thousand ids. */
const MAX_JSON_BYTES = 131_072;

const filter = {
  ns: nameOf('namespace', 'Only those whose source is in this namespace.'),
  queue: nameOf('queue', 'Only those whose source has this name.'),
  state: oneOf<OperationState>('Only those in this state.', OPERATION_STATES),
};

const idProblems = ['operation-not-found', 'forbidden', 'storage-unavailable', 'outcome-unknown'] as const;

export const operationRoutes: readonly Route[] = [
  route({
    id: 'startOperation',
    methods: ['POST'],
    path: '/operations',
    summary:
      'Start a bulk operation on a queue, or move a namespace to another engine; it runs in the background, and continues after restarts',
    access: 'user',
    isAudited: true,
    body: 'json',
    request: OperationDeclaration,
    responses: [
      json('It has started.', OperationRecord, {
        status: 202,
        headers: { location: 'Path of its progress.' },
      }),
    ],
    problems: [
      'invalid-name',
      'invalid-header',
      'forbidden',
      'namespace-not-found',
      'not-supported',
      'definition-conflict',
      'too-many-queues',
      'overloaded',
      'shutting-down',
      'storage-full',
      'storage-unavailable',
      'outcome-unknown',
    ],
    handle: (call) =>
      readJson(call, MAX_JSON_BYTES, async (payload) => {
        const request = parseRequest(payload);
        checkOperationRights(call.user, request);
        const { operations } = call.front.parts;
        const id = await operations.create(request, call.user);
        const record = await operations.get(id, call.user);
        call.auditFields = { id, operation: record.action, source: record.source };
        call.sendText(202, JSON.stringify(record), ['location', `/operations/${id}`]);
      }),
  }),
  route({
    id: 'listOperations',
    path: '/operations',
    summary: 'List bulk operations, the latest first: running ones, and those that ended within a week',
    access: 'user',
    query: filter,
    responses: [
      json(
        'Those whose source is in a namespace for which the user has the right `manage`.',
        Type.Array(OperationRecord),
      ),
    ],
    problems: ['invalid-name'],
    async handle(call, query) {
      call.sendJson(await call.front.parts.operations.list(query, call.user));
    },
  }),
  route({
    id: 'operationStatus',
    path: '/operations/:id',
    summary: 'The progress of a bulk operation, or its outcome',
    access: 'user',
    responses: [json('The operation.', OperationRecord)],
    problems: [...idProblems, 'invalid-parameter'],
    async handle(call) {
      call.sendJson(await call.front.parts.operations.get(checkOpaque('id', call.param('id')), call.user));
    },
  }),
  route({
    id: 'cancelOperation',
    methods: ['DELETE'],
    path: '/operations/:id',
    summary: 'Cancel a bulk operation; changes already made stay',
    access: 'user',
    isAudited: true,
    responses: [
      empty(204, 'It has ended; idempotent.'),
      empty(202, 'It will end later: its node is slow, or has failed.'),
    ],
    problems: [...idProblems, 'invalid-parameter', 'definition-conflict'],
    async handle(call) {
      const id = checkOpaque('id', call.param('id'));
      const hasEnded = await call.front.parts.operations.cancel(id, call.user);
      call.sendEmpty(hasEnded ? 204 : 202);
    },
  }),
  route({
    id: 'purge',
    methods: ['DELETE'],
    path: '/q/:namespace/:queue/elements',
    summary: 'Remove all elements of a queue, or all of one state',
    access: 'manage',
    isAudited: true,
    query: {
      state: oneOf(
        'Which elements: `all` includes reserved ones. Defaults to waiting ones, ready or scheduled.',
        OPERATION_SCOPES,
      ),
    },
    responses: [
      json(
        'They are removed. On a stream an element counts once for each group.',
        Type.Object({ removed: Count }),
      ),
    ],
    async handle(call, { state }) {
      const states = state === null ? WAITING_STATES : state === 'all' ? DELIVERY_STATES : [state];
      const removed = await purgeQueue(call.queue, states);
      call.auditFields = { states, removed };
      call.sendJson({ removed });
    },
  }),
  route({
    id: 'deleteQueue',
    methods: ['DELETE'],
    path: '/q/:namespace/:queue',
    summary: 'Delete a queue that is empty and unused; with `force`, whatever it holds',
    access: 'manage',
    isAudited: true,
    query: { force: flag('Removes its elements, reserved ones too, and ends the calls that wait for it.') },
    responses: [empty(204, 'It does not exist any more, or never did.')],
    problems: ['queue-in-use'],
    async handle(call, { force }) {
      const { exchanges } = call.front.parts;
      const removed = await deleteQueue(call.queue, { force, exchanges });
      await call.namespace.othersHave(call.queue.key);
      call.auditFields = { force, removed };
      call.sendEmpty(204);
    },
  }),
];

function checkOperationRights(user: User, request: OperationRequest): void {
  for (const [right, namespace] of rightsFor(request)) {
    const path = namespace === request.source.ns ? 'source.ns' : 'to.ns';
    atMember(path, () => checkRight(user, right, namespace));
  }
}
