import type { HttpParts } from '../options.ts';
import type { Route } from '../route.ts';
import { backupRoutes } from './backups.ts';
import { consumerRoutes } from './consumers.ts';
import { elementRoutes } from './elements.ts';
import { exchangeRoutes } from './exchanges.ts';
import { listingRoutes } from './listings.ts';
import { operatorRoutes } from './operators.ts';
import { queueRoutes } from './queues.ts';
import { settlementRoutes } from './settlements.ts';

/** Every route of this server: the one table that dispatch and the documents stand on. */
export function routeTable({ options, version }: Pick<HttpParts, 'options' | 'version'>): readonly Route[] {
  const routes: Route[] = [
    ...listingRoutes,
    ...queueRoutes,
    ...elementRoutes,
    ...settlementRoutes,
    ...consumerRoutes,
    ...exchangeRoutes,
    ...backupRoutes,
  ];
  routes.push(
    ...operatorRoutes({ metricsWithoutLogin: options.metricsWithoutLogin, version, routes: () => routes }),
  );
  return routes;
}
