import assert from 'node:assert/strict';
import { it } from 'node:test';
import { loadEngines } from '../../src/app/engines.ts';
import { namespaceSetups } from '../../src/app/namespaces.ts';
import type { NamespaceSetup } from '../../src/broker/ports.ts';
import type { Config, NamespaceConfig } from '../../src/config/options.ts';
import { systemClock } from '../../src/util/clock.ts';
import { SILENT_LOG } from '../support/broker.ts';

const GIB = 2 ** 30;
const USUAL = { variant: 'simple', lease: 120, maxQueues: 1, maxExchanges: 1, maxGroups: 1 } as const;

async function setupsOf(namespaces: Record<string, NamespaceConfig>): Promise<NamespaceSetup[]> {
  const engines = await loadEngines(
    { namespaces, dataDir: '/nowhere', dedup: { window: 1 } },
    { clock: systemClock, log: SILENT_LOG, errorAt: () => assert.fail('the engines can be opened') },
  );
  return namespaceSetups({ namespaces } as unknown as Config, engines, SILENT_LOG);
}

it('a lease of a namespace is a whole number of milliseconds, at least one, as engines store it', async () => {
  const url = 'sqlite:leases.db';
  const leases = { usual: 120, fraction: 1.0005, tiny: 0.0001 };
  const namespaces = Object.entries(leases).map(([name, lease]) => [name, { ...USUAL, url, lease }] as const);
  const setups = await setupsOf(Object.fromEntries(namespaces));
  assert.deepEqual(
    setups.map(({ leaseMs }) => leaseMs),
    [120_000, 1_001, 1],
  );
});

it('a namespace in memory is bounded to 1 GiB by default, and others have no default bound', async () => {
  const setups = await setupsOf({
    memory: { ...USUAL, url: 'sqlite::memory:' },
    file: { ...USUAL, url: 'sqlite:bounds.db' },
    bounded: { ...USUAL, url: 'sqlite:bounded.db', maxElements: 5, maxBytes: 2_000_000 },
  });
  assert.deepEqual(
    setups.map(({ maxElements, maxBytes }) => [maxElements, maxBytes]),
    [
      [null, GIB],
      [null, null],
      [5, 2_000_000],
    ],
  );
});
