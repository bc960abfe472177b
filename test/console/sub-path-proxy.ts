import { once } from 'node:events';
import { createServer, request, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';

/**
 * A proxy that serves a server under a path, as nginx does with
 * `location /tools/quayside/ { proxy_pass http://server/; }`: it removes the path and leaves everything else as it is.
 * What is not under the path is answered with 404.
 */
export class SubPathProxy {
  /** Whether the connection breaks in the middle of the response to a request for this path of the server. */
  breaks: (path: string) => boolean = () => false;
  /** Whether a broken connection stays open instead, and nothing more is sent on it. */
  isSilent = false;
  readonly #server: Server;
  readonly #path: string;

  private constructor(server: Server, path: string) {
    this.#server = server;
    this.#path = path;
  }

  /** @param path with a slash at its start and none at its end */
  static async start(target: string, path: string): Promise<SubPathProxy> {
    const server = createServer();
    const proxy = new SubPathProxy(server, path);
    server.on('request', (incoming, outgoing) => {
      const { method = 'GET', url = '', rawHeaders } = incoming;
      if (!url.startsWith(`${path}/`)) {
        outgoing.writeHead(404).end();
        return;
      }
      const passed = request(`${target}${url.slice(path.length)}`, { method, headers: rawHeaders });
      passed.on('response', (response) => {
        outgoing.writeHead(response.statusCode ?? 502, response.rawHeaders);
        if (proxy.breaks(url.slice(path.length))) {
          response.once('data', (piece: Buffer) => {
            outgoing.write(piece.subarray(0, piece.length >> 1), () => proxy.isSilent || outgoing.destroy());
          });
        } else response.pipe(outgoing);
      });
      passed.on('error', () => outgoing.destroy());
      outgoing.on('close', () => passed.destroy());
      incoming.pipe(passed);
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return proxy;
  }

  /** The URL at which it serves the root of the server, without a slash at the end. */
  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}${this.#path}`;
  }

  async close(): Promise<void> {
    this.#server.close();
    this.#server.closeAllConnections();
    await once(this.#server, 'close');
  }
}
