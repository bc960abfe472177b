import assert from 'node:assert/strict';
import { it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { unavailable, unknownOutcome } from '../../src/engine/calls.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { EngineUnderTest, TestEngine } from '../engines.ts';
import { Harness } from '../http/harness.ts';
import { engineWith, engineWithDefinitions } from '../support/engine-with.ts';
import { jsonOf, type Query } from '../support/http-client.ts';
import { freshSeed, type Random, seededRandom } from '../support/random.ts';

/** Requests per run; `npm run test:fuzz` uses 20,000. */
const REQUESTS = Number(process.env.FUZZ_REQUESTS ?? 600);
const SEED = Number(process.env.SEED ?? freshSeed());
/** Concurrent requests. */
const CONCURRENCY = 40;
/** Percentages of failing engine calls, each used for `REQUESTS_A_WHILE` requests. */
const FAILING = [2, 10, 30, 60];
const REQUESTS_A_WHILE = 150;
/** Max. event-loop turns by which a call is delayed. */
const MAX_TURNS = 3;

const STORAGE = [
  'declare',
  'queues',
  'insert',
  'take',
  'settle',
  'undoTake',
  'scan',
  'purge',
  'drop',
  'counts',
  'usage',
  'sweep',
] as const;
const DEFINITIONS = ['get', 'list', 'put', 'delete'] as const;

/** An engine in which a share of all calls fails, before or after it takes effect. */
class FailingEngine {
  /** Percentage of failing calls. */
  failing = 0;
  failures = 0;
  readonly #random: Random;

  constructor(random: Random) {
    this.#random = random;
  }

  get underTest(): EngineUnderTest {
    const open = async (options: Parameters<EngineUnderTest['open']>[0]): Promise<TestEngine> => {
      const opened = await MEMORY_SQLITE.open(options);
      const engine = engineWithDefinitions(
        engineWith(opened.engine, (real) => this.#failingVerbs(real, STORAGE)),
        (real) => this.#failingVerbs(real, DEFINITIONS),
      );
      return { ...opened, engine };
    };
    return { ...MEMORY_SQLITE, open, openDurable: null };
  }

  #failingVerbs<Port extends object, Verb extends keyof Port & string>(
    port: Port,
    verbs: readonly Verb[],
  ): Partial<Port> {
    const own: Partial<Port> = {};
    for (const verb of verbs) {
      const real = port[verb] as (...values: unknown[]) => Promise<unknown>;
      const call = (...values: unknown[]) => this.#call(verb, () => real.apply(port, values));
      own[verb] = call as Port[Verb];
    }
    return own;
  }

  async #call(verb: string, execute: () => Promise<unknown>): Promise<unknown> {
    const fails = this.#random.between(1, 100) <= this.failing;
    const isCarriedOut = !fails || this.#random.chance(0.5);
    const turns = this.#random.between(0, MAX_TURNS);
    const error = this.#failure(verb, isCarriedOut);
    for (let i = 0; i < turns; i++) await turn();
    const result = isCarriedOut ? await execute() : null;
    if (!fails) return result;
    this.failures += 1;
    throw error;
  }

  #failure(verb: string, isCarriedOut: boolean): QuaysideError {
    const cause = new Error(`planted in ${verb}`);
    if (isCarriedOut) return unknownOutcome(cause);
    return this.#random.pick([
      unavailable(cause.message, cause),
      unknownOutcome(cause),
      new QuaysideError('storage-full', cause.message),
    ]);
  }
}

interface Call {
  readonly method: string;
  readonly path: string;
  readonly query?: Query;
  /** Sent as JSON; an array as JSON lines. */
  readonly body?: object;
  readonly headers?: Readonly<Record<string, string>>;
}

const SELECTORS = [
  'env.msg.tries === 0',
  'env => env.msg.payload.n > 3',
  'env => env.msg.hdrs.n % 2 == 0',
  'env => env.no.thing',
];
const ACTIONS = ['move', 'copy', 'delete', 'release', 'redrive', 'count'];

