import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { DefinitionChange, Definitions, JsonValue } from '../../src/engine/definitions.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import type { EngineUnderTest } from '../engines.ts';
import { until } from '../support/until.ts';
import { Fixture } from './fixture.ts';

/** Every promise that the comments of `src/engine/definitions.ts` make. */
export function definitionsContract(name: string, open: EngineUnderTest['open']): void {
  describe(`Definitions port: ${name}`, () => {
    const on = new Fixture(open);
    const definitions = (): Definitions => on.opened.engine.definitions;
    const isConflict = (error: unknown): boolean =>
      error instanceof QuaysideError && error.code === 'definition-conflict';
    let keys = 0;
    const freshKey = (): string => `key ${++keys}`;

    it('returns a stored document with its version', async () => {
      const key = freshKey();
      assert.equal(await definitions().get('queue', key), null);
      const value = { paused: true, nested: [1, null, 'é', { a: 0.5 }], '': '' };
      const version = await definitions().put('queue', key, value, null);
      assert.deepEqual(await definitions().get('queue', key), { key, value, version });
    });

    it('returns every kind of JSON value unchanged', async () => {
      const values: JsonValue[] = ['text', 0, -1.5, true, false, null, [], {}, [[]], '"\\\u2028\u0000'];
      for (const value of values) {
        const key = freshKey();
        await definitions().put('exchange', key, value, null);
        assert.deepEqual((await definitions().get('exchange', key))?.value, value);
      }
    });

    it('lists the documents of one kind only, sorted by key', async () => {
      await on.alone(async ({ engine: { definitions: own } }) => {
        for (const key of ['b', 'a', 'é', "it's %", 'B']) await own.put('queue', key, key, null);
        await own.put('exchange', 'a', 'other kind', null);
        const listed = await own.list('queue');
        assert.deepEqual(
          listed.map(({ key }) => key),
          ['B', 'a', 'b', "it's %", 'é'],
        );
        assert.ok(listed.every(({ key, value }) => key === value));
        assert.deepEqual(
          (await own.list('exchange')).map(({ value }) => value),
          ['other kind'],
        );
      });
    });

    it('stores a key made of two names of maximum length and the separator of exchange ids', async () => {
      const key = `${freshKey()}${'i'.repeat(255)}\u001f${'n'.repeat(255)}`;
      const changed = Promise.withResolvers<void>();
      const end = definitions().watch((change) => {
        if (change.key === key) changed.resolve();
      });
      const version = await definitions().put('exchange', key, 1, null);
      await changed.promise;
      end();
      assert.deepEqual(await definitions().get('exchange', key), { key, value: 1, version });
      assert.ok((await definitions().list('exchange')).some((one) => one.key === key));
      assert.equal(await definitions().delete('exchange', key, version), true);
    });

    it('overwrites only the expected version, and changes the version with every write', async () => {
      const key = freshKey();
      const first = await definitions().put('queue', key, 1, null);
      await assert.rejects(definitions().put('queue', key, 2, null), isConflict);
      await assert.rejects(definitions().put('queue', key, 2, 'another version'), isConflict);
      const second = await definitions().put('queue', key, 1, first);
      assert.notEqual(second, first);
      await assert.rejects(definitions().put('queue', key, 3, first), isConflict);
      assert.equal((await definitions().get('queue', key))?.value, 1);
    });

    it("ignores the version if 'any' is expected", async () => {
      const key = freshKey();
      await definitions().put('queue', key, 'new', 'any');
      await definitions().put('queue', key, 'over', 'any');
      assert.equal((await definitions().get('queue', key))?.value, 'over');
      assert.equal(await definitions().delete('queue', key, 'any'), true);
      assert.equal(await definitions().delete('queue', key, 'any'), false);
    });

    it('deletes only the expected version', async () => {
      const key = freshKey();
      const version = await definitions().put('queue', key, 1, null);
      await assert.rejects(definitions().delete('queue', key, 'another version'), isConflict);
      assert.equal(await definitions().delete('queue', key, version), true);
      assert.equal(await definitions().get('queue', key), null);
    });

    it('lets exactly one of several concurrent writers succeed', async () => {
      const key = freshKey();
      const writers = Array.from({ length: 8 }, (_, index) => definitions().put('queue', key, index, null));
      const outcomes = await Promise.allSettled(writers);
      const winner = outcomes.findIndex(({ status }) => status === 'fulfilled');
      assert.equal(outcomes.filter(({ status }) => status === 'fulfilled').length, 1);
      assert.ok(outcomes.every((one) => one.status === 'fulfilled' || isConflict(one.reason)));
      assert.equal((await definitions().get('queue', key))?.value, winner);
    });

    it('notifies each watcher of a change once it is stored, until the watcher stops', async () => {
      const key = freshKey();
      const seen: DefinitionChange[] = [];
      const values: Promise<unknown>[] = [];
      const listener = (change: DefinitionChange): void => {
        seen.push(change);
        values.push(definitions().get(change.kind, change.key ?? ''));
      };
      const stops = [definitions().watch(listener), definitions().watch(listener)];
      await definitions().put('queue', key, 'stored', null);
      await until(() => seen.length >= 2);
      assert.deepEqual(seen, [
        { kind: 'queue', key },
        { kind: 'queue', key },
      ]);
      for (const read of await Promise.all(values)) {
        assert.equal((read as { value: unknown }).value, 'stored');
      }
      stops[0]?.();
      await definitions().delete('queue', key, 'any');
      await until(() => seen.length >= 3);
      stops[1]?.();
      await assert.rejects(definitions().put('queue', key, 1, 'missing'), isConflict);
      await definitions().put('queue', key, 1, 'any');
      await definitions().list('queue');
      assert.equal(seen.length, 3);
    });
  });
}
