import { nodeText, VariantConflict } from '../broker/agreement.ts';
import type { Broker } from '../broker/broker.ts';
import { ConfigError, pathText } from '../config/problem.ts';
import type { Service } from '../util/service.ts';
import type { SourceOf } from './users.ts';

/** The broker; what other nodes forbid is an error of the configuration that names it. */
export function startableBroker(broker: Broker, sourceOf: SourceOf): Service {
  return {
    start: () =>
      broker.start().catch((error: unknown) => {
        throw error instanceof VariantConflict ? variantError(error, sourceOf) : error;
      }),
    stop: () => broker.stop(),
  };
}

function variantError({ namespace, here, there, node }: VariantConflict, sourceOf: SourceOf): ConfigError {
  const path = ['namespaces', namespace, 'variant'];
  const problem = `is ${here}, and node ${nodeText(node)} serves the namespace as ${there}`;
  const remedy = 'Use the variant of the other nodes, or stop them first';
  return new ConfigError([{ source: sourceOf(path), path: pathText(path), problem, remedy }]);
}
