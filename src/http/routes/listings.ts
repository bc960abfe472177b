import type { Namespace } from '../../broker/namespace.ts';
import type { Call } from '../call.ts';
import { asArray, asFolder, asObject, listQueues } from '../listing.ts';
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
      if (query.reload) await Promise.all(visible.map((namespace) => namespace.reload()));
      if (form === 'plain') {
        answerJson(
          call,
          visible.map(({ name }) => name),
        );
      } else {
        const readable = visible.filter(({ name }) => call.user.may('read', name));
        await answerListing(call, form, readable);
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
      if (query.reload) await call.namespace.reload();
      if (form === 'plain') answerJson(call, asObject(await listQueues(call.namespace)));
      else await answerListing(call, form, [call.namespace]);
    },
  }),
];

async function answerListing(
  call: Call,
  form: 'array' | 'tree',
  namespaces: readonly Namespace[],
): Promise<void> {
  const folders = await Promise.all(
    namespaces.map(async (namespace) => ({ name: namespace.name, listed: await listQueues(namespace) })),
  );
  if (form === 'array') answerJson(call, asArray(folders.flatMap(({ listed }) => listed)));
  else
    answerJson(
      call,
      folders.map(({ name, listed }) => asFolder(name, listed)),
    );
}
