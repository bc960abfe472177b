import { HTTP_DEFAULTS, type HttpOptions, type HttpParts } from '../../src/http/options.ts';
import { HttpServer } from '../../src/http/server.ts';
import type { SessionServer } from '../../src/session/server.ts';
import { webSocketUpgrades } from '../../src/session/websocket.ts';
import type { Clock } from '../../src/util/clock.ts';
import { SILENT_LOG } from './broker.ts';

/** The server that a WebSocket port serves, and its options. */
export interface WebSocketPortOptions {
  readonly server: SessionServer;
  readonly clock: Clock;
  readonly path: string;
  readonly maxMessageBytes?: number;
  readonly http?: Partial<HttpOptions>;
  /** Receives the records of the log. */
  readonly logged?: { fields: object; message: string }[];
}

/** Starts an HTTP server that serves one protocol over WebSocket; other requests wait forever or fail. */
export async function startWebSocketPort(given: WebSocketPortOptions): Promise<HttpServer> {
  const { server, clock, path, maxMessageBytes = 2_000_000, http, logged = [] } = given;
  const log = (fields: object, message: string): void => {
    logged.push({ fields, message });
  };
  const parts = {
    options: { ...HTTP_DEFAULTS, port: 0, ...http },
    log: { ...SILENT_LOG, warn: log, error: log, debug: () => {}, isLevelEnabled: () => false },
    clock,
    events: { drain: () => {} },
    broker: { questions: { register: () => {} } },
    authenticator: {
      recall: () => null,
      login: () => new Promise(() => {}),
      loginWithoutPassword: () => null,
    },
    upgrades: new Map([[path, webSocketUpgrades(server, maxMessageBytes)]]),
  };
  const port = new HttpServer(parts as unknown as HttpParts);
  await port.start();
  return port;
}
