import { AMQP_DEFAULTS, type AmqpOptions } from '../amqp/options.ts';
import { AmqpServer } from '../amqp/server.ts';
import type { Config } from '../config/options.ts';
import type { TlsMaterial } from '../util/log.ts';
import type { FrontEnd, FrontEndParts } from './front-ends.ts';
import { networksOf } from './networks.ts';
import { sessionFrontEnd } from './session-front-end.ts';

/** The AMQP front end, on the port that the configuration gives it. */
export function makeAmqp(
  config: Config,
  port: number,
  tls: TlsMaterial | null,
  parts: FrontEndParts,
): FrontEnd {
  const trustedProxies = networksOf(config.amqp.trustedProxies, ['amqp', 'trustedProxies'], parts.sourceOf);
  const server = new AmqpServer({ ...parts, options: { ...amqpOptions(config, port, tls), trustedProxies } });
  return sessionFrontEnd('amqp', tls === null ? 'amqp' : 'amqps', server);
}

function amqpOptions({ amqp, log, shutdown }: Config, port: number, tls: TlsMaterial | null): AmqpOptions {
  const { host, bodyLimit, maxSockets } = amqp;
  const drainMs = shutdown.deadline * 1000;
  return { ...AMQP_DEFAULTS, host, port, bodyLimit, maxSockets, tls, drainMs, logsAccess: log.access };
}
