import type { Namespace } from '../../broker/namespace.ts';
import { invalidParameter, type QuaysideError } from '../../model/errors.ts';
import { QueueRecord } from '../../model/records.ts';
import { mapInBatches } from '../../util/map-in-batches.ts';
import { quote } from '../../util/quote.ts';
import { Count, Moment, named, namedObject, orNull, Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import {
  type Folder,
  itemsAfter,
  jsonPieces,
  listingForm,
  NEXT_LINK,
  nextPage,
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

const forms = {
  array: flag('`{"data": […]}`, each a queue information record with `id`, as the web console reads it.'),
  tree: flag('A folder for each namespace, with its queues as children.'),
  reload: flag('Reads names and pause flags from the engine again before listing.'),
  ...paging('Lists what follows this: the last queue name of the page before, or `queue@namespace` on `/q`.'),
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
    responses: [json('The names.', NamespaceNames, { headers: [NEXT_LINK] }), ...formSchemas],
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
            throw invalidAfter(query.after, 'the last name of the page before');
          const { items, headers } = pageOf(names.slice(at + 1), query, (name) => name);
          call.sendJson(items, headers);
        } else {
          const readable = visible.filter(({ name }) => call.user.may('read', name));
          const after = positionOf(query.after, readable);
          const page = await queuePage(call, readable, query, after);
          await call.sendPieces(FOLDER_PIECES[form](page.items), page.headers);
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
      json('Queue information records by queue name.', QueuesByName, { headers: [NEXT_LINK] }),
      ...formSchemas,
    ],
    handle: (call, query) =>
      call.front.limits.listInTurn(call, async () => {
        const form = listingForm(query);
        const { namespace } = call;
        const after = query.after === null ? null : { namespace: namespace.name, queue: query.after };
        const page = await queuePage(call, [namespace], query, after);
        if (form !== 'plain') await call.sendPieces(FOLDER_PIECES[form](page.items), page.headers);
        else await call.sendPieces(objectPieces(page.items[0]?.items ?? []), page.headers);
      }),
  }),
];

/** The queue behind which a page begins. */
interface Position {
  readonly namespace: string;
  readonly queue: string;
}

interface QueueQuery extends PageQuery {
  readonly reload: boolean;
}

/** Reads the queues of namespaces: all if the request has neither `limit` nor `after`, else one page of them. */
async function queuePage(
  call: HttpCall,
  namespaces: readonly Namespace[],
  query: QueueQuery,
  after: Position | null,
): Promise<Page<QueueFolder>> {
  const { reload, limit } = query;
  if (limit === null && after === null) {
    const list = async (namespace: Namespace): Promise<readonly ListedQueue[]> => {
      if (reload) await namespace.reload();
      return queueLists.of(namespace);
    };
    return { items: await listFolders(namespaces, list), headers: [] };
  }
  const from = after === null ? 0 : namespaces.findIndex(({ name }) => name === after.namespace);
  const nameFolders = await listFolders(namespaces.slice(from), async (namespace) => {
    if (reload) await namespace.reload();
    const names = (await namespace.queueNames()).toSorted();
    return namespace.name === after?.namespace ? itemsAfter(names, after.queue) : names;
  });
  const items: QueueFolder[] = [];
  let remaining = limit ?? Number.POSITIVE_INFINITY;
  let last: Position | null = null;
  let isCut = false;
  for (const { name, items: queues } of nameFolders) {
    if (remaining === 0) {
      isCut ||= queues === null || queues.length > 0;
      continue;
    }
    const names = queues?.slice(0, remaining);
    const namespace = namespaces.find((one) => one.name === name);
    if (names === undefined || namespace === undefined) {
      items.push({ name, items: null });
      continue;
    }
    items.push({ name, items: await readRecords(namespace, names) });
    remaining -= names.length;
    isCut = names.length < (queues?.length ?? 0);
    last = names.length > 0 ? { namespace: name, queue: names.at(-1) ?? '' } : last;
  }
  return { items, headers: isCut && last !== null ? nextPage(query, cursorOf(call, last)) : [] };
}

/** The `after` of a position. On `/q` it has the form of the listing's ids. */
function cursorOf({ params }: HttpCall, { namespace, queue }: Position): string {
  return params.namespace === undefined ? `${queue}@${namespace}` : queue;
}

