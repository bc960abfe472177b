import { type Family, scalar } from './family.ts';

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
