import type { Networks } from '../access/networks.ts';
import type { Clock } from '../util/clock.ts';
import type { FrontEndLog } from '../util/log.ts';
import type { TlsMaterial } from '../util/sockets.ts';

/** What every front end with sessions lets an operator set, checked by `config` before. */
export interface ListenerOptions {
  readonly host: string;
  /** 0: any free port; see `SessionServer.address`. */
  readonly port: number;
  /** PEM contents; null: plain TCP. */
  readonly tls: TlsMaterial | null;
  /** Proxies whose connections begin with a PROXY protocol header. */
  readonly trustedProxies: Networks;
  /** Connections kept at once; further ones are closed when they come. */
  readonly maxSockets: number;
  /** Whether each connection is logged when it has ended. */
  readonly logsAccess: boolean;
  /** How long `stop` waits for sessions to end before it cuts their connections, ms. */
  readonly drainMs: number;
}

export interface ListenerParts {
  readonly options: ListenerOptions;
  readonly log: FrontEndLog;
  readonly clock: Clock;
}