/** Parses `queue@namespace`. Both names may contain `@`, so the longest namespace that matches is used. */
function positionOf(after: string | null, namespaces: readonly Namespace[]): Position | null {
  if (after === null) return null;
  const [namespace] = namespaces
    .map(({ name }) => name)
    .filter((name) => after.endsWith(`@${name}`))
    .sort((a, b) => b.length - a.length);
  if (namespace !== undefined) return { namespace, queue: after.slice(0, -namespace.length - 1) };
  throw invalidAfter(after, 'queue@namespace, the id of the last queue of the page before');
}

function invalidAfter(after: string, allowed: string): QuaysideError {
  return invalidParameter('after', `after cannot be ${quote(after)}; give ${allowed}.`);
}

type QueueFolder = Folder<ListedQueue>;

/** A queue and its record, as listings use it. */
class ListedQueue {
  readonly namespace: string;
  readonly queue: string;
  readonly record: QueueRecord;
  #json: string | null = null;

  constructor(namespace: string, queue: string, record: QueueRecord) {
    this.namespace = namespace;
    this.queue = queue;
    this.record = record;
  }

  get id(): string {
    return `${this.queue}@${this.namespace}`;
  }

  /** The record as JSON, formatted once for all listings that share this object. */
  get json(): string {
    this.#json ??= JSON.stringify(this.record);
    return this.#json;
  }
}

/**
 * Shares readings between concurrent requests: for each namespace, at most one reading is in progress, and one more
 * waits for its end. No request gets a list that was begun before the request.
 */
export class QueueLists {
  readonly #reading = new Map<Namespace, Promise<readonly ListedQueue[]>>();
  readonly #next = new Map<Namespace, Promise<readonly ListedQueue[]>>();

  /** The records of all queues of a namespace, by name. */
  of(namespace: Namespace): Promise<readonly ListedQueue[]> {
    const reading = this.#reading.get(namespace);
    if (reading === undefined) return this.#start(namespace);
    let next = this.#next.get(namespace);
    if (next === undefined) {
      const start = (): Promise<readonly ListedQueue[]> => {
        this.#next.delete(namespace);
        return this.#start(namespace);
      };
      next = reading.then(start, start);
      this.#next.set(namespace, next);
    }
    return next;
  }

  #start(namespace: Namespace): Promise<readonly ListedQueue[]> {
    const listed = readQueues(namespace);
    this.#reading.set(namespace, listed);
    const done = (): void => {
      if (this.#reading.get(namespace) === listed) this.#reading.delete(namespace);
    };
    listed.then(done, done);
    return listed;
  }
}

/** Shared by all requests. */
const queueLists = new QueueLists();

async function readQueues(namespace: Namespace): Promise<ListedQueue[]> {
  return readRecords(namespace, await namespace.queueNames());
}

/** The records of the named queues of a namespace. */
function readRecords(namespace: Namespace, names: readonly string[]): Promise<ListedQueue[]> {
  return mapInBatches(
    names,
    READ_AT_ONCE,
    async (name) => new ListedQueue(namespace.name, name, await namespace.visit(name).status(null)),
  );
}

/** Lists several namespaces. @throws QuaysideError the first one's error, if none can be listed */
async function listFolders<Q>(
  namespaces: readonly Namespace[],
  list: (namespace: Namespace) => Promise<readonly Q[]>,
): Promise<Folder<Q>[]> {
  const listed = await readEach(namespaces, list);
  return namespaces.map(({ name }, i) => ({ name, items: listed[i] ?? null }));
}

/** The default form of one namespace, an object by queue name, in pieces of JSON. */
function* objectPieces(queues: readonly ListedQueue[]): Generator<string> {
  yield* jsonPieces('{', queues, ({ queue, json }) => `${JSON.stringify(queue)}:${json}`, '}');
}

/** The forms of a listing by namespace, in pieces of JSON. */
const FOLDER_PIECES = {
  array: arrayPieces,
  tree: (folders: readonly QueueFolder[]) => treePieces(folders, leaf),
} as const;

function* arrayPieces(folders: readonly QueueFolder[]): Generator<string> {
  const queues = folders.flatMap(({ items }) => items ?? []);
  yield* jsonPieces(
    '{"data":[',
    queues,
    ({ id, json }) => `${json.slice(0, -1)},"id":${JSON.stringify(id)}}`,
    ']',
  );
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
