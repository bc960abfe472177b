import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { EndedSessions } from '../../src/access/ended-sessions.ts';
import type { Definitions } from '../../src/engine/definitions.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { openMemory } from '../engines/sqlite.ts';
import { plain, SILENT_LOG } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { until } from '../support/until.ts';

const HOUR = 3_600_000;

describe('Ended sessions of the console', () => {
  let engine: Engine;
  let clock: FakeClock;
  let here: EndedSessions;
  let there: EndedSessions;
  /** While set, writes of `here` fail as if the engine were unavailable. */
  let isUnavailable: boolean;
  let errors: string[];
  /** Pending writes of `here`, and the maximum of them so far. */
  let writing: number;
  let maxWriting: number;

  const node = (definitions: Definitions): EndedSessions =>
    new EndedSessions({
      namespaces: [{ definitions, isShared: true }],
      clock,
      random: () => 0.5,
      log: { ...SILENT_LOG, error: (_, message) => errors.push(message) },
    });

  beforeEach(async () => {
    clock = new FakeClock();
    isUnavailable = false;
    errors = [];
    engine = await openMemory({ namespaces: [plain('N')] }, clock);
    const real = engine.definitions;
    writing = 0;
    maxWriting = 0;
    here = node({
      get: (kind, key) => real.get(kind, key),
      list: (kind) => real.list(kind),
      delete: (kind, key, expected) => real.delete(kind, key, expected),
      watch: (listener) => real.watch(listener),
      put: async (kind, key, value, expected) => {
        if (isUnavailable) throw new QuaysideError('storage-unavailable', 'The engine is away.');
        writing += 1;
        maxWriting = Math.max(maxWriting, writing);
        return real.put(kind, key, value, expected).finally(() => {
          writing -= 1;
        });
      },
    });
    there = node(real);
    await Promise.all([here.start(), there.start()]);
  });
  afterEach(async () => {
    await Promise.all([here.stop(), there.stop()]);
    await engine.stop();
  });

  const sessionMarks = (id: string, startedAt = clock.now(), password = 'p') => ({ id, startedAt, password });
  /** Resolves when a node knows of the end of a session. */
  async function untilKnown(by: EndedSessions, id: string, startedAt?: number): Promise<void> {
    await until(() => by.has('ann', sessionMarks(id, startedAt)));
  }

  it('of many users who are removed together count on this node immediately, and are stored at most 32 at a time', async () => {
    const users = Array.from({ length: 1_000 }, (_, i) => `user ${i}`);
    const startedAt = clock.now();
    const stored = Promise.all(users.map((user) => here.end(user, { password: 'p' })));
    assert.ok(users.every((user) => here.has(user, sessionMarks('s', startedAt))));
    await stored;
    assert.ok(maxWriting > 1 && maxWriting <= 32, `${maxWriting} at once`);
    assert.equal((await engine.definitions.list('ended-sessions')).length, users.length);
  });

  it('are known to every node, even one that starts later, and affect no other session or user', async () => {
    await here.end('ann', { id: 's1', startedAt: clock.now() });
    assert.ok(here.has('ann', sessionMarks('s1')));
    await untilKnown(there, 's1');
    assert.ok(!there.has('ann', sessionMarks('s2')));
    assert.ok(!there.has('bob', sessionMarks('s1')));
    const late = node(engine.definitions);
    await late.start();
    assert.ok(late.has('ann', sessionMarks('s1')));
    await late.stop();
  });

  it('are all stored if two nodes end sessions concurrently', async () => {
    const startedAt = clock.now();
    const ids = Array.from({ length: 20 }, (_, i) => `s${i}`);
    await Promise.all(ids.map((id, i) => (i % 2 === 0 ? here : there).end('ann', { id, startedAt })));
    for (const by of [here, there]) for (const id of ids) await untilKnown(by, id);
    const late = node(engine.definitions);
    await late.start();
    assert.ok(ids.every((id) => late.has('ann', sessionMarks(id))));
    await late.stop();
  });

  it('stay ended when there are too many to remember each', async () => {
    const startTimes: number[] = [];
    const alive = sessionMarks('alive before them', clock.now());
    for (let i = 0; i < 150; i += 1) {
      clock.advance(1000);
      startTimes.push(clock.now());
      await here.end('ann', { id: `s${i}`, startedAt: clock.now() });
    }
    const stored = (await engine.definitions.get('ended-sessions', 'ann'))?.value;
    assert.ok(JSON.stringify(stored).length < 10_000, 'the stored value is bounded');
    await untilKnown(there, 's149', startTimes[149]);
    for (const by of [here, there]) {
      for (const [i, startedAt] of startTimes.entries())
        assert.ok(by.has('ann', sessionMarks(`s${i}`, startedAt)), `s${i}`);
      assert.ok(by.has('ann', alive), 'a session that started before the oldest ones has ended, too');
      assert.ok(!by.has('ann', sessionMarks('new', clock.now())));
    }
  });

  it('count on this node immediately if the engine is unavailable, and are stored once it is available', async () => {
    isUnavailable = true;
    await assert.rejects(here.end('ann', { id: 's1', startedAt: clock.now() }), {
      code: 'storage-unavailable',
    });
    assert.ok(here.has('ann', sessionMarks('s1')));
    clock.advance(1000);
    await turn();
    assert.ok(!there.has('ann', sessionMarks('s1')));
    isUnavailable = false;
    for (let i = 0; i < 1000 && !there.has('ann', sessionMarks('s1')); i += 1) {
      clock.advance(1000);
      await turn();
    }
    assert.ok(there.has('ann', sessionMarks('s1')));
  });

  it('are all sessions of a user after endAll, even on a node whose clock is ahead, but not later ones', async () => {
    const ahead = clock.now() + 30_000;
    await here.end('ann', 'all');
    await untilKnown(there, 'any');
    assert.ok(there.has('ann', sessionMarks('other', ahead)));
    const startedAt = there.startOf('ann', 'p');
    assert.ok(!here.has('ann', sessionMarks('next', startedAt)));
    assert.ok(!there.has('ann', sessionMarks('next', startedAt)));
  });

  it('are only those with the password that is ended', async () => {
    await here.end('ann', { password: 'p' });
    await untilKnown(there, 'any');
    assert.ok(!there.has('ann', sessionMarks('any', clock.now(), 'another')));
  });

  it('do not overwrite a stored value of an unknown format, and are stored once it is gone', async () => {
    const { definitions } = engine;
    const [startedAt, next] = [clock.now(), { sessions: [['s0', clock.now() + 1, 'logout']], before: 0 }];
    await definitions.put('ended-sessions', 'ann', next, null);
    await untilKnown(here, 's0');
    await assert.rejects(here.end('ann', { id: 's1', startedAt }), { code: 'storage-unavailable' });
    assert.ok(here.has('ann', sessionMarks('s1')), 'it counts on this node');
    const late = node(definitions);
    await late.start();
    await late.stop();
    assert.deepEqual((await definitions.get('ended-sessions', 'ann'))?.value, next);
    assert.match(errors.at(-1) ?? '', /unknown format and are left unchanged/);
    await definitions.delete('ended-sessions', 'ann', 'any');
    for (let i = 0; i < 1000 && !there.has('ann', sessionMarks('s1')); i += 1) {
      clock.advance(1000);
      await turn();
    }
    assert.ok(there.has('ann', sessionMarks('s1')));
  });

  it('are read in the form that was stored first, and stored in the one of now', async () => {
    const { definitions } = engine;
    const at = clock.now();
    const first = { sessions: [['s0', at + 1]], passwords: [['old', at + 1]], before: at - HOUR };
    await definitions.put('ended-sessions', 'ann', first, null);
    const late = node(definitions);
    await late.start();
    assert.ok(late.has('ann', sessionMarks('s0')));
    assert.ok(late.has('ann', sessionMarks('any', at, 'old')));
    assert.ok(late.has('ann', sessionMarks('any', at - HOUR - 1)));
    assert.ok(!late.has('ann', sessionMarks('any', at)));
    await late.end('ann', { id: 's1', startedAt: at });
    await late.stop();
    const ends = [
      ['s0', at + 1],
      ['old', at + 1],
      ['', at - HOUR],
      ['s1', at + 1],
    ];
    assert.deepEqual((await definitions.get('ended-sessions', 'ann'))?.value, { ends });
    assert.deepEqual(errors, []);
  });

  it('are forgotten once they would have expired anyway, and their definition is deleted at the next start', async () => {
    const startedAt = clock.now();
    await here.end('ann', { id: 's1', startedAt });
    clock.advance(13 * HOUR);
    const late = node(engine.definitions);
    await late.start();
    assert.equal(await engine.definitions.get('ended-sessions', 'ann'), null);
    assert.ok(!late.has('ann', sessionMarks('s1', startedAt)));
    await late.stop();
  });
});
