import { QueueClient } from '../support/http-client.ts';
import { ServerProcess } from '../support/server-process.ts';

/** A namespace `N` of jobs, whose leases are short, and a stream `events`. */
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

/** Options in addition to those that all tests have. */
type MoreConfig = Readonly<Record<string, object>>;

/** How long the reservations of a node that died are held. */
export const LEASE_SECONDS = 3;

/** Node processes behind one engine, each with a client of its own. */
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

  /** One more node, which may find the engine by a URL of its own; answers its place. */
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

/** Asks again until `check` answers true. @throws Error, with `what`, after a minute */
export async function reached(what: string, check: () => Promise<boolean>): Promise<void> {
  const end = performance.now() + 60_000;
  // A check costs the machine that the servers need: what takes long is asked less often.
  for (let pauseMs = 10; !(await check()); pauseMs = Math.min(pauseMs * 1.5, 150)) {
    if (performance.now() > end) throw new Error(`Not reached within 60 s: ${what}.`);
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
}
