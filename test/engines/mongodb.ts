import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { MongoClient } from 'mongodb';
import type { Engine } from '../../src/engine/engine.ts';
import type { Storage } from '../../src/engine/storage.ts';
import { open } from '../../src/engines/mongodb/index.ts';
import { GivenTime } from '../../src/engines/mongodb/settings.ts';
import type { DurableTestEngine, EngineUnderTest, OpenTestEngine } from '../engines.ts';
import { FakeClock } from '../support/clock.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { CountingClock, SILENT } from './postgres.ts';

/**
 * A replica set of one member under its own address, such as mongodb://127.0.0.1:27017. No script of the project
 * starts one: where this is not set, the engine is not in the list of engines, and nothing of it is tested but what
 * needs no server.
 */
export const MONGODB_URL = process.env.TEST_MONGODB_URL ?? null;

const DAY_MS = 24 * 3600 * 1000;

/**
 * The command by which a call takes effect, as it goes over the wire: a write to the elements that is not part
 * of a transaction, or the commit of one.
 */
const DECISIVE = /.(?:insert|update)\0.{4}elements\0(?!.*autocommit\0)|.commitTransaction\0/s;

export const MONGODB: EngineUnderTest = {
  name: 'mongodb',
  type: 'mongodb',
  open: (options) => openDurable(options, freshDatabase(), startingNow()),
  openDurable: (options) => openDurable(options, freshDatabase(), startingNow()),
};

/** A name that no other engine has. */
export function freshDatabase(): string {
  return `quayside-test-${randomBytes(6).toString('hex')}`;
}

/** The test server's URL for a database, or a proxy's before it. */
export function urlOf(database: string, port?: number): string {
  const url = new URL(MONGODB_URL ?? '');
  if (port !== undefined) url.host = `127.0.0.1:${port}`;
  url.pathname = `/${database}`;
  // A member of a replica set answers for all addresses of the set, and the proxy's is none of them.
  url.searchParams.set('directConnection', 'true');
  if (url.username !== '' && !url.searchParams.has('authSource')) url.searchParams.set('authSource', 'admin');
  return url.href;
}

/** Not before the server's own time: it deletes by that what has expired. */
function startingNow(): FakeClock {
  return new FakeClock(Date.now());
}

/** Runs something beside the engines. */
export async function withClient<T>(run: (client: MongoClient) => Promise<T>): Promise<T> {
  const client = new MongoClient(urlOf('admin'));
  try {
    return await run(client);
  } finally {
    await client.close();
  }
}

async function openDurable(
  { namespaces, dedupWindowMs = DAY_MS }: OpenTestEngine,
  database: string,
  clock: FakeClock,
): Promise<DurableTestEngine> {
  const proxy = await TcpProxy.start(Number(new URL(urlOf(database)).port || 27017));
  const timers = new CountingClock();
  const engine = open({
    url: urlOf(database, proxy.port),
    dataDir: '',
    namespaces,
    clock: timers,
    dedupWindowMs,
    settings: { givenTime: new GivenTime(() => clock.now()) },
    log: SILENT,
  });
  await engine.start();
  const dying = new Dying(engine);
  const end = async (): Promise<void> => {
    await engine.stop();
    await proxy.stop();
    assert.equal(timers.pending, 0, 'a stopped engine leaves no timer');
  };
  return {
    engine: dying.engine,
    clock,
    now: () => clock.now(),
    passTime: async (ms) => clock.advance(Math.max(0, Math.ceil(ms))),
    close: async () => {
      await end();
      await withClient((client) => client.db(database).dropDatabase());
    },
    crash: async (moment, calls) => {
      const caught = proxy.catch(DECISIVE, moment === 'before-commit' ? 'deaf' : 'mute');
      const answered = dying.begin();
      calls();
      // A call that has nothing to change sends no such command.
      await Promise.race([caught, answered]);
      proxy.state = 'dark';
      // Nobody waits for the dead: it gives its calls up in its own time.
      const buried = end();
      // What a dead node's transaction holds is otherwise free only when the server gives it up, after a minute.
      await withClient((client) => client.db('admin').command({ killAllSessions: [] }));
      clock.advance(1);
      const next = await openDurable({ namespaces, dedupWindowMs }, database, clock);
      return { ...next, close: async () => void (await Promise.all([next.close(), buried])) };
    },
  };
}

/** An engine whose process is about to die: from one moment on nobody hears its answers. */
class Dying {
  readonly engine: Engine;
  #answered: (() => void) | null = null;

  constructor(engine: Engine) {
    const storage = new Proxy(engine.storage, {
      get: (target, name) => {
        const value: unknown = Reflect.get(target, name, target);
        if (typeof value !== 'function') return value;
        return (...args: unknown[]) => this.#hear(value.apply(target, args) as Promise<unknown>);
      },
    }) as Storage;
    this.engine = {
      type: engine.type,
      url: engine.url,
      storage,
      definitions: engine.definitions,
      signaller: engine.signaller,
      stats: engine.stats,
      failed: engine.failed,
      start: () => engine.start(),
      stop: () => engine.stop(),
      ping: () => engine.ping(),
    };
  }

  /** Resolves when the next call has been answered, unheard. */
  begin(): Promise<void> {
    return new Promise((resolve) => {
      this.#answered = resolve;
    });
  }

  #hear(answer: Promise<unknown>): Promise<unknown> {
    const answered = this.#answered;
    if (answered === null) return answer;
    answer.then(answered, answered);
    return new Promise(() => {});
  }
}
