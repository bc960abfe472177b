import type { Definitions } from '../../src/engine/definitions.ts';
import type { Engine } from '../../src/engine/engine.ts';
import type { Storage } from '../../src/engine/storage.ts';
import type { EngineUnderTest, OpenTestEngine, TestEngine } from '../engines.ts';

/** Returns the engine with some operations of its storage replaced; they may call the real ones. */
export function engineWith(engine: Engine, verbs: (real: Storage) => Partial<Storage>): Engine {
  const own: Partial<Storage> = verbs(engine.storage);
  const storage = new Proxy(engine.storage, {
    get(real, name) {
      if (name in own) return Reflect.get(own, name);
      const value = Reflect.get(real, name, real);
      return typeof value === 'function' ? value.bind(real) : value;
    },
  });
  return Object.create(engine, { storage: { value: storage } });
}

/** The same for operations of its definitions. */
export function engineWithDefinitions(
  engine: Engine,
  verbs: (real: Definitions) => Partial<Definitions>,
): Engine {
  const real = engine.definitions;
  const definitions: Definitions = {
    get: (kind, key) => real.get(kind, key),
    list: (kind) => real.list(kind),
    put: (kind, key, value, expected) => real.put(kind, key, value, expected),
    delete: (kind, key, expected) => real.delete(kind, key, expected),
    watch: (listener) => real.watch(listener),
    ...verbs(real),
  };
  return Object.create(engine, { definitions: { value: definitions } });
}

/** Returns the engine of a node that gets no notifications of changed definitions, and sees only what it reads. */
export function engineWithoutNotifications(engine: Engine): Engine {
  return engineWithDefinitions(engine, () => ({ watch: () => () => {} }));
}

/** An engine that supports neither expiry nor reasons, like `redis:list`. */
export function withoutExpiry(kind: EngineUnderTest): EngineUnderTest {
  const open = async (options: OpenTestEngine): Promise<TestEngine> => {
    const opened = await kind.open(options);
    const engine = engineWith(opened.engine, ({ capabilities }) => ({
      capabilities: { ...capabilities, expiry: false },
    }));
    return { ...opened, engine };
  };
  return { ...kind, open, openDurable: null };
}
