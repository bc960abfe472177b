import type { Engine } from '../../src/engine/engine.ts';
import type { Storage } from '../../src/engine/storage.ts';

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
