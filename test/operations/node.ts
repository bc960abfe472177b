import type { Broker } from '../../src/broker/broker.ts';
import type { ScannedDelivery } from '../../src/engine/storage.ts';
import type { ExchangeOverview } from '../../src/exchange/record.ts';
import type { Delivery, DeliveryState } from '../../src/model/element.ts';
import type { OperationRecord } from '../../src/model/records.ts';
import type { UserRights } from '../../src/model/rights.ts';
import { BulkOperations } from '../../src/operations/operations.ts';
import { parseRequest } from '../../src/operations/request.ts';
import { Searches } from '../../src/operations/search.ts';
import type { SelectorSandbox } from '../../src/sandbox/sandbox.ts';
import type { Clock } from '../../src/util/clock.ts';
import type { TestEngine } from '../engines.ts';
import { brokerOn, SILENT_LOG, type TestNamespace } from '../support/broker.ts';
import { newElement } from '../support/elements.ts';
import { seededRandom } from '../support/random.ts';
import { until } from '../support/until.ts';

/** A user with all rights. */
export const OPERATOR = { name: 'op', may: () => true, maySee: () => true, maySeeBodies: () => true };

/** A node with operations and no front end, on engines that outlive it. */
export class OperationNode {
  readonly broker: Broker;
  readonly operations: BulkOperations;
  readonly warnings: string[] = [];
  /** The exchanges that exist. */
  exchanges: readonly ExchangeOverview[] = [];
  /** The namespaces whose exchanges were moved to another engine. */
  readonly moved: string[] = [];
  /** Rights of users by name; users not listed have those of {@link OPERATOR}. Null: the user was removed. */
  readonly users = new Map<string, Pick<UserRights, 'may'> | null>();

  /** @param seed must differ between nodes on the same engines */
  constructor(namespaces: readonly TestNamespace[], clock: Clock, sandbox: SelectorSandbox, seed = 1) {
    this.broker = brokerOn(namespaces, clock, seed);
    this.operations = new BulkOperations({
      broker: this.broker,
      userNamed: (name) => this.users.get(name) ?? (this.users.has(name) ? null : OPERATOR),
      searches: new Searches({ sandbox, clock, selectors: true }),
      exchanges: {
        overview: () => [...this.exchanges],
        moveDefinitions: async (ns) => void this.moved.push(ns),
      },
      clock,
      random: seededRandom(seed + 100).next,
      log: { ...SILENT_LOG, warn: (_fields, message) => void this.warnings.push(message) },
    });
  }

  async start(): Promise<this> {
    await this.broker.start();
    await this.operations.start();
    return this;
  }

  async stop(): Promise<void> {
    await this.operations.stop();
    await this.broker.stop();
  }

  create(request: object, caller: Parameters<BulkOperations['create']>[1] = OPERATOR): Promise<string> {
    return this.operations.create(parseRequest(request), caller);
  }

  get(id: string): Promise<OperationRecord> {
    return this.operations.get(id, OPERATOR);
  }

  /** Starts an operation, lets time pass until it has ended, and returns its record. */
  async run(request: object, opened: Pick<TestEngine, 'passTime'>): Promise<OperationRecord> {
    return this.ended(await this.create(request), opened);
  }

  /**
   * Lets time pass until an operation has ended, and returns its record.
   * @param stepMs time that passes per step; longer for an operation with a rate, since on PostgreSQL each step
   *   replaces the function that returns the time
   */
  async ended(id: string, opened: Pick<TestEngine, 'passTime'>, stepMs = 1): Promise<OperationRecord> {
    await until(async () => {
      if ((await this.get(id)).state !== 'running') return true;
      await opened.passTime(stepMs);
      return false;
    });
    return this.get(id);
  }

  insert(
    ns: string,
    queue: string,
    ...elements: readonly (string | Parameters<typeof newElement>[0])[]
  ): Promise<string[]> {
    const target = this.broker.namespace(ns).queue(queue);
    const groups = target.groups(null);
    return target.insert(
      elements.map((one) => newElement({ groups, ...(typeof one === 'string' ? { body: one } : one) })),
    );
  }

  /** Inserts elements whose bodies are `0`, `1`, …; returns their ids. */
  insertMany(ns: string, queue: string, count: number): Promise<string[]> {
    return this.insert(ns, queue, ...Array.from({ length: count }, (_, i) => String(i)));
  }

  async reserve(ns: string, queue: string, count: number, leaseMs = 3_600_000): Promise<Delivery[]> {
    const { storage, defaultGroup: group } = this.broker.namespace(ns);
    return (await storage.take({ ns, name: queue }, { group, count, leaseMs })).deliveries;
  }

  /** The elements of a queue, in order. */
  async elements(
    ns: string,
    queue: string,
    states: readonly DeliveryState[] = ['ready', 'scheduled', 'reserved'],
    group?: string,
  ): Promise<ScannedDelivery[]> {
    const { storage, defaultGroup } = this.broker.namespace(ns);
    const found: ScannedDelivery[] = [];
    let after: string | null = null;
    do {
      const options = { group: group ?? defaultGroup, states, after, limit: 500, bodies: true };
      const page = await storage.scan({ ns, name: queue }, options);
      found.push(...page.deliveries);
      after = page.next;
    } while (after !== null);
    return found;
  }

  async bodies(
    ns: string,
    queue: string,
    states?: readonly DeliveryState[],
    group?: string,
  ): Promise<string[]> {
    return (await this.elements(ns, queue, states, group)).map(({ body }) => Buffer.from(body).toString());
  }
}
