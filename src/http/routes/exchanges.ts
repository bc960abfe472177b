import { checkRight, type User } from '../../access/user.ts';
import type { LoopIds } from '../../exchange/cycles.ts';
import {
  type Declaration,
  noNamespace,
  parseDeclaration,
  pathWithin,
  toDeclaration,
  versionOf,
} from '../../exchange/declaration.ts';
import { ExchangeTrialRequest, toSample } from '../../exchange/dry-run.ts';
import { notFound } from '../../exchange/exchanges.ts';
import { QuaysideError } from '../../model/errors.ts';
import { parse } from '../../model/members.ts';
import { checkName } from '../../model/names.ts';
import { ExchangeDeclaration, ExchangeRecord, ExchangeTrial, exchangeMembers } from '../../model/records.ts';
import { mapInTurns } from '../../util/map-in-turns.ts';
import { named, namedObject, Type } from '../../util/schema.ts';
import type { HttpCall } from '../call.ts';
import { entityTag, readVersions } from '../head.ts';
import { itemsAfter, jsonPieces, listingForm, NEXT_LINK, pageOf, paging, treePieces } from '../listing.ts';
import { flag } from '../parameters.ts';
import { readJson } from '../request.ts';
import { empty, json, type Route, route } from '../route.ts';

const ExchangesById = named('ExchangesById', Type.Record(ExchangeRecord));

const ExchangeArray = namedObject('ExchangeArray', {
  data: Type.Array(Type.Object({ ...exchangeMembers, id: Type.String() })),
});

const ExchangeTree = Type.Array(
  namedObject('ExchangeFolder', {
    title: Type.String(),
    key: Type.String(),
    folder: Type.Literal(true),
    expanded: Type.Literal(true),
    children: Type.Array(Type.Object({ title: Type.String(), key: Type.String(), ...exchangeMembers })),
  }),
);

/** Maximum body size of a create or a dry run: declarations are small, and are parsed on the main thread. */
const MAX_JSON_BYTES = 65_536;
/** The response header of a create that names loops, and its maximum length: clients limit the size of all headers. */
const LOOPS_HEADER = 'x-ks-loops';
const MAX_LOOPS_BYTES = 4096;
/** The response header of a change to an exchange that the configuration file declares. */
const CONFIGURED_NOTE = {
  'x-ks-note':
    'If the configuration file declares this exchange: a note that a restart restores that declaration.',
};
/** The member of a dry run's body with the declaration to try. */
const DECLARATION_MEMBER = 'declaration';

const forms = {
  array: flag('`{"data": […]}`, each an exchange record with `id`, as the web console reads it.'),
  tree: flag('A folder for each source namespace, with its exchanges as children.'),
  reload: flag('Reads the definitions from the engines again before listing.'),
  ...paging('Lists the exchanges whose id follows this one: the last id of the page before.'),
};

const idProblems = ['exchange-not-found', 'invalid-name', 'storage-unavailable', 'outcome-unknown'] as const;

