import findMyWay from 'find-my-way';
import { LIMITS } from '../model/limits.ts';
import { METHODS, type Method, type Route, type RouteMatch } from './route.ts';

type Finder = ReturnType<typeof findMyWay>;

/**
 * Finders by the methods and paths of their routes, which are the same for all servers of a process: compiling them
 * takes 10 ms of processor time, and tests start hundreds of servers.
 */
const finders = new Map<string, Finder>();

/** Finds the route for a method and a path. */
export class Router {
  readonly #routes: readonly Route[];
  readonly #finder: Finder;

  constructor(routes: readonly Route[]) {
    this.#routes = routes;
    this.#finder = finderOf(routes);
  }

  /** Takes a percent-encoded path without its query. Returns decoded parameters; null if no route matches. */
  find(method: string, path: string): RouteMatch | null {
    const found = this.#finder.find(method as Method, path);
    return found === null ? null : { route: this.#routes[found.store.at] as Route, params: found.params };
  }

  /** The methods of a path, for `Allow`; empty if the path does not exist. */
  allowed(path: string): Method[] {
    return METHODS.filter((method) => this.#finder.find(method, path) !== null);
  }
}

/** The finder stores the position of each route. */
function finderOf(routes: readonly Route[]): Finder {
  const key = JSON.stringify(routes.map(({ methods, path }) => [methods, path]));
  const known = finders.get(key);
  if (known !== undefined) return known;
  const finder = findMyWay({
    // The name check rejects names that are too long, with an error that states the limit.
    maxParamLength: LIMITS.nameBytes * 100,
  });
  // Called before there are routes, so that those of a method are compiled at its first request. Compiling all of
  // them takes 4 % of the start.
  finder.compile();
  for (const [at, { methods, path }] of routes.entries()) finder.on([...methods], path, NEVER_CALLED, { at });
  finders.set(key, finder);
  return finder;
}

/** The finder requires a handler for each route; only its `store` is used here. */
const NEVER_CALLED = (): void => {};
