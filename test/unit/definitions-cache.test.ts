import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Definition, DefinitionChange, Definitions, JsonValue } from '../../src/engine/definitions.ts';
import { DefinitionsCache } from '../../src/engine/definitions-cache.ts';
import { FakeClock } from '../support/clock.ts';
import { followDefinitions } from '../support/followed-definitions.ts';

/** Definitions whose replies a test can delay, or replace by a failure. */
class HeldDefinitions implements Definitions {
  readonly stored = new Map<string, Definition>();
  failure: Error | null = null;
  #versions = 0;
  #held: (() => void)[] | null = null;
  #watcher: ((change: DefinitionChange) => void) | null = null;

  get(_: string, key: string): Promise<Definition | null> {
    const found = this.stored.get(key) ?? null;
    return this.#reply(found);
  }

  list(): Promise<Definition[]> {
    return this.#reply([...this.stored.values()]);
  }

  async put(_: string, key: string, value: JsonValue): Promise<string> {
    const version = String(++this.#versions);
    this.stored.set(key, { key, value, version });
    return version;
  }

  async delete(_: string, key: string): Promise<boolean> {
    return this.stored.delete(key);
  }

  watch(listener: (change: DefinitionChange) => void): () => void {
    this.#watcher = listener;
    return () => {
      this.#watcher = null;
    };
  }

  notify(key: string | null): void {
    this.#watcher?.({ kind: 'queue', key });
  }

  /** Delays all replies until `release`, which sends the last one first if `reversed`. */
  hold(): void {
    this.#held = [];
  }

  release(reversed = false): void {
    const held = this.#held ?? [];
    this.#held = null;
    for (const reply of reversed ? held.reverse() : held) reply();
  }

  #reply<T>(value: T): Promise<T> {
    if (this.failure !== null) return Promise.reject(this.failure);
    const { promise, resolve } = Promise.withResolvers<T>();
    if (this.#held === null) resolve(value);
    else this.#held.push(() => resolve(value));
    return promise;
  }
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('A cache of definitions', () => {
  it('reads the definitions that changed, or all of them if notifications were lost', async () => {
    const definitions = new HeldDefinitions();
    const { cache, read } = followDefinitions(definitions, new FakeClock());
    for (const key of ['a', 'b', 'c']) await definitions.put('', key, key);
    definitions.notify('b');
    await cache.idle();
    assert.deepEqual(read.splice(0), ['b']);
    definitions.notify(null);
    await cache.idle();
    assert.deepEqual(read.splice(0).sort(), ['a', 'b', 'c']);
    definitions.stored.delete('b');
    definitions.notify(null);
    await cache.idle();
    assert.deepEqual(read.sort(), ['-b', 'a', 'c']);
    assert.deepEqual(cache.keys().sort(), ['a', 'c']);
  });

  it('retries failed reads, and reports each once', async () => {
    const clock = new FakeClock();
    const definitions = new HeldDefinitions();
    const { cache, read, failures } = followDefinitions(definitions, clock);
    await definitions.put('', 'a', 1);
    definitions.failure = new Error('unavailable');
    definitions.notify('a');
    definitions.notify(null);
    for (let i = 0; i < 5; i++) {
      await turn();
      clock.advance(1_000);
    }
    await turn();
    assert.equal(failures.length, 2);
    assert.deepEqual(read, []);
    definitions.failure = null;
    clock.advance(1_000);
    await turn();
    assert.deepEqual(cache.get('a')?.value, 1);
    cache.stop();
    assert.equal(clock.pending, 0);
  });

  it('is idle again after a list could not be applied', async () => {
    const definitions = new HeldDefinitions();
    const refused = new Error('not this one');
    const onRead = (): never => {
      throw refused;
    };
    const cache = new DefinitionsCache({
      definitions,
      kind: 'queue',
      clock: new FakeClock(),
      onRead,
      onFailedRead: () => {},
    });
    await definitions.put('', 'a', 1);
    await assert.rejects(cache.reload(), refused);
    await cache.idle();
  });

  it('is not overwritten by a list that is older than a change by this node', async () => {
    const definitions = new HeldDefinitions();
    const { cache } = followDefinitions(definitions, new FakeClock());
    const version = await definitions.put('', 'old', 1);
    definitions.hold();
    const reloaded = cache.reload();
    cache.note('old', null);
    cache.note('new', { key: 'new', value: 2, version });
    definitions.release();
    await reloaded;
    assert.deepEqual(cache.keys(), ['new']);
  });

  it('keeps the later of two reads, whichever reply comes first', async () => {
    for (const reversed of [false, true]) {
      const definitions = new HeldDefinitions();
      const { cache } = followDefinitions(definitions, new FakeClock());
      await definitions.put('', 'a', 'before');
      definitions.hold();
      const reads = [cache.read('a'), cache.reload()];
      await definitions.put('', 'a', 'after');
      reads.push(cache.read('a'));
      definitions.release(reversed);
      await Promise.all(reads);
      assert.equal(cache.get('a')?.value, 'after', `reversed: ${reversed}`);
    }
  });

  it('reads again if this node changed a definition during the read', async () => {
    const definitions = new HeldDefinitions();
    const { cache } = followDefinitions(definitions, new FakeClock());
    await definitions.put('', 'a', 'before');
    definitions.hold();
    const reading = cache.read('a');
    const version = await definitions.put('', 'a', 'after');
    cache.note('a', { key: 'a', value: 'after', version });
    definitions.release();
    assert.equal((await reading)?.value, 'after');
    assert.equal(cache.get('a')?.value, 'after');
  });

  it('is not overwritten by a late reply with an older state', async () => {
    const definitions = new HeldDefinitions();
    const { cache } = followDefinitions(definitions, new FakeClock());
    const before = { key: 'a', value: 'before', version: '1' };
    const after = { key: 'a', value: 'after', version: '2' };
    const [first, second] = [Promise.withResolvers<Definition>(), Promise.withResolvers<Definition>()];
    const replies = [first.promise, second.promise];
    definitions.get = () => replies.shift() ?? Promise.resolve(after);
    const reads = [cache.read('a'), cache.read('a')];
    cache.note('a', after);
    first.resolve(after);
    await reads[0];
    second.resolve(before);
    await reads[1];
    assert.equal(cache.get('a')?.value, 'after');
  });
});
