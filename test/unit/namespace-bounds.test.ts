import assert from 'node:assert/strict';
import { it } from 'node:test';
import { loadEngines } from '../../src/app/engines.ts';
import { namespaceSetups } from '../../src/app/namespaces.ts';
import type { Config, NamespaceConfig } from '../../src/config/options.ts';
import { systemClock } from '../../src/util/clock.ts';
import { SILENT_LOG } from '../support/broker.ts';

const GIB = 2 ** 30;

it('a namespace in memory is bounded to 1 GiB by default, and others have no default bound', async () => {
  const usual = { variant: 'simple', lease: 120, maxQueues: 1, maxExchanges: 1, maxGroups: 1 } as const;
  const namespaces: Record<string, NamespaceConfig> = {
    memory: { ...usual, url: 'sqlite::memory:' },
    file: { ...usual, url: 'sqlite:bounds.db' },
    bounded: { ...usual, url: 'sqlite:bounded.db', maxElements: 5, maxBytes: 2_000_000 },
  };
  const engines = await loadEngines(
    { namespaces, dataDir: '/nowhere', dedup: { window: 1 } },
    { clock: systemClock, log: SILENT_LOG, errorAt: () => assert.fail('the engines can be opened') },
  );
  const setups = namespaceSetups({ namespaces } as unknown as Config, engines, SILENT_LOG);
  assert.deepEqual(
    setups.map(({ maxElements, maxBytes }) => [maxElements, maxBytes]),
    [
      [null, GIB],
      [null, null],
      [5, 2_000_000],
    ],
  );
});
