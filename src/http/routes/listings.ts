import type { Namespace } from '../../broker/namespace.ts';
import { wrongMember } from '../../model/members.ts';
import { QueueRecord } from '../../model/records.ts';
import { mapConcurrently } from '../../util/map-concurrently.ts';
import { Count, Moment, named, namedObject, orNull, Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import {
  type Folder,
  itemsAfter,
  jsonPieces,
  listingForm,
  NEXT_LINK,
  type Page,
  type PageQuery,
  pageOf,
  paging,
  READ_AT_ONCE,
  readEach,
  treePieces,
} from '../listing.ts';
import { flag } from '../parameters.ts';
import { json, type Route, route } from '../route.ts';

const NamespaceNames = Type.Array(Type.String());

const QueuesByName = named('QueuesByName', Type.Record(QueueRecord));

const QueueArray = namedObject('QueueArray', {
  data: Type.Array(Type.Intersect([QueueRecord, Type.Object({ id: Type.String() })])),
  unavailable: Type.Optional(
    Type.Array(Type.String(), {
      description: 'Namespaces whose engine is unavailable, so that their queues are missing here.',
    }),
  ),
});

const QueueTree = Type.Array(
  namedObject('QueueFolder', {
    title: Type.String(),
    key: Type.String(),
    folder: Type.Literal(true),
    expanded: Type.Literal(true),
    unavailable: Type.Optional(
      Type.Literal(true, { description: 'Its engine is unavailable, so that its queues are missing here.' }),
    ),
    children: Type.Array(
      Type.Object({
        title: Type.String(),
        key: Type.String(),
        put: Count,
        get: Count,
        reserve: Count,
        commit: Count,
        rollback: Count,
        size: Count,
        total: Count,
        sched: Count,
        resv: Count,
        next_t: orNull(Moment),
        paused: Type.Boolean(),
      }),
    ),
  }),
);

const IN_CURSOR = "with %40 and %25 for @ and % in the namespace's name";

const forms = {
  array: flag('`{"data": […]}`, each a queue information record with `id`, as the web console reads it.'),
  tree: flag('A folder for each namespace, with its queues as children.'),
  reload: flag('Reads names and pause flags from the engine again before listing.'),
  ...paging(
    `Lists what follows this: the last queue name of the page before, or \`queue@namespace\` on \`/q\`, ${IN_CURSOR}.`,
  ),
};

const formSchemas = [json('With `array`.', QueueArray), json('With `tree`.', QueueTree)] as const;

export const listingRoutes: readonly Route[] = [
  route({
    id: 'listNamespaces',
    path: '/q',
    summary:
      'List the namespaces that the user may see; their queues, in forms that include them, need `read`',
    access: 'user',
    query: forms,
    responses: [json('The names.', NamespaceNames, { headers: NEXT_LINK }), ...formSchemas],
    problems: ['storage-unavailable', 'outcome-unknown'],
    handle: (call, query) =>
      call.front.limits.listInTurn(call, async () => {
        const form = listingForm(query);
        const visible = call.front.parts.broker.namespaces().filter(({ name }) => call.user.maySee(name));
        if (form === 'plain') {
          if (query.reload) await Promise.all(visible.map((namespace) => namespace.reload()));
          const names = visible.map(({ name }) => name);
          const at = query.after === null ? -1 : names.indexOf(query.after);
          if (query.after !== null && at === -1)
            throw wrongMember('after', query.after, 'the last name of the page before');
          const { items, headers } = pageOf(names.slice(at + 1), query, (name) => name);
          call.sendJson(items, headers);
        } else {
          const readable = visible.filter(({ name }) => call.user.may('read', name));
          const after = positionOf(query.after, readable);
          const page = await queuePage(call, readable, query, after);
          await call.sendPieces(PIECES[form](page.items), page.headers);
        }
      }),
  }),
  route({
    id: 'listQueues',
    path: '/q/:namespace',
    summary: 'List the queues of a namespace',
    access: 'read',
    query: forms,
    responses: [
      json('Queue information records by queue name.', QueuesByName, { headers: NEXT_LINK }),
      ...formSchemas,
    ],
    handle: (call, query) =>
      call.front.limits.listInTurn(call, async () => {
        const form = listingForm(query);
        const { namespace } = call;
        const after = query.after === null ? null : { namespace, queue: query.after };
        const page = await queuePage(call, [namespace], query, after);
        await call.sendPieces(PIECES[form](page.items), page.headers);
      }),
  }),
];

/** The place of a queue in a listing. */
interface Position {
  readonly namespace: Namespace;
  readonly queue: string;
}

interface QueueQuery extends PageQuery {
  readonly reload: boolean;
}

/** Reads the queues of namespaces, or one page of them. @throws QuaysideError if none can be read */
async function queuePage(
  call: HttpCall,
  namespaces: readonly Namespace[],
  query: QueueQuery,
  after: Position | null,
): Promise<Page<QueueFolder>> {
  const remaining = namespaces.slice(after === null ? 0 : namespaces.indexOf(after.namespace));
  const known = await readEach(remaining, async (namespace) => {
    if (query.reload) await namespace.reload();
    const names = await namespace.queueNames();
    return namespace === after?.namespace ? itemsAfter(names, after.queue) : names;
  });
  const queues = remaining.flatMap((namespace, i) => (known[i] ?? []).map((queue) => ({ namespace, queue })));
  const { items: shown, headers } = pageOf(queues, query, (position) => cursorOf(call, position));
  const isCut = shown.length < queues.length;
  const last = shown.at(-1)?.namespace;
  const end = isCut && last !== undefined ? remaining.indexOf(last) + 1 : remaining.length;
  // If the page before ended with the last queue of a namespace, its folder was on that page.
  const start = after !== null && known[0]?.length === 0 ? 1 : 0;
  const folders = remaining.slice(start, end);
  const byNamespace = Map.groupBy(shown, ({ namespace }) => namespace);
  const available = folders.filter((_, i) => known[start + i] !== null);
  const read = await readEach(available, (namespace) => readRecords(byNamespace.get(namespace) ?? []));
  const records = new Map(available.map(({ name }, i) => [name, read[i] ?? null]));
  return { items: folders.map(({ name }) => ({ name, items: records.get(name) ?? null })), headers };
}

/** The `after` of a position. On `/q` it names the namespace, too. */
function cursorOf({ params }: HttpCall, { namespace, queue }: Position): string {
  return params.namespace === undefined ? `${queue}@${namespaceInCursor(namespace)}` : queue;
}

/** Without `@`, so that the last one of a cursor separates both names: two queues may have the same id. */
function namespaceInCursor({ name }: Namespace): string {
  return name.replace(/[%@]/g, encodeURIComponent);
}

function positionOf(after: string | null, namespaces: readonly Namespace[]): Position | null {
  if (after === null) return null;
  const at = after.lastIndexOf('@');
  const namespace = namespaces.find((one) => namespaceInCursor(one) === after.slice(at + 1));
  if (at !== -1 && namespace !== undefined) return { namespace, queue: after.slice(0, at) };
  throw wrongMember('after', after, `queue@namespace of the last queue of the page before, ${IN_CURSOR}`);
}

type QueueFolder = Folder<ListedQueue>;

/** A queue and its record, as listings use it. */
interface ListedQueue {
  readonly queue: string;
  /** `queue@namespace` */
  readonly id: string;
  readonly record: QueueRecord;
}

function readRecords(queues: readonly Position[]): Promise<ListedQueue[]> {
  return mapConcurrently(queues, READ_AT_ONCE, async ({ namespace, queue }) => ({
    queue,
    id: `${queue}@${namespace.name}`,
    record: await namespace.visit(queue).status(null),
  }));
}

/** The forms of a listing of queues, in pieces of JSON. */
const PIECES = {
  /** An object by queue name, for one namespace. */
  plain: (folders: readonly QueueFolder[]) =>
    jsonPieces(
      '{',
      listed(folders),
      ({ queue, record }) => `${JSON.stringify(queue)}:${JSON.stringify(record)}`,
      '}',
    ),
  array: arrayPieces,
  tree: (folders: readonly QueueFolder[]) => treePieces(folders, leaf),
} as const;

function listed(folders: readonly QueueFolder[]): ListedQueue[] {
  return folders.flatMap(({ items }) => items ?? []);
}

function* arrayPieces(folders: readonly QueueFolder[]): Generator<string> {
  yield* jsonPieces('{"data":[', listed(folders), ({ id, record }) => JSON.stringify({ ...record, id }), ']');
  const unavailable = folders.flatMap(({ name, items }) => (items === null ? [name] : []));
  yield unavailable.length === 0 ? '}' : `,"unavailable":${JSON.stringify(unavailable)}}`;
}

function leaf({ id, queue, record }: ListedQueue): object {
  const { put, get, reserve, commit, rollback } = record.stats;
  return {
    title: queue,
    key: id,
    put,
    get,
    reserve,
    commit,
    rollback,
    size: record.size,
    total: record.totalSize,
    sched: record.schedSize,
    resv: record.resvSize,
    next_t: record.next_mature_t,
    paused: record.paused,
  };
}
