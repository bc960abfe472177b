import { connect, createServer, type Server, type Socket } from 'node:net';

/**
 * - `open`: everything is forwarded.
 * - `deaf`: discards what clients send; `mute`: discards what the server replies. Connections stay open.
 * - `dark`: both, as on a network that silently drops every packet; new connections get no reply either.
 */
export type ProxyState = 'open' | 'deaf' | 'mute' | 'dark';

interface Pair {
  readonly client: Socket;
  readonly server: Socket;
  /** Whether everything the client sends is discarded. */
  deaf: boolean;
  mute: boolean;
  /** Data from the client that is kept for {@link TcpProxy.release}; null: it is forwarded. */
  held: Buffer[] | null;
  /** The same for data from the server. */
  heldReplies: Buffer[] | null;
}

type Direction = 'deaf' | 'mute' | 'held' | 'held-replies';

/** A TCP proxy on a free port of this machine, which discards data as a test tells it. */
export class TcpProxy {
  /** The target of new connections. */
  targetPort: number;
  readonly #pairs = new Set<Pair>();
  readonly #listener: Server;
  #state: ProxyState = 'open';
  #trap: { request: RegExp; direction: Direction; sprung: (swallowed: Buffer) => void } | null = null;

  private constructor(targetPort: number) {
    this.targetPort = targetPort;
    // Without noDelay, a reply in two segments waits 40 ms for a delayed acknowledgement.
    this.#listener = createServer({ noDelay: true }, (client) => this.#accept(client));
  }

  static async start(targetPort: number): Promise<TcpProxy> {
    const proxy = new TcpProxy(targetPort);
    await new Promise<void>((resolve) => proxy.#listener.listen(0, '127.0.0.1', resolve));
    return proxy;
  }

  get port(): number {
    const address = this.#listener.address();
    if (typeof address !== 'object' || address === null) throw new Error('the proxy is not listening');
    return address.port;
  }

  set state(state: ProxyState) {
    this.#state = state;
    for (const pair of this.#pairs) {
      pair.deaf = state === 'deaf' || state === 'dark';
      pair.mute = state === 'mute' || state === 'dark';
    }
  }

  /**
   * Waits for a request that matches. `deaf` discards it and everything after it on its connection; `mute` forwards it
   * and discards all replies from then on; `held` keeps it and everything after it until {@link release}, and
   * `held-replies` all replies from then on. Resolves with the first chunk that is not forwarded.
   */
  catch(request: RegExp, direction: Direction): Promise<Buffer> {
    return new Promise((resolve) => {
      this.#trap = { request, direction, sprung: resolve };
    });
  }

  /** Forwards everything that was held. */
  release(): void {
    for (const pair of this.#pairs) {
      for (const data of pair.held ?? []) pair.server.write(data);
      for (const data of pair.heldReplies ?? []) pair.client.write(data);
      pair.held = null;
      pair.heldReplies = null;
    }
  }

  /** Ends every connection with a reset. */
  reset(): void {
    for (const { client, server } of this.#pairs) {
      client.resetAndDestroy();
      server.destroy();
    }
  }

  async stop(): Promise<void> {
    const closed = new Promise((resolve) => this.#listener.close(resolve));
    this.reset();
    await closed;
  }

  #accept(client: Socket): void {
    const server = connect({ port: this.targetPort, host: '127.0.0.1', noDelay: true });
    const dark = this.#state === 'dark';
    const pair: Pair = {
      client,
      server,
      deaf: dark || this.#state === 'deaf',
      mute: dark || this.#state === 'mute',
      held: null,
      heldReplies: null,
    };
    this.#pairs.add(pair);
    client.on('data', (data) => this.#toServer(pair, data));
    server.on('data', (data) => this.#toClient(pair, data));
    for (const socket of [client, server]) {
      socket.setNoDelay(true);
      socket.on('error', () => {});
      socket.on('close', () => {
        this.#pairs.delete(pair);
        client.destroy();
        server.destroy();
      });
    }
  }

  #toServer(pair: Pair, data: Buffer): void {
    const trap = this.#trap;
    if (trap?.request.test(data.toString('latin1'))) {
      if (trap.direction === 'mute') pair.mute = true;
      else if (trap.direction === 'held-replies') pair.heldReplies = [];
      else {
        if (trap.direction === 'deaf') pair.deaf = true;
        else pair.held = [];
        this.#spring(data);
      }
    }
    if (pair.held !== null) pair.held.push(data);
    else if (!pair.deaf) pair.server.write(data);
  }

  #toClient(pair: Pair, data: Buffer): void {
    if (pair.heldReplies !== null) pair.heldReplies.push(data);
    else if (!pair.mute) pair.client.write(data);
    const { direction } = this.#trap ?? {};
    if ((direction === 'mute' && pair.mute) || (direction === 'held-replies' && pair.heldReplies !== null))
      this.#spring(data);
  }

  #spring(swallowed: Buffer): void {
    const trap = this.#trap;
    this.#trap = null;
    trap?.sprung(swallowed);
  }
}
