import { setImmediate as turn } from 'node:timers/promises';
import type { Broker } from '../broker/broker.ts';
import type { Queue } from '../broker/queue.ts';
import { checkDeadLetterQueue, checkOptions, showOptions, toOptions } from '../broker/queue-options.ts';
import {
  type Caller,
  type Declaration,
  NODE,
  sameDeclaration,
  toDeclaration,
  versionOf,
} from '../exchange/declaration.ts';
import type { Exchanges } from '../exchange/exchanges.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { textFingerprint } from '../model/fingerprint.ts';
import { atMember, memberPath, parse, wrongMember } from '../model/members.ts';
import { checkName } from '../model/names.ts';
import { declarationMembers, ShownOptions, STRICT } from '../model/records.ts';
import { FEW_VALUES, isParsedFast, JsonScanner, membersOf, SCAN_STEP } from '../util/json-scanner.ts';
import { mapInTurns } from '../util/map-in-turns.ts';
import { namedObject, optional, type Schema, Type } from '../util/schema.ts';

/** An exchange of the document. */
export interface DocumentExchange extends Declaration {
  readonly stopped: boolean;
}

/** A queue of the document: its stored settings, which override the configuration. */
export interface DocumentQueue {
  readonly paused: boolean;
  /** Null: it has no options of its own. */
  readonly options: ShownOptions | null;
}

/** Those of a namespace, by name. */
type DocumentQueues = Readonly<Record<string, DocumentQueue>>;

/** The stored definitions of all namespaces, without the configuration. */
export interface DefinitionsDocument {
  /** By the id that a user who may see all exchanges uses. Exchanges of the configuration file are left out. */
  readonly exchanges: Readonly<Record<string, DocumentExchange>>;
  /** By namespace and name: queues that are paused or have options. */
  readonly queues: Readonly<Record<string, DocumentQueues>>;
}

const DocumentExchangeSchema = Type.Object(
  {
    ...declarationMembers,
    stopped: Type.Optional(Type.Boolean({ description: 'Defaults to false.' })),
  },
  STRICT,
);
const DocumentQueueSchema = Type.Object(
  {
    paused: Type.Optional(Type.Boolean({ description: 'Defaults to false.' })),
    options: optional(ShownOptions),
  },
  STRICT,
);

/** The document as clients send and receive it. */
export const Definitions = namedObject(
  'Definitions',
  {
    exchanges: Type.Optional(Type.Record(DocumentExchangeSchema, { description: 'By id.' })),
    queues: Type.Optional(
      Type.Record(Type.Record(DocumentQueueSchema), { description: 'By namespace and name.' }),
    ),
  },
  STRICT,
);

/** A definition of the document. */
export const Definition = Type.Union([DocumentExchangeSchema, DocumentQueueSchema]);

interface ExchangeChange {
  readonly kind: 'exchange';
  readonly id: string;
  readonly before: DocumentExchange | null;
  readonly after: DocumentExchange | null;
}

interface QueueChange {
  readonly kind: 'queue';
  readonly ns: string;
  readonly queue: string;
  readonly before: DocumentQueue | null;
  readonly after: DocumentQueue | null;
}

/** A difference between the present and the wanted definitions. Null: not defined. */
type DocumentChange = ExchangeChange | QueueChange;

/** The result of applying a change: done, or why it could not be applied. */
type ChangeOutcome = 'done' | { readonly code: string; readonly message: string };

interface DefinitionsContext {
  readonly broker: Broker;
  readonly exchanges: Exchanges;
}

/**
 * Entries after which other requests are served. To read or check 20,000 takes some tenths of a second. They are
 * compared at once, since ids and versions must not change between the comparison and the first change.
 */
const PER_TURN = 100;

/** One after the other, each would wait for its round trips and its fsync alone. */
const QUEUES_AT_ONCE = 32;

const NOT_STORED: DocumentQueue = { paused: false, options: null };

