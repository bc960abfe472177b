import { createServer, type Server } from 'node:http';
import { createServer as createTlsServer, type Server as TlsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import type { Service } from '../model/service.ts';
import type { HttpParts, TlsMaterial } from './options.ts';

/** TCP keep-alive finds peers that vanished without a word. */
const TCP_KEEP_ALIVE_MS = 30_000;
/** How often Node looks for requests that take too long to arrive. */
const TIMEOUT_CHECK_MS = 1_000;

/** The HTTP front end: one listener, plain or TLS. */
export class HttpServer implements Service {
  readonly #parts: HttpParts;
  readonly #server: Server | TlsServer;
  #stopping: Promise<void> | null = null;

  constructor(parts: HttpParts) {
    this.#parts = parts;
    this.#server = makeServer(parts);
  }

  /** Where it listens. @throws Error before `start` has resolved */
  get address(): AddressInfo {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('The HTTP server does not listen.');
    return address;
  }

  /** Resolves when it listens; rejects where the address cannot be had. */
  start(): Promise<void> {
    const { host, port } = this.#parts.options;
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    this.#server.once('error', reject);
    this.#server.listen({ host, port }, () => {
      this.#server.off('error', reject);
      resolve();
    });
    return promise;
  }

  /**
   * Lets nobody new in, waits for the answers under way (each with `Connection: close`), then cuts what is
   * left after `drainMs`. Blocked gets end when the broker is drained; call that first.
   */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  /** Uses another certificate for connections from now on. @throws Error where it cannot be read */
  reloadTls(tls: TlsMaterial): void {
    if ('setSecureContext' in this.#server) this.#server.setSecureContext({ ...tls, minVersion: 'TLSv1.2' });
  }

  #stop(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const cancelDeadline = this.#parts.clock.after(this.#parts.options.drainMs, () =>
      this.#server.closeAllConnections(),
    );
    this.#server.close(() => {
      cancelDeadline();
      resolve();
    });
    return promise;
  }
}

function makeServer({ options }: HttpParts): Server | TlsServer {
  const settings = {
    headersTimeout: options.headersTimeoutMs,
    requestTimeout: options.requestTimeoutMs,
    keepAliveTimeout: options.keepAliveTimeoutMs,
    connectionsCheckingInterval: TIMEOUT_CHECK_MS,
    keepAlive: true,
    keepAliveInitialDelay: TCP_KEEP_ALIVE_MS,
  };
  const server =
    options.tls === null
      ? createServer(settings)
      : createTlsServer({ ...settings, ...options.tls, minVersion: 'TLSv1.2' });
  server.maxConnections = options.maxSockets;
  return server;
}
