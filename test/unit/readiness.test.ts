import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { Readiness } from '../../src/app/readiness.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { FakeClock } from '../support/clock.ts';

const URL = 'redis://***@r:6379';
/** The default timeout of a probe of Kubernetes. */
const PROBE_MS = 1_000;

describe('Readiness', () => {
  it('checks every engine, and shows the worst state of those with the same name', async () => {
    const readiness = new Readiness(new FakeClock());
    const up = { ping: async () => {} } as Engine;
    const away = { ping: () => Promise.reject(new Error('away')) } as unknown as Engine;
    for (const engine of [up, away, up]) readiness.watch(URL, engine);
    readiness.watch('sqlite:N.db', up);
    readiness.open();
    assert.deepEqual(await readiness.report(), {
      ready: true,
      checks: { node: 'ok', [URL]: 'away', 'sqlite:N.db': 'ok' },
    });
  });

  it('does not require an answer of every engine with the same name', async () => {
    const readiness = new Readiness(new FakeClock());
    readiness.watch(URL, { ping: async () => {} } as Engine);
    readiness.watch(URL, { ping: () => Promise.reject(new Error('away')) } as unknown as Engine);
    readiness.open();
    assert.equal((await readiness.report()).ready, true);
  });

  it('pings an engine once for concurrent reports, and again for later ones', async () => {
    const clock = new FakeClock();
    const readiness = new Readiness(clock);
    let pings = 0;
    let answer = Promise.withResolvers<void>();
    const engine = {
      ping: () => {
        pings += 1;
        return answer.promise;
      },
    } as unknown as Engine;
    readiness.watch(URL, engine);
    readiness.open();
    const reports = Array.from({ length: 100 }, () => readiness.report());
    answer.resolve();
    for (const { ready } of await Promise.all(reports)) assert.equal(ready, true);
    assert.equal(pings, 1);
    answer = Promise.withResolvers();
    const late = readiness.report();
    clock.advance(PROBE_MS);
    assert.equal((await late).ready, false);
    const recovered = readiness.report();
    answer.resolve();
    assert.equal((await recovered).ready, true, 'the ping without an answer is not waited for again');
    assert.equal(pings, 3);
  });

  it('is reported before a probe times out although an engine does not answer', async () => {
    const clock = new FakeClock();
    const readiness = new Readiness(clock);
    readiness.watch(URL, { ping: () => new Promise<void>(() => {}) } as Engine);
    readiness.open();
    const report = readiness.report();
    clock.advance(PROBE_MS - 100);
    assert.deepEqual(await report, { ready: false, checks: { node: 'ok', [URL]: 'does not answer' } });
    assert.equal(clock.pending, 0);
  });

  it('distinguishes slow engines from healthy ones, and shows the disk of engines with local files', async () => {
    const clock = new FakeClock();
    const readiness = new Readiness(clock);
    const usage = { fileBytes: 1, freeBytes: 2, minFreeBytes: 3 };
    const quick = { type: 'sqlite', ping: async () => {}, disk: async () => usage } as unknown as Engine;
    const { promise, resolve } = Promise.withResolvers<void>();
    const late = { type: 'redis', ping: () => promise } as unknown as Engine;
    const away = { type: 'redis', ping: () => Promise.reject(new Error('away')) } as unknown as Engine;
    readiness.watch('sqlite:N.db', quick);
    readiness.watch(URL, { ...late, ping: async () => {} } as Engine);
    readiness.watch(URL, late);
    readiness.watch('redis://gone', away);
    const engines = readiness.engines();
    await turn();
    clock.advance(300);
    resolve();
    assert.deepEqual(await engines, [
      {
        engine: 'redis://gone',
        type: 'redis',
        state: 'unavailable',
        check: 'away',
        pingMs: null,
        disk: null,
      },
      { engine: URL, type: 'redis', state: 'slow', check: 'ok', pingMs: 300, disk: null },
      { engine: 'sqlite:N.db', type: 'sqlite', state: 'healthy', check: 'ok', pingMs: 0, disk: usage },
    ]);
  });
});