/** Returns the present definitions, as far as this node knows them, sorted by name. */
export function presentDefinitions({ broker, exchanges }: DefinitionsContext): DefinitionsDocument {
  const overviews = new Map(exchanges.overview().map((overview) => [overview.key, overview]));
  const storedExchanges = exchanges.visible(NODE).flatMap(([id, key]) => {
    const overview = overviews.get(key);
    return overview === undefined || exchanges.isConfigured(key) ? [] : [{ id, overview }];
  });
  const queues: Record<string, Record<string, DocumentQueue>> = {};
  for (const namespace of broker.namespaces()) {
    const names = new Set([...namespace.pausedNames, ...namespace.options.names()]);
    if (names.size === 0) continue;
    queues[namespace.name] = Object.fromEntries(
      [...names].sort().map((name) => {
        const stored = namespace.options.storedOf(name);
        const options = Object.keys(stored).length === 0 ? null : stored;
        return [name, { paused: namespace.pausedNames.has(name), options }];
      }),
    );
  }
  return {
    exchanges: Object.fromEntries(
      storedExchanges.map(({ id, overview }) => [
        id,
        { ...overview.declaration, stopped: overview.isStopStored },
      ]),
    ),
    queues,
  };
}

/** Returns a fingerprint of a document: equal documents have equal fingerprints. */
export function versionOfDefinitions(document: DefinitionsDocument): string {
  return textFingerprint(JSON.stringify(document));
}

/**
 * Parses a document, entry by entry: `JSON.parse` would block all requests for seconds. Missing members default to
 * empty, `stopped` and `paused` to false.
 * @throws SyntaxError if the text is not JSON
 * @throws QuaysideError `invalid-parameter` with the path, `invalid-name`, `namespace-not-found`
 */
export async function parseDefinitions(text: string, broker: Broker): Promise<DefinitionsDocument> {
  let exchanges = new Map<string, DocumentExchange>();
  let queues = new Map<string, DocumentQueues>();
  const countEntry = entryCounter(broker);
  await forEachMember(text, '', async (member, ofMember) => {
    if (member === 'exchanges') {
      exchanges = new Map();
      await forEachMember(ofMember, member, (id, entry) => {
        countEntry();
        const value = parseEntry(DocumentExchangeSchema, entry, memberPath(member, id));
        const { stopped = false, ...declaration } = value;
        const key = atMember(member, () => checkName('exchange', id));
        exchanges.set(key, { ...toDeclaration(declaration), stopped });
      });
    } else if (member === 'queues') {
      queues = new Map();
      await forEachMember(ofMember, member, async (ns, ofNamespace) => {
        const path = memberPath(member, ns);
        atMember(path, () => broker.namespace(ns));
        const wanted = new Map<string, DocumentQueue>();
        await forEachMember(ofNamespace, path, (name, entry) => {
          countEntry();
          const value = parseEntry(DocumentQueueSchema, entry, memberPath(path, name));
          const { paused = false, options = null } = value;
          const key = atMember(path, () => checkName('queue', name));
          wanted.set(key, { paused, options: options && storedOptionsAt(path, name, options) });
        });
        queues.set(ns, Object.fromEntries(wanted));
      });
    } else parse(Definitions, { [member]: null });
  });
  return { exchanges: Object.fromEntries(exchanges), queues: Object.fromEntries(queues) };
}

function parseEntry<T>(schema: Schema<T>, text: string, path: string): T {
  if (!isParsedFast(text)) {
    throw invalidParameter(
      path,
      `${path} has more than ${FEW_VALUES} JSON values, the maximum of an exchange or queue.`,
    );
  }
  return parse(schema, JSON.parse(text), path);
}

/**
 * Calls `visit` for each member of the JSON text of an object, one after the other. Lets other work run in between.
 * @param path of the object in the document
 */
