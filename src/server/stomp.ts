import type { Config } from '../config/options.ts';
import type { TlsMaterial } from '../session/options.ts';
import { STOMP_DEFAULTS, type StompOptions, type StompParts } from '../stomp/options.ts';
import { StompServer } from '../stomp/server.ts';
import type { FrontEnd } from './front-ends.ts';
import { urlOf } from './listener.ts';

/** The STOMP front end, where the configuration gives it a port; else null. */
export function makeStomp(
  config: Config,
  tls: TlsMaterial | null,
  parts: Omit<StompParts, 'options'>,
): FrontEnd | null {
  const { port } = config.stomp;
  if (port === undefined) return null;
  const server = new StompServer({ ...parts, options: stompOptions(config, port, tls) });
  return {
    name: 'stomp',
    counts: server.counts,
    url: () => urlOf(tls === null ? 'stomp' : 'stomp+ssl', server.address),
    start: () => server.start(),
    stop: () => server.stop(),
    reloadTls: (material) => server.reloadTls(material),
    renewUsers: (renew) => server.renewUsers(renew),
  };
}

function stompOptions({ stomp, shutdown }: Config, port: number, tls: TlsMaterial | null): StompOptions {
  const { host, bodyLimit, maxSockets } = stomp;
  const drainMs = shutdown.deadline * 1000;
  return { ...STOMP_DEFAULTS, host, port, bodyLimit, maxSockets, tls, drainMs };
}
