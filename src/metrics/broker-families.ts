import type { Broker } from '../broker/broker.ts';
import { type Meter, STORAGE_TIME_BUCKETS_S, type StorageTime } from '../broker/meter.ts';
import { type Family, type Sample, scalar } from './family.ts';

const STORAGE_TIME = 'quayside_storage_duration_seconds';

/** What the broker counted since the start, and who waits now. */
export function brokerFamilies(broker: Broker): Family[] {
  return [
    operations(broker.meter),
    scalar('gauge', 'quayside_waiting_consumers', 'Blocked gets on this node.', broker.admission.waiting),
    storageTimes(broker.meter),
  ];
}

function operations(meter: Meter): Family {
  const samples: Sample[] = [];
  for (const [operation, outcomes] of meter.operations()) {
    for (const [outcome, value] of outcomes) samples.push({ labels: { operation, outcome }, value });
  }
  return {
    name: 'quayside_operations_total',
    help: 'Operations on queues by kind and outcome: ok, or the code of the error.',
    type: 'counter',
    samples,
  };
}

function storageTimes(meter: Meter): Family {
  return {
    name: STORAGE_TIME,
    help: 'Time from asking an engine to its answer, by operation.',
    type: 'histogram',
    samples: [...meter.storageTimes()].flatMap(([operation, time]) => histogramSamples(operation, time)),
  };
}

/** Buckets are kept apart and shown added up, as the format wants them. */
function histogramSamples(operation: string, { counts, sumS, count }: StorageTime): Sample[] {
  let upTo = 0;
  const buckets = STORAGE_TIME_BUCKETS_S.map((le, i) => {
    upTo += counts[i] ?? 0;
    return { metricName: `${STORAGE_TIME}_bucket`, labels: { operation, le }, value: upTo };
  });
  return [
    ...buckets,
    { metricName: `${STORAGE_TIME}_bucket`, labels: { operation, le: '+Inf' }, value: count },
    { metricName: `${STORAGE_TIME}_sum`, labels: { operation }, value: sumS },
    { metricName: `${STORAGE_TIME}_count`, labels: { operation }, value: count },
  ];
}