async function forEachMember(
  text: string,
  path: string,
  visit: (name: string, value: string) => unknown,
): Promise<void> {
  const scanner = new JsonScanner(text);
  if (!scanner.isAtObject()) {
    while (!scanner.value(SCAN_STEP)) await turn();
    scanner.end();
    // One that is not parsed fast has many values: it is an array.
    throw wrongMember(path, isParsedFast(text) ? JSON.parse(text) : [null], 'an object');
  }
  let count = 0;
  for (const member of membersOf(text)) {
    if (member !== null) {
      await visit(...member);
      count += 1;
    }
    if (member === null || count % PER_TURN === 0) await turn();
  }
}

/** Returns a function to call for each entry of a document; it throws if the namespaces cannot have as many. */
function entryCounter(broker: Broker): () => void {
  const max = broker
    .namespaces()
    .reduce((sum, { setup: { maxQueues, maxExchanges } }) => sum + maxQueues + maxExchanges, 0);
  let count = 0;
  return () => {
    count += 1;
    if (count <= max) return;
    throw invalidParameter(
      '',
      `The document has more than ${max} exchanges and queues, which is all that the namespaces of this server may have (maxQueues, maxExchanges).`,
    );
  };
}

/**
 * Returns options with their defaults filled in, as they are stored.
 * @param path of the queue's namespace in the document
 * @throws QuaysideError `invalid-parameter` with the path in the document
 */
function storedOptionsAt(path: string, queue: string, given: ShownOptions): ShownOptions {
  return atMember(memberPath(memberPath(path, queue), 'options'), () => {
    const options = toOptions(given);
    checkDeadLetterQueue(queue, options);
    return showOptions(options);
  });
}

/**
 * Returns the changes that turn the present definitions into the wanted ones, in the order in which they are applied:
 * exchanges do not consume a queue before it is paused, or after it is resumed, unless they do so afterwards, too. None
 * forwards to a queue before its limit applies, except to one that is resumed.
 * @param prunes whether definitions that the wanted document does not contain are deleted
 */
export function definitionChanges(
  present: DefinitionsDocument,
  wanted: DefinitionsDocument,
  prunes: boolean,
): DocumentChange[] {
  const changes: DocumentChange[] = [];
  const running: DocumentChange[] = [];
  const resumed: DocumentChange[] = [];
  for (const [id, before, after] of mergedEntries(present.exchanges, wanted.exchanges)) {
    if (after === null ? prunes : before === null || !isSame(before, after))
      (after?.stopped === false ? running : changes).push({ kind: 'exchange', id, before, after });
  }
  for (const [ns, ofBefore, ofAfter] of mergedEntries(present.queues, wanted.queues)) {
    for (const [queue, before, after] of mergedEntries(ofBefore ?? {}, ofAfter ?? {})) {
      if (after === null ? prunes : !isSame(before ?? NOT_STORED, after))
        (isResumed({ before, after }) ? resumed : changes).push({ kind: 'queue', ns, queue, before, after });
    }
  }
  return [...changes, ...running, ...resumed];
}

function* mergedEntries<T>(
  before: Readonly<Record<string, T>>,
  after: Readonly<Record<string, T>>,
): Generator<[name: string, before: T | null, after: T | null]> {
  for (const name of [...new Set([...Object.keys(before), ...Object.keys(after)])].sort()) {
    const [one, other] = [before, after].map((of) => (Object.hasOwn(of, name) ? (of[name] ?? null) : null));
    yield [name, one ?? null, other ?? null];
  }
}

function isResumed({ before, after }: Pick<QueueChange, 'before' | 'after'>): boolean {
  return before?.paused === true && after?.paused !== true;
}

