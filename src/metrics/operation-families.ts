import type { BulkOperations } from '../operations/operations.ts';
import type { Family } from './family.ts';

type Totals = ReturnType<BulkOperations['overview']>['running'];

/** The bulk operations: those that run, on any node, and what this node changed for them since its start. */
export function operationFamilies(operations: Pick<BulkOperations, 'overview'>): Family[] {
  const { running, changed } = operations.overview();
  return [
    {
      name: 'quayside_bulk_operations_running',
      help: 'Bulk operations that run, on any node, by the namespace of their source and action.',
      type: 'gauge',
      samples: samplesOf(running),
    },
    {
      name: 'quayside_bulk_operation_elements_total',
      help: 'Elements that bulk operations changed on this node, by the namespace of their source and action.',
      type: 'counter',
      samples: samplesOf(changed),
    },
  ];
}

function samplesOf(totals: Totals): Family['samples'] {
  return totals.map(({ ns, action, count }) => ({
    labels: { namespace: ns, action },
    value: count,
    namespaces: [ns],
  }));
}
