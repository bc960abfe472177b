import { parseOptions } from '../../broker/queue-options.ts';
import { invalidParameter } from '../../model/errors.ts';
import { checkName } from '../../model/names.ts';
import {
  OptionsRecord,
  PendingConsumer,
  QueueHistory,
  QueueRecord,
  ShownOptions,
} from '../../model/records.ts';
import { quote } from '../../util/quote.ts';
import { Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import { entityTag, readVersions } from '../head.ts';
import { group } from '../parameters.ts';
import { readJson } from '../request.ts';
import { empty, json, type Route, route } from '../route.ts';

const Paused = Type.Boolean();

/** Maximum body size of a `PUT`: two names and a few numbers. */
const MAX_BYTES = 16 * 1024;

const OPTIONS_PATH = '/q/:namespace/:queue/options';

const optionsResponse = json('The stored and the effective options, and the source of each.', OptionsRecord, {
  headers: { etag: 'The `version` of the record, in quotes.' },
});

const IF_MATCH = {
  'if-match': 'The options are changed only if the stored ones have one of these versions.',
};

function optionsOf({ namespace, queue }: HttpCall): OptionsRecord {
  return namespace.options.record(queue.key.name);
}

function sendOptions(call: HttpCall, record: OptionsRecord): void {
  call.sendJson(record, ['etag', entityTag(record.version)]);
}

/** Status, pause, waiting consumers and stored options of a queue (docs/guides/policies.md). */
export const queueRoutes: readonly Route[] = [
  route({
    id: 'queueStatus',
    path: '/q/:namespace/:queue/status',
    summary: 'Read the queue information record',
    access: 'read',
    query: { group: group('On a stream: count only the deliveries of this group.') },
    responses: [
      json(
        'The record. It has zeros if the queue does not exist; reading it does not create the queue.',
        QueueRecord,
      ),
    ],
    async handle(call, query) {
      const { namespace, queue } = call;
      if (query.group !== null && !namespace.isStream) {
        throw invalidParameter(
          'group',
          `Group ${quote(query.group)} does not exist: namespace ${namespace.name} has plain queues. Leave group out.`,
        );
      }
      call.sendJson(await queue.status(query.group));
    },
  }),
  route({
    id: 'queueHistory',
    path: '/q/:namespace/:queue/history',
    summary: 'Read the last hour of a queue, minute by minute, as this node saw it',
    access: 'read',
    responses: [
      json('Columns of 60 values, the oldest first; null where this node has no value.', QueueHistory),
    ],
    handle(call) {
      call.sendJson(call.queue.history());
    },
  }),
  route({
    id: 'isPaused',
    path: '/q/:namespace/:queue/paused',
    summary: 'Read the pause flag',
    access: 'read',
    responses: [json('`true` or `false`.', Paused)],
    handle(call) {
      call.sendJson(call.queue.paused);
    },
  }),
  ...(
    [
      ['pause', 'Pause the queue on every node: its consumers wait, inserts continue', 'Paused'],
      ['resume', 'Resume the queue: its consumers continue', 'Running'],
    ] as const
  ).map(([id, summary, state]) =>
    route({
      id,
      methods: ['PATCH', 'POST'],
      path: `/q/:namespace/:queue/${id}`,
      summary,
      access: 'manage',
      createsQueue: true,
      isAudited: true,
      responses: [empty(201, `${state}; idempotent.`)],
      async handle(call) {
        await call.queue[id]();
        await call.namespace.othersHave(call.queue.key);
        call.sendEmpty(201);
      },
    }),
  ),
  route({
    id: 'queueOptions',
    path: OPTIONS_PATH,
    summary: 'Read the options of the queue, and the source of each',
    access: 'read',
    responses: [optionsResponse],
    handle: (call) => sendOptions(call, optionsOf(call)),
  }),
  route({
    id: 'setQueueOptions',
    methods: ['PUT', 'POST'],
    path: OPTIONS_PATH,
    summary: 'Replace the stored options of the queue, on every node',
    access: 'manage',
    createsQueue: true,
    isAudited: true,
    body: 'json',
    request: ShownOptions,
    headers: IF_MATCH,
    responses: [optionsResponse],
    problems: ['invalid-name', 'not-supported', 'precondition-failed'],
    handle: (call) =>
      readJson(call, MAX_BYTES, async (payload) => {
        await call.queue.storeOptions(parseOptions(payload), readVersions(call.head));
        // What others store from now on is not what this request stored: its version must not replace theirs.
        const record = optionsOf(call);
        await call.namespace.othersHave(call.queue.key);
        sendOptions(call, record);
      }),
  }),
  route({
    id: 'removeQueueOptions',
    methods: ['DELETE'],
    path: OPTIONS_PATH,
    summary: 'Delete the stored options of the queue; those of the configuration apply again',
    access: 'manage',
    isAudited: true,
    headers: IF_MATCH,
    responses: [empty(204, 'Deleted; idempotent.')],
    problems: ['precondition-failed'],
    async handle(call) {
      await call.queue.storeOptions(null, readVersions(call.head));
      await call.namespace.othersHave(call.queue.key);
      call.sendEmpty(204);
    },
  }),
  route({
    id: 'listConsumers',
    path: '/q/:namespace/:queue/consumers',
    summary: 'List the blocked get and reserve calls of all nodes, in order of arrival',
    access: 'manage',
    responses: [json('Pending consumer records, of every group and protocol.', Type.Array(PendingConsumer))],
    async handle(call) {
      call.sendJson(await call.queue.allConsumers());
    },
  }),
  route({
    id: 'cancel',
    methods: ['DELETE'],
    path: '/q/:namespace/:queue/consumer/:tid',
    summary:
      'Cancel the blocked calls with this tid: all of them if the user has the right `manage`, else only those of the user',
    access: 'member',
    responses: [
      empty(200, 'No call is blocked under this tid any more; the cancelled ones are answered with 410.'),
    ],
    problems: ['invalid-name'],
    async handle(call) {
      const { user, namespace, queue } = call;
      const tid = checkName('tid', call.param('tid'));
      // Workers cancel their own takes when they stop. Only the cancel of another user's call is for the audit log.
      const mayEndOthers = user.may('manage', namespace.name) && (await queue.mayBlockOthers(tid, user.name));
      queue.cancel(tid, mayEndOthers ? null : user.name);
      if (mayEndOthers) call.front.audit(call);
      call.sendEmpty(200);
    },
  }),
];
