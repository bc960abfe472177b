import { OPERATIONS, STORAGE_TIME_BUCKETS_S } from '../broker/meter.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { DiskUsage } from '../engine/engine.ts';
import { Histogram } from '../util/histogram.ts';
import { type Family, histogram, type MetricSample, scalar } from './family.ts';

/** What this node did since its start, and who waits here now. */
export function brokerFamilies(namespaces: readonly Namespace[]): Family[] {
  return [
    {
      name: 'quayside_operations_total',
      help: 'Operations on queues by namespace, kind and outcome: ok, or the code of the error.',
      type: 'counter',
      samples: namespaces.flatMap(operationSamples),
    },
    {
      name: 'quayside_waiting_consumers',
      help: 'Blocked gets on this node.',
      type: 'gauge',
      samples: namespaces.map((namespace) => ({
        labels: { namespace: namespace.name },
        value: waitingIn(namespace),
        namespaces: [namespace.name],
      })),
    },
    {
      name: 'quayside_configuration_conflicts',
      help: 'Options of a namespace that other nodes configure differently than this one.',
      type: 'gauge',
      samples: namespaces.map((namespace) => ({
        labels: { namespace: namespace.name },
        value: [...namespace.cluster.differences().values()].flat().length,
        namespaces: [namespace.name],
      })),
    },
    histogram(
      'quayside_storage_duration_seconds',
      'Time from asking an engine to its answer, by operation.',
      storageTimes(namespaces),
    ),
  ];
}

function waitingIn(namespace: Namespace): number {
  let waiting = 0;
  for (const ofUsers of namespace.waitingOfUsers().values()) waiting += ofUsers;
  return waiting;
}

function operationSamples({ name, meter }: Namespace): MetricSample[] {
  return [...meter.operations()].flatMap(([operation, outcomes]) =>
    [...outcomes].map(([outcome, value]) => ({
      labels: { namespace: name, operation, outcome },
      value,
      namespaces: [name],
    })),
  );
}

/** Of all namespaces together: the same engine serves several, and nine buckets for each would be too many series. */
function storageTimes(namespaces: readonly Namespace[]): Map<string, Histogram> {
  const sums = new Map<string, Histogram>();
  for (const operation of OPERATIONS) sums.set(operation, new Histogram(STORAGE_TIME_BUCKETS_S));
  for (const { meter } of namespaces) {
    for (const [operation, own] of meter.storageTimes()) sums.get(operation)?.add(own);
  }
  return sums;
}

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

/**
 * What every Prometheus dashboard asks of a process. Read at the scrape: the library's own collection keeps
 * a timer of 10 ms and one of 100 ms running for the life of the process.
 */
export function processFamilies(version: string): Family[] {
  const { user, system } = process.cpuUsage();
  const { rss, heapUsed, heapTotal, external } = process.memoryUsage();
  const { active } = performance.eventLoopUtilization();
  return [
    {
      name: 'quayside_build_info',
      help: 'The program and the Node.js that runs it.',
      type: 'gauge',
      samples: [{ labels: { version, node: process.version }, value: 1 }],
    },
    scalar(
      'counter',
      'process_cpu_seconds_total',
      'CPU time of all threads, user and system.',
      (user + system) / 1e6,
    ),
    scalar(
      'gauge',
      'process_start_time_seconds',
      'When the process started, Unix time.',
      performance.timeOrigin / 1000,
    ),
    scalar('gauge', 'process_resident_memory_bytes', 'Memory in RAM.', rss),
    scalar('gauge', 'nodejs_heap_size_used_bytes', 'Heap of the main thread in use.', heapUsed),
    scalar('gauge', 'nodejs_heap_size_total_bytes', 'Heap of the main thread.', heapTotal),
    scalar('gauge', 'nodejs_external_memory_bytes', 'Memory of buffers outside of the heap.', external),
    scalar(
      'counter',
      'nodejs_eventloop_active_seconds_total',
      'Time in which the event loop was busy.',
      active / 1000,
    ),
  ];
}
