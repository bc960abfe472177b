import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Broker } from '../src/broker/broker.ts';
import type { Engine } from '../src/engine/engine.ts';
import type { Declaration } from '../src/exchange/declaration.ts';
import { Exchanges } from '../src/exchange/exchanges.ts';
import { WorkerSandbox } from '../src/sandbox/sandbox.ts';
import { systemClock } from '../src/util/clock.ts';
import { DEFAULTS } from '../test/support/defaults.ts';
import { NAMESPACE, openEngine } from './quayside.ts';

/** A node without front ends on its own engine, to measure exchanges alone. */
export class ExchangeNode {
  readonly engine: Engine;
  readonly exchanges: Exchanges;
  readonly #broker: Broker;
  readonly #sandbox = new WorkerSandbox();
  readonly #folder: string;

  private constructor(folder: string, engine: Engine) {
    const { type, storage, definitions, signaller, stats } = engine;
    const shared = { clock: systemClock, random: Math.random, log: { info: () => {}, warn: console.warn } };
    this.#folder = folder;
    this.engine = engine;
    this.#broker = new Broker({
      ...shared,
      namespaces: [
        {
          policy: { name: NAMESPACE, groups: null, deadLetter: null, retentionMs: null },
          configured: {},
          type: `${type}:simple`,
          leaseMs: 120_000,
          maxQueues: 1000,
          maxElements: null,
          maxBytes: null,
          maxExchanges: 1000,
          storage,
          definitions,
          signaller,
          stats,
          shown: {
            url: type,
            signaller: { type, url: type, channel: NAMESPACE },
            stats: { type, url: type, coll: 'stats' },
          },
        },
      ],
      waiting: { total: 1000, perUser: 1000 },
    });
    this.exchanges = new Exchanges({
      ...shared,
      broker: this.#broker,
      sandbox: this.#sandbox,
      maxHops: DEFAULTS.maxHops,
      selectors: true,
      configured: new Map(),
      maxCopies: DEFAULTS.maxCopies,
      owners: () => null,
    });
  }

  static async start(): Promise<ExchangeNode> {
    const folder = await mkdtemp(path.join(tmpdir(), 'quayside-bench-'));
    const node = new ExchangeNode(folder, await openEngine(folder));
    await node.#broker.start();
    await node.exchanges.start();
    return node;
  }

  /** Creates an exchange and returns how long it takes to forward this many elements, ms. */
  async forward(id: string, declaration: Declaration, count: number): Promise<number> {
    const from = performance.now();
    await this.exchanges.create(id, declaration);
    while (this.#forwarded(id) < count) await new Promise((resolve) => setTimeout(resolve, 2));
    const took = performance.now() - from;
    await this.exchanges.delete(id);
    return took;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.exchanges.stop();
    await this.#sandbox.stop();
    await this.#broker.stop();
    await this.engine.stop();
    await rm(this.#folder, { recursive: true });
  }

  /**
   * The number of elements copied to the last destination. Polled often: a whole record would cost a sixth of a core.
   */
  #forwarded(id: string): number {
    const exchange = this.exchanges.overview().find((one) => one.key === id);
    return exchange?.counters.destinations.at(-1)?.matched ?? 0;
  }
}
