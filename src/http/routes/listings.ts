import type { Namespace } from '../../broker/namespace.ts';
import type { Call } from '../call.ts';
import { asArray, asFolder, asObject, type Listed, listFolders } from '../listing.ts';
import { flag } from '../parameters.ts';
import { type Route, route } from '../route.ts';
import { NamespaceNames, QueueArray, QueuesByName, QueueTree } from '../schemas.ts';
import { answerJson, listingForm } from './shared.ts';

const forms = {
  array: flag('`{"data": […]}`, each a queue information record with `id`, as the web console reads it.'),
  tree: flag('A folder for each namespace, with its queues as children.'),
  reload: flag('Reads names and pause flags from the engine again before listing.'),
};

const formSchemas = [
  { status: 200, description: 'With `array`.', contentType: 'application/json', schema: QueueArray },
  { status: 200, description: 'With `tree`.', contentType: 'application/json', schema: QueueTree },
] as const;

export const listingRoutes: readonly Route[] = [
  route({
    id: 'listNamespaces',
    methods: ['GET', 'HEAD'],
    path: '/q',
    summary: 'List the namespaces that the user may see; their queues, where a form shows them, need `read`',
    access: 'user',
    query: forms,
    answers: [
      {
        status: 200,
        description: 'The names.',
        contentType: 'application/json',
        schema: NamespaceNames,
      },
      ...formSchemas,
    ],
    problems: ['storage-unavailable', 'outcome-unknown'],
    async handle(call, query) {
      const form = listingForm(query);
      const visible = call.front.parts.broker.namespaces().filter(({ name }) => call.user.maySee(name));
      if (form === 'plain') {
        if (query.reload) await Promise.all(visible.map((namespace) => namespace.reload()));
        answerJson(
          call,
          visible.map(({ name }) => name),
        );
      } else {
        const readable = visible.filter(({ name }) => call.user.may('read', name));
        await answerListing(call, form, readable, query.reload);
      }
    },
  }),
  route({
    id: 'listQueues',
    methods: ['GET', 'HEAD'],
    path: '/q/:namespace',
    summary: 'List the queues of a namespace',
    access: 'read',
    query: forms,
    answers: [
      {
        status: 200,
        description: 'Queue information records by queue name.',
        contentType: 'application/json',
        schema: QueuesByName,
      },
      ...formSchemas,
    ],
    async handle(call, query) {
      const form = listingForm(query);
      if (form === 'plain') {
        answerJson(call, asObject(await listed(call, call.namespace, query.reload)));
      } else {
        await answerListing(call, form, [call.namespace], query.reload);
      }
    },
  }),
];

async function answerListing(
  call: Call,
  form: 'array' | 'tree',
  namespaces: readonly Namespace[],
  reload: boolean,
): Promise<void> {
  const folders = await listFolders(namespaces, (namespace) => listed(call, namespace, reload));
  answerJson(call, form === 'array' ? asArray(folders) : folders.map(asFolder));
}

async function listed(call: Call, namespace: Namespace, reload: boolean): Promise<readonly Listed[]> {
  if (reload) await namespace.reload();
  return call.front.queueLists.of(namespace);
}
