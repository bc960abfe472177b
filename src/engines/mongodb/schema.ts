import type { CreateIndexesOptions, Document, IndexSpecification } from 'mongodb';
import { codeOf, DUPLICATE_KEY } from './errors.ts';
import type { Store } from './store.ts';

/** MongoDB 6.0, as its `hello` says it. */
const OLDEST_WIRE_VERSION = 17;
/** What this program writes. A newer one may be read only by a newer program. */
const VERSION = 1;
/** Signals are hints of a moment; the collection holds the last ones only. */
const SIGNAL_BYTES = 4 * 1024 * 1024;
const NAMESPACE_EXISTS = 48;
/** What a crash left of popped and settled elements is deleted by the server itself after this long. */
const LEFT_OVER_SECONDS = 300;

interface Index {
  readonly collection: 'elements' | 'queues' | 'stats';
  readonly fields: IndexSpecification;
  readonly options: CreateIndexesOptions & { readonly name: string };
}

/** Names of the indexes that queries ask for by name: the server must not choose another one on a bad day. */
export const IN_ORDER = 'in_order';
export const BY_LEASE_END = 'by_lease_end';
export const BY_AGE = 'by_age';

/**
 * - `in_order` has everything that a take, a count or a listing looks at before it decides, so that none of them
 *   reads documents that it does not hand out, and the cost of a take does not depend on how many wait.
 * - `by_key` lets one element be stored for a dedup key, whoever inserts.
 * - `by_lease_end` and `by_age` hold reserved documents only, and those of streams with a retention.
 */
const INDEXES: readonly Index[] = [
  {
    collection: 'elements',
    fields: { ns: 1, queue: 1, group: 1, state: 1, at: 1, id: 1, bytes: 1 },
    options: { name: IN_ORDER },
  },
  {
    collection: 'elements',
    fields: { until: 1, id: 1 },
    options: { name: BY_LEASE_END, partialFilterExpression: { until: { $exists: true } } },
  },
  {
    collection: 'elements',
    fields: { ns: 1, born: 1 },
    options: { name: BY_AGE, partialFilterExpression: { born: { $exists: true } } },
  },
  {
    collection: 'elements',
    fields: { key: 1 },
    options: { name: 'by_key', unique: true, partialFilterExpression: { key: { $exists: true } } },
  },
  {
    collection: 'elements',
    fields: { deleteAfter: 1 },
    options: {
      name: 'gone',
      expireAfterSeconds: LEFT_OVER_SECONDS,
      partialFilterExpression: { state: 'gone' },
    },
  },
  { collection: 'queues', fields: { ns: 1, name: 1 }, options: { name: 'by_namespace' } },
  { collection: 'stats', fields: { queue: 1 }, options: { name: 'by_queue' } },
];

/**
 * Checks the server, and makes collections and indexes where they are missing. All steps can be made again and by
 * several nodes at once.
 * @throws Error naming the remedy where the server cannot keep the engine's promises
 */
export async function prepareDatabase(store: Store): Promise<void> {
  checkServer(await store.db.command({ hello: 1 }));
  await checkVersion(store);
  for (const name of Object.keys(store.collections)) {
    await create(store, name, name === 'signals' ? { capped: true, size: SIGNAL_BYTES } : {});
  }
  await checkSignals(store);
  for (const { collection, fields, options } of INDEXES) {
    await store.db.collection(collection).createIndex(fields, options);
  }
}

function checkServer(hello: Document): void {
  const isReplicaSet = typeof hello.setName === 'string';
  if (!isReplicaSet && hello.msg !== 'isdbgrid') {
    throw new Error(
      'it is a standalone server, which has no transactions; start it with --replSet and run rs.initiate() once, one member is enough',
    );
  }
  if (!(Number(hello.maxWireVersion) >= OLDEST_WIRE_VERSION)) {
    throw new Error('it is older than MongoDB 6.0; use 6.0 or a newer one');
  }
}

/** Other nodes of this version may be running: what is there already is left as it is. */
async function checkVersion({ db, settings }: Store): Promise<void> {
  const meta = db.collection<{ _id: string; version: number }>('meta');
  const { writeConcern } = settings;
  try {
    await meta.insertOne({ _id: 'schema', version: VERSION }, { writeConcern });
  } catch (error) {
    if (codeOf(error) !== DUPLICATE_KEY) throw error;
  }
  const { version = VERSION } = (await meta.findOne({ _id: 'schema' })) ?? {};
  if (version <= VERSION) return;
  throw new Error(
    `its database was written by a newer version of Quayside (${version}, this one knows ${VERSION}); use that version`,
  );
}

async function create({ db }: Store, name: string, options: Document): Promise<void> {
  try {
    await db.createCollection(name, options);
  } catch (error) {
    if (codeOf(error) !== NAMESPACE_EXISTS) throw error;
  }
}

/** Without its bound the collection of signals would grow for ever, and could not be followed. */
async function checkSignals({ db }: Store): Promise<void> {
  const [signals] = await db.listCollections({ name: 'signals' }).toArray();
  const { options } = (signals ?? {}) as { options?: Document };
  if (options?.capped === true) return;
  throw new Error('its collection "signals" is not capped; drop it, and it is made anew');
}
