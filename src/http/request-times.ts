import { Histogram } from '../util/histogram.ts';
import type { Route } from './route.ts';

/** Upper bounds in seconds. The last ones are for gets that wait. */
const REQUEST_TIME_BUCKETS_S = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10, 60];
/** The operation of requests that no route took: without a login, or to a path that does not exist. */
const UNMATCHED = 'unmatched';

/** How long requests took, from their head to their response being written, by operation. */
export class RequestTimes {
  readonly byOperation: ReadonlyMap<string, Histogram>;

  constructor(routes: readonly Pick<Route, 'id'>[]) {
    const ids = [...routes.map(({ id }) => id), UNMATCHED];
    this.byOperation = new Map(ids.map((id) => [id, new Histogram(REQUEST_TIME_BUCKETS_S)]));
  }

  observe(route: Pick<Route, 'id'> | null, seconds: number): void {
    this.byOperation.get(route?.id ?? UNMATCHED)?.observe(seconds);
  }
}
