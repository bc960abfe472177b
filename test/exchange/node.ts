import type { Broker } from '../../src/broker/broker.ts';
import { type Declaration, type FindOwner, parseDeclaration } from '../../src/exchange/declaration.ts';
import { Exchanges } from '../../src/exchange/exchanges.ts';
import type { Delivery } from '../../src/model/element.ts';
import type { SelectorSandbox } from '../../src/sandbox/sandbox.ts';
import type { Clock } from '../../src/util/clock.ts';
import type { EventLog } from '../../src/util/log.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { brokerOn, plain, SILENT_LOG, type TestNamespace } from '../support/broker.ts';
import { DEFAULTS } from '../support/defaults.ts';
import { newElement } from '../support/elements.ts';
import { seededRandom } from '../support/random.ts';

/**
 * A selector that exceeds its memory limit immediately. Exceeding the time limit would take a second in a patient
 * sandbox.
 */
export const FILLS_ITS_MEMORY = 'env => { for (const all = []; ; ) all.push(new Array(1e5).fill(0)); }';

/** A node with exchanges and no front end; its engines outlive it. */
export class ExchangeNode {
  readonly broker: Broker;
  readonly exchanges: Exchanges;

  constructor(
    namespaces: readonly TestNamespace[],
    clock: Clock,
    sandbox: SelectorSandbox,
    options: {
      selectors?: boolean;
      configured?: ReadonlyMap<string, Declaration>;
      maxHops?: number;
      maxCopies?: number;
      owners?: FindOwner;
      log?: EventLog;
      /** Different for each of several nodes that send signals to each other. */
      seed?: number;
    } = {},
  ) {
    this.broker = brokerOn(namespaces, clock, options.seed);
    this.exchanges = new Exchanges({
      broker: this.broker,
      sandbox,
      clock,
      random: seededRandom(2).next,
      log: options.log ?? SILENT_LOG,
      maxHops: options.maxHops ?? DEFAULTS.maxHops,
      maxCopies: options.maxCopies ?? DEFAULTS.maxCopies,
      selectors: options.selectors ?? true,
      owners: options.owners ?? (() => ({ may: () => true })),
      configured: options.configured ?? new Map(),
    });
  }

  async start(): Promise<this> {
    await this.broker.start();
    await this.exchanges.start();
    return this;
  }

  async stop(): Promise<void> {
    await this.exchanges.stop();
    await this.broker.stop();
  }

  async insert(ns: string, queue: string, ...bodies: readonly string[]): Promise<string[]> {
    const target = this.broker.namespace(ns).queue(queue);
    return target.insert(bodies.map((body) => newElement({ body, groups: target.groups(null) })));
  }

  /** Pops one element, waiting until there is one. */
  pop(ns: string, queue: string): Promise<Delivery> {
    return new Promise((resolve, reject) => {
      const request = { group: null, leaseMs: null, timeoutMs: null, tid: null, owner: null };
      this.broker.namespace(ns).queue(queue).get(request, { deliver: resolve, end: reject });
    });
  }

  async popMany(ns: string, queue: string, count: number): Promise<Delivery[]> {
    const popped: Delivery[] = [];
    while (popped.length < count) popped.push(await this.pop(ns, queue));
    return popped;
  }

  /** The number of elements in a queue, in any state. */
  async total(ns: string, queue: string): Promise<number> {
    return (await this.broker.namespace(ns).visit(queue).status(null)).totalSize;
  }
}

/** An in-memory SQLite engine with plain namespaces of these names. */
export async function openEngine(
  ...names: readonly string[]
): Promise<TestEngine & { namespaces: TestNamespace[] }> {
  const policies = names.map((name) => plain(name));
  const opened = await MEMORY_SQLITE.open({ namespaces: policies });
  return { ...opened, namespaces: policies.map((policy) => ({ policy, engine: opened.engine })) };
}

export function declare(
  src: string,
  dst: readonly (string | [queue: string, selector: string])[],
  consumer: Record<string, unknown> = {},
): Declaration {
  const name = (full: string): { ns: string; queue: string } => {
    const [ns = '', queue = ''] = full.split('/');
    return { ns, queue };
  };
  return parseDeclaration({
    src: name(src),
    dst: dst.map((to) => (typeof to === 'string' ? name(to) : { ...name(to[0]), selector: to[1] })),
    consumer,
  });
}

/** The value of a header of a delivery; undefined if it is missing. */
export function header(delivery: Delivery, name: string): string | undefined {
  const at = delivery.headers.indexOf(name);
  return at < 0 ? undefined : delivery.headers[at + 1];
}
