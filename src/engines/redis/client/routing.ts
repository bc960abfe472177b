import { ClusterRouter } from './cluster.ts';
import { Connection } from './connection.ts';
import { text } from './greeting.ts';
import type { Node } from './node.ts';
import type { Router, RouterParts } from './router.ts';
import { SingleRouter } from './single.ts';

const ASK_MS = 2_000;

/** The router that fits what the URL leads to, chosen when it starts. */
export class Routing implements Router {
  readonly #parts: RouterParts;
  readonly #listeners: (() => void)[] = [];
  #router: Router | null = null;
  #stopped = false;

  constructor(parts: RouterParts) {
    this.#parts = parts;
  }

  get isCluster(): boolean {
    return this.#router?.isCluster ?? false;
  }

  async start(): Promise<void> {
    const { cluster, sentinel, login } = this.#parts.settings;
    const isCluster = sentinel === null && (await this.#leadsToCluster());
    if (cluster !== null && cluster !== isCluster) {
      throw new Error(`cluster is ${cluster}, but the server is ${isCluster ? '' : 'not '}part of one`);
    }
    // Most clusters refuse the SELECT already; whether one with several databases serves, nobody has tried.
    if (isCluster && login.db !== 0) {
      throw new Error(`it is part of a cluster; leave out database ${login.db}, as a cluster is used with 0`);
    }
    const router = isCluster ? new ClusterRouter(this.#parts) : new SingleRouter(this.#parts);
    router.onChange(() => {
      for (const listener of this.#listeners) listener();
    });
    if (this.#stopped) return;
    this.#router = router;
    await router.start();
  }

  stop(): void {
    this.#stopped = true;
    this.#router?.stop();
  }

  nodeFor(slot: number): Node | null {
    return this.#router?.nodeFor(slot) ?? null;
  }

  nodes(): readonly Node[] {
    return this.#router?.nodes() ?? [];
  }

  nodeAt(address: string): Node {
    if (this.#router === null) throw new Error('the router is not started');
    return this.#router.nodeAt(address);
  }

  moved(slot: number, address: string): void {
    this.#router?.moved(slot, address);
  }

  doubt(): void {
    this.#router?.doubt();
  }

  onChange(listener: () => void): void {
    this.#listeners.push(listener);
  }

  /** Asks the first server that answers. */
  async #leadsToCluster(): Promise<boolean> {
    const { settings, clock } = this.#parts;
    let problem: unknown = new Error('no server is named');
    for (const address of settings.addresses) {
      try {
        const connection = await Connection.open(address, settings.login, clock, ASK_MS);
        try {
          return text(await connection.send('INFO', ['cluster'])).includes('cluster_enabled:1');
        } finally {
          connection.close();
        }
      } catch (error) {
        problem = error;
      }
    }
    throw problem;
  }
}
