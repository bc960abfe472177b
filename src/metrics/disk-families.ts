import type { DiskUsage } from '../engine/engine.ts';
import type { Family, MetricSample } from './family.ts';

/** An engine whose files are on a disk of this machine. */
export interface DiskSource {
  /** Its masked URL. */
  readonly engine: string;
  /** The namespaces that it serves. */
  readonly namespaces: readonly string[];
  readonly usage: () => Promise<DiskUsage>;
}

/** A disk that does not answer leaves its series out. */
export async function diskFamilies(sources: readonly DiskSource[]): Promise<Family[]> {
  const used: MetricSample[] = [];
  const free: MetricSample[] = [];
  await Promise.all(
    sources.map(async ({ engine, namespaces, usage }) => {
      const found = await usage().catch(() => null);
      if (found === null) return;
      used.push({ labels: { engine }, value: found.fileBytes, namespaces });
      free.push({ labels: { engine }, value: found.freeBytes, namespaces });
    }),
  );
  return [
    {
      name: 'quayside_storage_file_bytes',
      help: 'Size of the database and its log, of an engine with a file on this machine.',
      type: 'gauge',
      samples: used,
    },
    {
      name: 'quayside_storage_free_bytes',
      help: 'Free space of the disk that has the file.',
      type: 'gauge',
      samples: free,
    },
  ];
}