/** A random request. */
function anyCall(random: Random, known: { readonly ids: readonly string[] }): Call {
  const ns = random.pick(['N', 'N', 'jobs', 'jobs', 'events']);
  const name = random.pick(['a', 'b', 'c', '__deadletter__']);
  const queue = `/q/${ns}/${name}`;
  const exchange = `/x/${random.pick(['one', 'two'])}`;
  const selector = random.pick(SELECTORS);
  const id = known.ids.length === 0 ? 'none' : random.pick(known.ids);
  const get = (path: string, query: Query = {}): Call => ({ method: 'GET', path, query });
  switch (random.between(0, 24)) {
    case 0:
    case 1:
    case 2:
    case 3:
      return {
        method: 'PUT',
        path: queue,
        query: { ttl: random.chance(0.2) ? 5 : undefined },
        body: { n: random.between(0, 9) },
        headers: random.chance(0.3) ? { 'idempotency-key': `key ${random.between(0, 20)}` } : {},
      };
    case 4: {
      const elements = Array.from({ length: random.between(1, 200) }, (_, n) => ({ json: { n } }));
      return { method: 'POST', path: `${queue}/elements`, body: elements };
    }
    case 5:
    case 6:
      return get(queue, { to: random.pick([0, 20, 2000]) });
    case 7:
    case 8:
      return {
        method: 'POST',
        path: `${queue}/take`,
        body: { count: random.pick([1, 5, 100]), to: random.pick([0, 50]), reserve: random.chance(0.7) },
      };
    case 9:
    case 10: {
      const [commit, rollback] = [[{ id }], [{ id: known.ids[0] ?? 'none' }]];
      return { method: 'POST', path: `${queue}/settle`, body: { commit, rollback } };
    }
    case 11:
      return get(`${queue}/status`);
    case 12:
      return get(`/q/${ns}`, { array: 1 });
    case 13:
      return { method: 'PATCH', path: `${queue}/${random.pick(['pause', 'resume', 'resume'])}` };
    case 14:
    case 15:
      return get(`${queue}/elements`, { limit: 1000, where: random.chance(0.7) ? selector : undefined });
    case 16:
      return get(random.pick(['/dead-letters', '/metrics', '/nodes', '/operations', '/x', '/queues', '/q']));
    case 17:
      return get(`${queue}/export`);
    case 18:
      return { method: 'DELETE', path: random.chance(0.5) ? queue : `${queue}/elements` };
    case 19:
      return {
        method: 'PUT',
        path: `${queue}/options`,
        body: random.pick([{ ttl: 60 }, { maxElements: 50 }]),
      };
    case 20:
    case 21: {
      const where = random.chance(0.5) ? { selector } : {};
      const action = random.pick(ACTIONS);
      const to = action === 'move' || action === 'copy' ? { to: { ns: 'events', queue: 'c' } } : {};
      return {
        method: 'POST',
        path: '/operations',
        body: { action, source: { ns, queue: name }, where, ...to },
      };
    }
    case 22:
      return { method: 'DELETE', path: `/operations/${id}` };
    case 23: {
      const dst = [{ ns, queue: 'c', selector }];
      const body = { src: { ns: 'jobs', queue: 'a' }, dst, consumer: { reserve: random.chance(0.5) } };
      return { method: 'PUT', path: exchange, body };
    }
    default:
      return { method: 'DELETE', path: exchange };
  }
}

it(`Every request is answered although engine calls fail, and leaves no state behind, from seed ${SEED}`, async () => {
  const random = seededRandom(SEED);
  const engine = new FailingEngine(seededRandom(SEED + 1));
  const harness = await Harness.start({ engine: engine.underTest, maxElements: 3000, watches: true });
  const client = harness.client();
  const known: { ids: string[] } = { ids: [] };
  const statuses = new Map<number, number>();
  const make = async (call: Call, signal: AbortSignal | null): Promise<void> => {
    const { method, path, query = {}, headers = {} } = call;
    const isLines = Array.isArray(call.body);
    const body = isLines
      ? (call.body as object[]).map((line) => `${JSON.stringify(line)}\n`).join('')
      : JSON.stringify(call.body);
    const type = { 'content-type': isLines ? 'application/x-ndjson' : 'application/json' };
    const answer = await client.request(method, path, {
      query,
      headers: { ...(body !== undefined && type), ...headers },
      ...(body !== undefined && { body }),
      ...(signal !== null && { signal }),
    });
    const { status } = answer;
    statuses.set(status, (statuses.get(status) ?? 0) + 1);
    assert.notEqual(status, 500, `${method} ${path}: ${answer.body}`);
    const isJson = answer.headers['content-type']?.startsWith('application/json') === true;
    const given = isJson ? jsonOf<{ id?: unknown } | null>(answer)?.id : undefined;
    if (typeof given === 'string') known.ids = [given, ...known.ids.slice(0, 20)];
  };
  const wrong: string[] = [];
  const pending = new Set<Promise<void>>();
  for (let made = 0; made < REQUESTS; made++) {
    if (made % REQUESTS_A_WHILE === 0) engine.failing = random.pick(FAILING);
    if (made % 20 === 0) await harness.passTime(random.pick([10, 100, 1000, 3000]));
    const abortController = random.chance(0.05) ? new AbortController() : null;
    const call = anyCall(random, known);
    const request = make(call, abortController?.signal ?? null).catch((error: unknown) => {
      // An export is cut off if the engine fails in the middle.
      const isCutOff = abortController !== null || call.path.endsWith('/export');
      if (!isCutOff || error instanceof assert.AssertionError)
        wrong.push(`${call.method} ${call.path}: ${error}`);
    });
    const done = request.finally(() => pending.delete(done));
    pending.add(done);
    if (abortController !== null) {
      await turn();
      abortController.abort();
    }
    if (pending.size >= CONCURRENCY) await Promise.race(pending);
  }
  engine.failing = 0;
  while (pending.size > 0) {
    await harness.passTime(2000);
    await turn();
  }
  assert.deepEqual(wrong, []);
  assert.ok(engine.failures > REQUESTS / 50, `${engine.failures} calls failed`);
  assert.ok((statuses.get(200) ?? 0) > REQUESTS / 10, JSON.stringify([...statuses]));
  assert.equal((await client.insert('N', 'afterwards', 'x')).status, 200);
  assert.equal((await client.get('N', 'afterwards')).body.toString(), 'x');
  await harness.close();
  assert.deepEqual(harness.faults(), []);
});
