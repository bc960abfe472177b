import type { Definitions } from '../../src/engine/definitions.ts';
import type { Engine } from '../../src/engine/engine.ts';
import type { Storage } from '../../src/engine/storage.ts';
import type { EngineUnderTest, OpenTestEngine, TestEngine } from '../engines.ts';

/** The engine, with some verbs of its storage as a test has them; they may call those of the real one. */
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

/** The same for verbs of its definitions. */
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

/**
 * The engine as a node has it whose news of definitions are late: it gets no notification of changes, and finds what it
 * reads.
 */
export function engineWithoutNews(engine: Engine): Engine {
  return engineWithDefinitions(engine, () => ({ watch: () => () => {} }));
}

/** An engine that keeps neither expiries nor reasons, as `redis:list` is. */
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
