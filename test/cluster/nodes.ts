import { QueueClient } from '../support/http-client.ts';
import { ServerProcess } from '../support/server-process.ts';

/** A namespace `N` with short leases, and a stream `events`. */
function configOn(
  url: string,
  options: object,
  { namespaces, ...more }: MoreConfig,
): Record<string, unknown> {
  return {
    http: { users: { test1: 'test1' } },
    namespaces: {
      N: { url, lease: LEASE_SECONDS, ...options },
      events: { url, variant: 'stream', groups: ['a', 'b'] },
      ...namespaces,
    },
    ...more,
  };
}

/** Top-level configuration in addition to what all tests have. */
type MoreConfig = Readonly<Record<string, object>>;

/** How long the reservations of a dead node last, s. */
export const LEASE_SECONDS = 3;

/** Node processes on one engine, each with its own client. */
export class Nodes {
  readonly #url: string;
  readonly #options: object;
  readonly #more: MoreConfig;
  readonly #nodes: { readonly server: ServerProcess; readonly client: QueueClient }[] = [];

  private constructor(url: string, options: object, more: MoreConfig) {
    this.#url = url;
    this.#options = options;
    this.#more = more;
  }

  /** @param options of the namespace `N` */
  static async start(
    url: string,
    count: number,
    options: object = {},
    more: MoreConfig = {},
  ): Promise<Nodes> {
    const nodes = new Nodes(url, options, more);
    try {
      await Promise.all(Array.from({ length: count }, () => nodes.add()));
    } catch (error) {
      await nodes.stop();
      throw error;
    }
    return nodes;
  }

  get count(): number {
    return this.#nodes.length;
  }

  server(at: number): ServerProcess {
    return this.#at(at).server;
  }

  client(at: number): QueueClient {
    return this.#at(at).client;
  }

  /** Starts one more node, which may use another URL for the engine. Returns its index. */
  async add(url = this.#url): Promise<number> {
    const server = await ServerProcess.start({ config: configOn(url, this.#options, this.#more) });
    return this.#nodes.push({ server, client: new QueueClient({ url: () => server.url }) }) - 1;
  }

  async stop(): Promise<void> {
    for (const { client } of this.#nodes) client.close();
    await Promise.all(this.#nodes.map(({ server }) => server.dispose()));
  }

  #at(at: number): { server: ServerProcess; client: QueueClient } {
    const node = this.#nodes[at];
    if (node === undefined) throw new Error(`There is no node ${at}.`);
    return node;
  }
}

/** Repeats `check` until it returns true. @throws Error with `what` after a minute */
export async function eventually(what: string, check: () => Promise<boolean>): Promise<void> {
  const end = performance.now() + 60_000;
  // A check takes processor time from the servers, so slow ones are repeated less often.
  for (let pauseMs = 10; !(await check()); pauseMs = Math.min(pauseMs * 1.5, 150)) {
    if (performance.now() > end) throw new Error(`Not reached within 60 s: ${what}.`);
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
}
