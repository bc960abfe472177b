import type { HttpParts } from '../options.ts';
import type { Route } from '../route.ts';
import { batchRoutes } from './batches.ts';
import { browseRoutes } from './browse.ts';
import { consoleRoutes } from './console.ts';
import { definitionRoutes } from './definitions.ts';
import { elementRoutes, settlementRoutes } from './elements.ts';
import { eventRoutes } from './events.ts';
import { exchangeRoutes } from './exchanges.ts';
import { exportRoutes } from './export.ts';
import { findQueuesRoutes } from './find-queues.ts';
import { listingRoutes } from './listings.ts';
import { operationRoutes } from './operations.ts';
import { clientRoutes, operatorRoutes } from './operators.ts';
import { consumerRoutes, queueOptionsRoutes, queueRoutes } from './queues.ts';
import { takeRoutes } from './takes.ts';
import { tokenRoutes } from './tokens.ts';

/** Every route of this server: the one table that dispatch and the documents stand on. */
export function routeTable({ options, version }: Pick<HttpParts, 'options' | 'version'>): readonly Route[] {
  const routes: readonly Route[] = [
    ...listingRoutes,
    ...findQueuesRoutes,
    ...queueRoutes,
    ...queueOptionsRoutes,
    ...elementRoutes,
    ...settlementRoutes,
    ...takeRoutes,
    ...batchRoutes,
    ...consumerRoutes,
    ...clientRoutes,
    ...exchangeRoutes,
    ...exportRoutes,
    ...operationRoutes,
    ...definitionRoutes,
    ...eventRoutes,
    ...browseRoutes,
    ...(options.consoleFolder === null ? [] : consoleRoutes(options.consoleFolder)),
    ...tokenRoutes,
    ...operatorRoutes({ metricsWithoutLogin: options.metricsWithoutLogin, version, routes: () => routes }),
  ];
  return routes;
}
