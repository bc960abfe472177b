import type { Config } from '../config/options.ts';
import { STOMP_DEFAULTS, type StompOptions } from '../stomp/options.ts';
import { StompServer } from '../stomp/server.ts';
import type { TlsMaterial } from '../util/log.ts';
import type { FrontEnd, FrontEndParts } from './front-ends.ts';
import { networksOf } from './networks.ts';
import { sessionFrontEnd } from './session-front-end.ts';

/** The STOMP front end, on the port that the configuration gives it. */
export function makeStomp(
  config: Config,
  port: number,
  tls: TlsMaterial | null,
  parts: FrontEndParts,
): FrontEnd {
  const trustedProxies = networksOf(config.stomp.trustedProxies, ['stomp', 'trustedProxies'], parts.sourceOf);
  const server = new StompServer({
    ...parts,
    options: { ...stompOptions(config, port, tls), trustedProxies },
  });
  return sessionFrontEnd('stomp', tls === null ? 'stomp' : 'stomp+ssl', server);
}

function stompOptions({ stomp, log, shutdown }: Config, port: number, tls: TlsMaterial | null): StompOptions {
  const { host, bodyLimit, maxSockets, trailingNewline } = stomp;
  const drainMs = shutdown.deadline * 1000;
  return {
    ...STOMP_DEFAULTS,
    host,
    port,
    bodyLimit,
    maxSockets,
    trailingNewline,
    tls,
    drainMs,
    logsAccess: log.access,
  };
}
