import findMyWay from 'find-my-way';
import { LIMITS } from '../model/limits.ts';
import { METHODS, type Method, type Route } from './route.ts';

export interface RouteMatch {
  readonly route: Route;
  readonly params: Readonly<Record<string, string | undefined>>;
}

/** Finds the row of the table that a method and a path name. */
export class Router {
  readonly #finder = findMyWay({
    // A name that is too long gets a response that says so, from the name's own check.
    maxParamLength: LIMITS.nameBytes * 100,
  });

  constructor(routes: readonly Route[]) {
    for (const route of routes) {
      this.#finder.on([...route.methods], route.path, NEVER_CALLED, route);
    }
    this.#finder.compile();
  }

  /** `path` is as it came, without a query. Parameters are percent-decoded. Null: no such route. */
  find(method: string, path: string): RouteMatch | null {
    const found = this.#finder.find(method as Method, path);
    return found === null ? null : { route: found.store as Route, params: found.params };
  }

  /** The methods that a path takes, for `Allow`; none where there is no such path. */
  allowed(path: string): Method[] {
    return METHODS.filter((method) => this.#finder.find(method, path) !== null);
  }
}

/** The finder wants a handler with each route; here only its `store` is used. */
const NEVER_CALLED = (): void => {};

/** Whether a path is percent-encoded UTF-8. The finder says of one that is not that it knows no such route. */
export function isWellEncoded(path: string): boolean {
  try {
    decodeURIComponent(path);
    return true;
  } catch {
    return false;
  }
}
