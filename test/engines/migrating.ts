import { MigratingStorage } from '../../src/broker/migrating-storage.ts';
import type { Definitions } from '../../src/engine/definitions.ts';
import type { Engine } from '../../src/engine/engine.ts';
import type { Storage } from '../../src/engine/storage.ts';
import type { EngineUnderTest, OpenTestEngine, TestEngine } from '../engines.ts';
import { FakeClock } from '../support/clock.ts';
import { openMemory } from './sqlite.ts';

/** Two engines and the storage that joins them during a migration. */
export interface JoinedEngines {
  readonly from: Engine;
  readonly to: Engine;
  readonly storage: MigratingStorage;
  readonly clock: FakeClock;
  close(): Promise<void>;
}

/** Opens two in-memory engines with one clock, joined. */
export async function openJoined(options: OpenTestEngine): Promise<JoinedEngines> {
  const clock = new FakeClock();
  const [old, next] = [await openMemory(options, clock), await openMemory(options, clock)];
  const storage = new MigratingStorage({ from: old.storage, to: next.storage });
  return {
    from: old,
    to: next,
    storage,
    clock,
    close: async () => {
      await Promise.all([old.stop(), next.stop()]);
    },
  };
}

/** An engine whose storage joins two engines. @param inserts the engine that stores the elements that a test inserts */
export function migratingEngine(inserts: 'old' | 'new'): EngineUnderTest {
  return {
    name: `migrating, elements in the ${inserts} engine`,
    type: 'sqlite',
    open: async (options): Promise<TestEngine> => {
      const { from, to, storage, clock, close } = await openJoined(options);
      return {
        engine: {
          ...portsOf(inserts === 'new' ? to : from),
          definitions: inserts === 'new' ? to.definitions : inBoth(from.definitions, to.definitions),
          storage: inserts === 'new' ? storage : insertingInto(from.storage, storage),
        },
        clock,
        now: () => clock.now(),
        passTime: async (ms) => clock.advance(ms),
        close,
      };
    },
    openDurable: null,
  };
}

/**
 * Definitions of the old engine; changes are written to the new one as well, as in a namespace that is being migrated.
 */
function inBoth(old: Definitions, next: Definitions): Definitions {
  return {
    get: (kind, key) => old.get(kind, key),
    list: (kind) => old.list(kind),
    put: async (kind, key, value, expected) => {
      await next.put(kind, key, value, 'any');
      return old.put(kind, key, value, expected);
    },
    delete: async (kind, key, expected) => {
      await next.delete(kind, key, 'any');
      return old.delete(kind, key, expected);
    },
    watch: (listener) => old.watch(listener),
  };
}

function portsOf(engine: Engine): Omit<Engine, 'storage'> {
  const { type, url, definitions, signaller, stats, failed } = engine;
  return {
    type,
    url,
    definitions,
    signaller,
    stats,
    failed,
    ping: () => engine.ping(),
    start: () => engine.start(),
    stop: () => engine.stop(),
  };
}

/** The joined storage, except that inserts go to the old engine, as before a migration. */
function insertingInto(old: Storage, joined: Storage): Storage {
  return new Proxy(joined, {
    get(target, name) {
      const owner = name === 'insert' ? old : target;
      const value: unknown = Reflect.get(owner, name);
      return typeof value === 'function' ? value.bind(owner) : value;
    },
  });
}
