import { OPERATIONS, STORAGE_TIME_BUCKETS_S } from '../broker/meter.ts';
import type { Namespace } from '../broker/namespace.ts';
import { Histogram } from '../util/histogram.ts';
import type { Family, MetricSample } from './family.ts';
import { histogram } from './family.ts';

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
        value: [...namespace.differences().values()].flat().length,
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
