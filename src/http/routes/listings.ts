import type { Namespace } from '../../broker/namespace.ts';
import { invalidParameter, namespaceNotFound } from '../../model/errors.ts';
import { quote } from '../../util/quote.ts';
import type { HttpCall } from '../call.ts';
import {
  arrayPieces,
  type Folder,
  itemsAfter,
  type ListedQueue,
  listFolders,
  listingForm,
  NEXT_LINK,
  nextPage,
  objectPieces,
  type Page,
  type PageQuery,
  pageOf,
  paging,
  readRecords,
  treePieces,
} from '../listing.ts';
import { flag } from '../parameters.ts';
import { type Route, route } from '../route.ts';
import { NamespaceNames, QueueArray, QueuesByName, QueueTree } from '../schemas.ts';

const forms = {
  array: flag('`{"data": […]}`, each a queue information record with `id`, as the web console reads it.'),
  tree: flag('A folder for each namespace, with its queues as children.'),
  reload: flag('Reads names and pause flags from the engine again before listing.'),
  ...paging('Lists what follows this: the last queue name of the page before, or `queue@namespace` on `/q`.'),
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
    responses: [
      {
        status: 200,
        description: 'The names.',
        contentType: 'application/json',
        schema: NamespaceNames,
        headers: [NEXT_LINK],
      },
      ...formSchemas,
    ],
    problems: ['storage-unavailable', 'outcome-unknown'],
    handle: (call, query) =>
      call.front.listInTurn(call, async () => {
        const form = listingForm(query);
        const visible = call.front.parts.broker.namespaces().filter(({ name }) => call.user.maySee(name));
        if (form === 'plain') {
          if (query.reload) await Promise.all(visible.map((namespace) => namespace.reload()));
          const names = visible.map(({ name }) => name);
          const at = query.after === null ? -1 : names.indexOf(query.after);
          if (query.after !== null && at === -1) throw namespaceNotFound(query.after);
          const { items, headers } = pageOf(names.slice(at + 1), query, (name) => name);
          call.value(items, headers);
        } else {
          const readable = visible.filter(({ name }) => call.user.may('read', name));
          const after = positionOf(query.after, readable);
          await respondWithFolders(call, form, await queuePage(call, readable, query, after));
        }
      }),
  }),
  route({
    id: 'listQueues',
    methods: ['GET', 'HEAD'],
    path: '/q/:namespace',
    summary: 'List the queues of a namespace',
    access: 'read',
    query: forms,
    responses: [
      {
        status: 200,
        description: 'Queue information records by queue name.',
        contentType: 'application/json',
        schema: QueuesByName,
        headers: [NEXT_LINK],
      },
      ...formSchemas,
    ],
    handle: (call, query) =>
      call.front.listInTurn(call, async () => {
        const form = listingForm(query);
        const { namespace } = call;
        const after = query.after === null ? null : { namespace: namespace.name, queue: query.after };
        const page = await queuePage(call, [namespace], query, after);
        if (form !== 'plain') await respondWithFolders(call, form, page);
        else await call.jsonPieces(objectPieces(page.items[0]?.queues ?? []), page.headers);
      }),
  }),
];

/** A queue after which a page begins. */
interface Position {
  readonly namespace: string;
  readonly queue: string;
}

interface QueueQuery extends PageQuery {
  readonly reload: boolean;
}

async function respondWithFolders(call: HttpCall, form: 'array' | 'tree', page: Page<Folder>): Promise<void> {
  await call.jsonPieces(form === 'array' ? arrayPieces(page.items) : treePieces(page.items), page.headers);
}

/** The queues of namespaces: all of them if the request has neither `limit` nor `after`, else those of one page. */
async function queuePage(
  call: HttpCall,
  namespaces: readonly Namespace[],
  query: QueueQuery,
  after: Position | null,
): Promise<Page<Folder>> {
  const { reload, limit } = query;
  if (limit === null && after === null) {
    const list = async (namespace: Namespace): Promise<readonly ListedQueue[]> => {
      if (reload) await namespace.reload();
      return call.front.queueLists.of(namespace);
    };
    return { items: await listFolders(namespaces, list), headers: [] };
  }
  const from = after === null ? 0 : namespaces.findIndex(({ name }) => name === after.namespace);
  const named = await listFolders(namespaces.slice(from), async (namespace) => {
    if (reload) await namespace.reload();
    const names = (await namespace.queueNames()).toSorted();
    return namespace.name === after?.namespace ? itemsAfter(names, after.queue) : names;
  });
  const items: Folder[] = [];
  let left = limit ?? Number.POSITIVE_INFINITY;
  let last: Position | null = null;
  let isCut = false;
  for (const { name, queues } of named) {
    if (left === 0) {
      isCut ||= queues === null || queues.length > 0;
      continue;
    }
    const names = queues?.slice(0, left);
    const namespace = namespaces.find((one) => one.name === name);
    if (names === undefined || namespace === undefined) {
      items.push({ name, queues: null });
      continue;
    }
    items.push({ name, queues: await readRecords(namespace, names) });
    left -= names.length;
    isCut = names.length < (queues?.length ?? 0);
    last = names.length > 0 ? { namespace: name, queue: names.at(-1) ?? '' } : last;
  }
  return { items, headers: isCut && last !== null ? nextPage(query, cursorOf(call, last)) : [] };
}

/** On `/q` a position is written as the ids of the listing are. */
function cursorOf({ match }: HttpCall, { namespace, queue }: Position): string {
  return match.params.namespace === undefined ? `${queue}@${namespace}` : queue;
}

/** Reads `queue@namespace`. Both may have an `@`, so it is the longest of the namespaces that fits. */
function positionOf(after: string | null, namespaces: readonly Namespace[]): Position | null {
  if (after === null) return null;
  const [namespace] = namespaces
    .map(({ name }) => name)
    .filter((name) => after.endsWith(`@${name}`))
    .sort((a, b) => b.length - a.length);
  if (namespace !== undefined) return { namespace, queue: after.slice(0, -namespace.length - 1) };
  throw invalidParameter(
    'after',
    `after cannot be ${quote(after)}; give queue@namespace, the id of the last queue of the page before.`,
  );
}