export const exchangeRoutes: readonly Route[] = [
  route({
    id: 'listExchanges',
    path: '/x',
    summary: 'List the exchanges whose source namespace the user may see',
    access: 'user',
    query: forms,
    responses: [
      json('Exchange records by id.', ExchangesById, { headers: NEXT_LINK }),
      json('With `array`.', ExchangeArray),
      json('With `tree`.', ExchangeTree),
    ],
    problems: ['storage-unavailable', 'outcome-unknown'],
    handle: (call, query) =>
      call.front.limits.listInTurn(call, async () => {
        const form = listingForm(query);
        const { exchanges } = call.front.parts;
        if (query.reload) await exchanges.reload((namespace) => call.user.maySee(namespace));
        const keys = new Map(exchanges.visible(call.user));
        const ids = [...keys.keys()];
        const remaining = query.after === null ? ids : itemsAfter(ids, query.after);
        const { items, headers } = pageOf(remaining, query, (id) => id);
        const listed = await readRecords(
          call,
          items.map((id) => [id, keys.get(id) ?? id]),
        );
        await call.sendPieces(PIECES[form](listed), headers);
      }),
  }),
  route({
    id: 'exchangeStatus',
    path: '/x/:id',
    summary: 'One exchange record',
    access: 'user',
    responses: [json('The record.', ExchangeRecord)],
    problems: idProblems,
    async handle(call) {
      const { exchanges } = call.front.parts;
      const key = await keyFromPath(call);
      checkVisible(call.user, key, await exchanges.declarationOf(key));
      const record = exchanges.record(key, call.user);
      const { version } = record;
      call.sendText(200, JSON.stringify(record), version === undefined ? [] : ['etag', entityTag(version)]);
    },
  }),
  route({
    id: 'createExchange',
    methods: ['POST', 'PUT'],
    path: '/x/:id',
    summary:
      'Create and start an exchange; repeating the same declaration changes nothing. With `If-Match`, change its declaration',
    access: 'user',
    isAudited: true,
    body: 'json',
    request: ExchangeDeclaration,
    headers: { 'if-match': 'The declaration is changed only if the current one has one of these versions.' },
    responses: [
      empty(201, 'Created and started, or changed.', {
        etag: 'With `If-Match`: the `version` of the record, in quotes.',
        ...CONFIGURED_NOTE,
        [LOOPS_HEADER]:
          'Loops that the declared graph makes, at most ten and 4096 bytes, as exchange ids joined by `>`.',
      }),
    ],
    problems: [
      'invalid-name',
      'exchange-exists',
      'precondition-failed',
      'overloaded',
      'forbidden',
      'too-many-queues',
      'too-many-exchanges',
      'storage-full',
      'storage-unavailable',
      'outcome-unknown',
    ],
    handle(call) {
      const id = checkName('exchange', call.param('id'));
      return readJson(call, MAX_JSON_BYTES, async (payload) => {
        const declaration = parseDeclaration(payload);
        checkDeclaration(call.user, declaration);
        const { exchanges } = call.front.parts;
        if (call.head.ifMatch === null) {
          const loops = await exchanges.create(id, declaration, call.user);
          await exchanges.othersHave(await keyFromPath(call), declaration.src.ns);
          call.sendEmpty(201, loopsHeader(loops));
          return;
        }
        const change = { declaration, caller: call.user, versions: readVersions(call.head) };
        const key = await keyFromPath(call);
        const loops = await exchanges.change(key, change, (present) => checkControl(call.user, key, present));
        await exchanges.othersHave(key, declaration.src.ns);
        const etag = ['etag', entityTag(versionOf(declaration))];
        call.sendEmpty(201, [...etag, ...configuredNote(call, key), ...loopsHeader(loops)]);
      });
    },
  }),
  ...(['stop', 'start'] as const).map((verb) =>
    route({
      id: `${verb}Exchange`,
      methods: ['POST', 'PUT'],
      path: `/x/:id/${verb}`,
      summary: verb === 'stop' ? 'Stop an exchange, on all nodes' : 'Start an exchange, on all nodes',
      access: 'user',
      isAudited: true,
      responses: [empty(201, 'Done; idempotent.')],
      problems: [...idProblems, 'forbidden'],
      async handle(call) {
        const { exchanges } = call.front.parts;
        const key = await keyFromPath(call);
        await onAllNodes(call, key, (check) =>
          verb === 'stop'
            ? exchanges.stopExchange(key, check)
            : exchanges.startExchange(key, check, call.user),
        );
        call.sendEmpty(201);
      },
    }),
  ),
  route({
    id: 'deleteExchange',
    methods: ['DELETE'],
    path: '/x/:id',
    summary: 'Stop and delete an exchange; its queues stay',
    access: 'user',
    isAudited: true,
    responses: [empty(201, 'Deleted.', CONFIGURED_NOTE)],
    problems: [...idProblems, 'forbidden'],
    async handle(call) {
      const key = await keyFromPath(call);
      await onAllNodes(call, key, (check) => call.front.parts.exchanges.delete(key, check));
      call.sendEmpty(201, configuredNote(call, key));
    },
  }),
  route({
    id: 'tryExchange',
    methods: ['POST'],
    path: '/x/:id/test',
    summary:
      'Dry run of an exchange, or of a declaration that is not created yet, with a sample; stores nothing',
    access: 'user',
    body: 'json',
    request: ExchangeTrialRequest,
    responses: [json('What would happen to the sample, by destination.', ExchangeTrial)],
    problems: [...idProblems, 'forbidden', 'overloaded'],
    handle(call) {
      checkName('exchange', call.param('id'));
      return readJson(call, MAX_JSON_BYTES, async (payload) => {
        const request = parse(ExchangeTrialRequest, payload);
        const sample = toSample(request, call.front.parts.clock.now());
        const declaration = request.declaration === undefined ? null : toDeclaration(request.declaration);
        const { exchanges } = call.front.parts;
        const key = await keyFromPath(call);
        const mayTry = (present: Declaration): void => checkControl(call.user, key, present);
        if (declaration === null) mayTry(await exchanges.declarationOf(key));
        else checkDeclaration(call.user, declaration, DECLARATION_MEMBER);
        const options = { caller: call.user, within: DECLARATION_MEMBER, mayTry };
        const trial = JSON.stringify(await exchanges.dryRun(key, sample, declaration, options));
        call.front.limits.holdUnread(call, Buffer.byteLength(trial));
        call.sendText(200, trial);
      });
    },
  }),
];

