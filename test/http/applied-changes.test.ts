import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { OptionsRecord } from '../../src/model/records.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { EngineUnderTest, TestEngine } from '../engines.ts';
import { betweenProcesses, brokerOn, plain } from '../support/broker.ts';
import { engineWithDefinitions } from '../support/engine-with.ts';
import { headerOf, jsonOf } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { Harness } from './harness.ts';

const NAMESPACES = [plain('N')];

describe('A change that another node has not applied yet', () => {
  let harness: Harness;
  let other: Broker;
  /** What the other node waits for before it reads a definition. */
  let held: PromiseWithResolvers<void>;
  /** How often it was asked to read the pause flag of a queue, which no test here changes. */
  let asked = 0;

  before(async () => {
    let shared: TestEngine | null = null;
    const engine: EngineUnderTest = {
      ...MEMORY_SQLITE,
      open: async (options) => {
        const opened = await MEMORY_SQLITE.open(options);
        shared = { ...opened, engine: betweenProcesses(opened.engine) };
        return shared;
      },
    };
    harness = await Harness.start({ engine, namespaces: NAMESPACES });
    const { engine: present } = shared ?? assert.fail();
    held = Promise.withResolvers();
    const hangs = engineWithDefinitions(present, (real) => ({
      get: async (kind, key) => {
        if (kind === 'queue') asked += 1;
        await held.promise;
        return real.get(kind, key);
      },
    }));
    const namespaces = NAMESPACES.map((policy) => ({ policy, engine: hangs }));
    other = brokerOn(namespaces, harness.opened.clock, 2);
    await other.start();
    await until(() => harness.broker.nodes().length === 2 && other.nodes().length === 2);
  });
  after(async () => {
    held.resolve();
    await other.stop();
    await harness.close();
  });

  it('is answered with the options that the request stored, whatever is stored while it waits', async () => {
    const client = harness.client();
    const changes: ReturnType<typeof client.setOptions>[] = [];
    for (const lease of [5, 9]) {
      changes.push(client.setOptions('N', 'q', { lease }));
      await until(() => asked === changes.length);
    }
    await harness.passTime(1_000);
    const [earlier, later] = await Promise.all(changes);
    assert.deepEqual(earlier && jsonOf<OptionsRecord>(earlier).stored, { lease: 5 });
    assert.deepEqual(later && jsonOf<OptionsRecord>(later).stored, { lease: 9 });
    const headers = { 'if-match': earlier ? headerOf(earlier, 'etag') : '' };
    const change = await client.request('PUT', '/q/N/q/options', { headers, body: '{"lease":7}' });
    assert.equal(change.status, 412);
  });
});