/** Whether two entries are equal. Both have their members in the same order. */
function isSame(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

/**
 * Applies changes to the present definitions: exchanges one after the other, up to {@link QUEUES_AT_ONCE} queues at a
 * time. If one fails, the others are still applied. The keys of exchanges are looked up first: after a deletion, an id
 * may stand for another exchange.
 * @param callerNow returns the caller with their present rights, for each change; throws if they may change nothing any
 * more
 * @param dryRun changes nothing: each change is only checked, on its own, without the effects of those before it
 * @returns the outcome of each change; undefined: a dry run found no error
 */
export async function applyChanges(
  changes: readonly DocumentChange[],
  { broker, exchanges }: DefinitionsContext,
  callerNow: () => Caller,
  dryRun: boolean,
): Promise<(ChangeOutcome | undefined)[]> {
  const keys = new Map(exchanges.visible(NODE));
  const [ofExchange, ofQueue] = dryRun ? [checkExchange, checkQueue] : [applyToExchange, applyToQueue];
  const apply = async (change: DocumentChange): Promise<ChangeOutcome | undefined> => {
    try {
      const caller = callerNow();
      if (change.kind === 'queue') await ofQueue(change, broker.namespace(change.ns).queue(change.queue));
      else await ofExchange(change, keys.get(change.id) ?? change.id, exchanges, caller);
      return dryRun ? undefined : 'done';
    } catch (error) {
      if (!(error instanceof QuaysideError)) throw error;
      return { code: error.code, message: error.message };
    }
  };
  if (dryRun) return mapInTurns(changes, PER_TURN, apply);
  const batches = mapInTurns(batchesOf(changes), PER_TURN, (batch) => Promise.all(batch.map(apply)));
  return (await batches).flat();
}

/** Splits changes, in their order, into those that are applied at the same time: an exchange, or some queues. */
function* batchesOf(changes: readonly DocumentChange[]): Generator<readonly DocumentChange[]> {
  let from = 0;
  while (from < changes.length) {
    const batch = batchAt(changes.slice(from, from + QUEUES_AT_ONCE));
    from += batch.length;
    yield batch;
  }
}

/** The first of these changes, and those that may be applied at the same time. */
function batchAt(changes: readonly DocumentChange[]): readonly DocumentChange[] {
  const [first] = changes;
  if (first?.kind !== 'queue') return changes.slice(0, 1);
  const queues: QueueChange[] = [];
  for (const change of changes) {
    if (change.kind !== 'queue' || change.ns !== first.ns || isResumed(change) !== isResumed(first)) break;
    queues.push(change);
  }
  return queues;
}

async function applyToExchange(
  { id, before, after }: ExchangeChange,
  key: string,
  exchanges: Exchanges,
  caller: Caller,
): Promise<void> {
  if (after === null) return exchanges.delete(key);
  const { stopped, ...declaration } = after;
  // One that is stopped before or afterwards must not forward in between.
  if (before === null) await exchanges.create(id, declaration, caller, stopped);
  if (stopped && !before?.stopped) await exchanges.stopExchange(key);
  if (before !== null && !sameDeclaration(before, declaration)) {
    await exchanges.change(key, { declaration, caller, versions: new Set([versionOf(before)]) }, () => {});
  }
  if (!stopped && before?.stopped) await exchanges.startExchange(key, () => {}, caller);
}

async function checkExchange(
  { id, before, after }: ExchangeChange,
  key: string,
  exchanges: Exchanges,
  caller: Caller,
): Promise<void> {
  if (after === null) return;
  const { stopped: _, ...declaration } = after;
  if (before === null) await exchanges.checkCreate(id, declaration, caller);
  else if (!sameDeclaration(before, declaration)) {
    await exchanges.checkChange(key, { declaration, caller, versions: new Set([versionOf(before)]) });
  }
}

/** @param queue which is created if it does not exist */
async function applyToQueue({ before, after }: QueueChange, queue: Queue): Promise<void> {
  const [present, wanted] = [before ?? NOT_STORED, after ?? NOT_STORED];
  if (present.paused !== wanted.paused) await (wanted.paused ? queue.pause() : queue.resume());
  if (!isSame(present.options, wanted.options)) {
    await queue.storeOptions(wanted.options && toOptions(wanted.options));
  }
}

function checkQueue({ after }: QueueChange, { namespace, key }: Queue): void {
  const options = after?.options ?? null;
  if (options !== null) checkOptions(namespace, key.name, toOptions(options));
}