/** The key of the exchange that the id of the path names for the user. @throws QuaysideError `invalid-name` */
async function keyFromPath(call: HttpCall): Promise<string> {
  return call.front.parts.exchanges.keyOf(checkName('exchange', call.param('id')), call.user);
}

/**
 * Checks that a user may run a declaration. This needs the right `exchange`, because selectors are code that runs on
 * every node, and the rights for its queues.
 */
function checkDeclaration(user: User, { src, dst }: Pick<Declaration, 'src' | 'dst'>, within = ''): void {
  const needed = [
    ['exchange', src.ns, 'src.ns'],
    ['read', src.ns, 'src.ns'],
    ...dst.map(({ ns }, i) => ['write', ns, `dst[${i}].ns`] as const),
  ] as const;
  for (const [right, namespace, path] of needed) {
    if (!user.maySee(namespace)) throw noNamespace(pathWithin(within, path), namespace);
    checkRight(user, right, namespace);
  }
}

/** Reports an exchange as unknown if the user may not see its source. */
function checkVisible(user: User, key: string, { src }: Declaration): void {
  if (!user.maySee(src.ns)) throw notFound(key);
}

/** Checks that a user may control an existing exchange. Errors must not reveal namespaces that the user may not see. */
function checkControl(user: User, key: string, declaration: Declaration): void {
  checkVisible(user, key, declaration);
  const isHidden = declaration.dst.some(({ ns }) => !user.maySee(ns));
  if (isHidden) {
    throw new QuaysideError('forbidden', 'This needs the right write in the namespace of each destination.');
  }
  checkDeclaration(user, declaration);
}

/**
 * Changes an exchange, and waits until the other nodes have applied the change.
 * @param change calls `check` with the present declaration, which throws if the user may not change it
 */
async function onAllNodes(
  call: HttpCall,
  key: string,
  change: (check: (present: Declaration) => void) => Promise<void>,
): Promise<void> {
  let ns: string | null = null;
  await change((present) => {
    checkControl(call.user, key, present);
    ns ??= present.src.ns;
  });
  if (ns !== null) await call.front.parts.exchanges.othersHave(key, ns);
}

/** The note for a change of an exchange that the configuration file declares: a restart restores it. */
function configuredNote(call: HttpCall, key: string): string[] {
  if (!call.front.parts.exchanges.isConfigured(key)) return [];
  return ['x-ks-note', 'the configuration file declares this exchange; a restart restores that declaration'];
}

function loopsHeader(loops: LoopIds): string[] {
  return loops.length === 0 ? [] : [LOOPS_HEADER, formatLoops(loops)];
}

/**
 * Formats loops for a header. Ids may contain any character and are percent-encoded, so `>` and `,` only separate.
 * Omits loops that do not fit; cuts the first one after an id.
 */
function formatLoops(loops: LoopIds): string {
  const [first = '', ...others] = loops.map((loop) => loop.map(encodeURIComponent).join('>'));
  if (first.length > MAX_LOOPS_BYTES) return first.slice(0, first.lastIndexOf('>', MAX_LOOPS_BYTES));
  let formatted = first;
  for (const loop of others) {
    if (formatted.length + loop.length + 2 > MAX_LOOPS_BYTES) break;
    formatted += `, ${loop}`;
  }
  return formatted;
}

type Listed = readonly [id: string, record: ExchangeRecord];

/** Records that are created before other requests are served. */
const RECORDS_PER_TURN = 16;

async function readRecords(
  { front, user }: HttpCall,
  items: readonly (readonly [id: string, key: string])[],
): Promise<Listed[]> {
  const { exchanges } = front.parts;
  const graph = exchanges.graph(user);
  // Skip exchanges that were deleted in between.
  const listed = await mapInTurns(items, RECORDS_PER_TURN, ([id, key]): Listed[] =>
    exchanges.has(key) ? [[id, exchanges.record(key, user, graph)]] : [],
  );
  return listed.flat();
}

/** The forms of a listing as pieces of JSON. */
const PIECES = {
  plain: (listed: readonly Listed[]) =>
    jsonPieces('{', listed, ([id, record]) => `${JSON.stringify(id)}:${JSON.stringify(record)}`, '}'),
  array: (listed: readonly Listed[]) =>
    jsonPieces('{"data":[', listed, ([id, record]) => JSON.stringify({ ...record, id }), ']}'),
  tree(listed: readonly Listed[]) {
    const byNamespace = Map.groupBy(listed, ([, { src }]) => src.ns);
    const folders = [...byNamespace].map(([name, items]) => ({ name, items }));
    return treePieces(folders, ([id, record]) => ({ title: id, key: id, ...record }));
  },
} as const;
