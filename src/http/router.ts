import findMyWay from 'find-my-way';
import { LIMITS } from '../model/limits.ts';
import { METHODS, type Method, type Route, type RouteMatch } from './route.ts';

/** Finds the route for a method and a path. */
export class Router {
  readonly #finder = findMyWay({
    // The name check rejects names that are too long, with an error that states the limit.
    maxParamLength: LIMITS.nameBytes * 100,
  });

  constructor(routes: readonly Route[]) {
    // Called before there are routes, so that those of a method are compiled at its first request. Compiling all of
    // them takes 4 % of the start.
    this.#finder.compile();
    for (const route of routes) this.#finder.on([...route.methods], route.path, NEVER_CALLED, route);
  }

  /** Takes a percent-encoded path without its query. Returns decoded parameters; null if no route matches. */
  find(method: string, path: string): RouteMatch | null {
    const found = this.#finder.find(method as Method, path);
    return found === null ? null : { route: found.store as Route, params: found.params };
  }

  /** The methods of a path, for `Allow`; empty if the path does not exist. */
  allowed(path: string): Method[] {
    return METHODS.filter((method) => this.#finder.find(method, path) !== null);
  }
}

/** The finder requires a handler for each route; only its `store` is used here. */
const NEVER_CALLED = (): void => {};
