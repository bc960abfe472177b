import type { SessionServer } from '../session/server.ts';
import type { FrontEnd } from './front-ends.ts';
import { urlOf } from './listener.ts';

/** A server whose clients keep a session, as one front end among the others. */
export function sessionFrontEnd(name: FrontEnd['name'], scheme: string, server: SessionServer): FrontEnd {
  return {
    name,
    counts: server.counts,
    url: () => urlOf(scheme, server.address),
    start: () => server.start(),
    stop: () => server.stop(),
    reloadTls: (material) => server.reloadTls(material),
    renewUsers: (renew) => server.renewUsers(renew),
  };
}
