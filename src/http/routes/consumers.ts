import { checkName } from '../../model/names.ts';
import { type Route, route } from '../route.ts';
import { PendingConsumers } from '../schemas.ts';
import { answerJson } from './shared.ts';

export const consumerRoutes: readonly Route[] = [
  route({
    id: 'listConsumers',
    methods: ['GET', 'HEAD'],
    path: '/q/:namespace/:queue/consumers',
    summary: 'List the get and reserve calls that wait, on any node, in the order in which they came',
    access: 'manage',
    makesQueue: false,
    answers: [
      {
        status: 200,
        description: 'Pending consumer records, of every group and protocol.',
        contentType: 'application/json',
        schema: PendingConsumers,
      },
    ],
    async handle(call) {
      answerJson(call, await call.queue.allConsumers());
    },
  }),
  route({
    id: 'cancel',
    methods: ['DELETE'],
    path: '/q/:namespace/:queue/consumer/:tid',
    summary:
      'Cancel the waiting calls with this tid: all of them with the right `manage`, else those of the same user',
    access: 'member',
    makesQueue: false,
    isAudited: true,
    answers: [
      {
        status: 200,
        description: 'Nobody waits with this tid any more; the calls answer 410.',
        contentType: null,
      },
    ],
    problems: ['invalid-name'],
    handle(call) {
      const { user, namespace, queue } = call;
      const tid = checkName('tid', call.param('tid'));
      queue.cancel(tid, user.may('manage', namespace.name) ? null : user.name);
      call.empty(200);
    },
  }),
];
