import type { Config } from '../config/options.ts';
import type { DiskSource } from '../metrics/disk-families.ts';
import { maskUrl } from '../util/mask.ts';
import type { EngineSet } from './engines.ts';

/** The engines with files on this machine, each with the namespaces that it serves: for metrics. */
export function disksOf({ namespaces }: Config, engines: EngineSet): DiskSource[] {
  return engines.all().flatMap((engine) => {
    const { disk, url } = engine;
    if (disk === undefined) return [];
    const served = Object.entries(namespaces).filter(([, config]) => engines.of(config) === engine);
    return [{ engine: maskUrl(url), namespaces: served.map(([name]) => name), usage: disk }];
  });
}
