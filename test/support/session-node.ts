import assert from 'node:assert/strict';
import type { Authenticator, User } from '../../src/access/user.ts';
import type { Broker } from '../../src/broker/broker.ts';
import type { Queue } from '../../src/broker/queue.ts';
import type { NamespacePolicy } from '../../src/engine/engine.ts';
import type { HttpServer } from '../../src/http/server.ts';
import type { Delivery, NewElement } from '../../src/model/element.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import type { Right } from '../../src/model/rights.ts';
import type { SessionServer } from '../../src/session/server.ts';
import type { FrontEndLog } from '../../src/util/log.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { EngineUnderTest, TestEngine } from '../engines.ts';
import { brokerOn, plain } from './broker.ts';
import { FakeClock } from './clock.ts';
import { newElement } from './elements.ts';
import { until } from './until.ts';
import { startWebSocketPort } from './web-socket-port.ts';

/** Users of the tests, whose password is their name: rights by namespace; null: all rights. */
const USERS: Readonly<Record<string, Readonly<Record<string, readonly Right[]>> | null>> = {
  test: null,
  reader: { N: ['read'] },
  writer: { N: ['write'] },
  manager: { N: ['manage'] },
  browser: { N: ['browse'] },
  /** May browse, but sees no bodies. */
  masked: { N: ['browse'] },
  stranger: {},
};

/** Authenticates the users of the tests without hashing; the tests of logins use the real one. */
export class TestAuthenticator implements Authenticator {
  recall(authorization: string): User | null {
    const [name = '', password] = Buffer.from(authorization.slice(6), 'base64').toString().split(':');
    return name === password ? this.userNamed(name) : null;
  }

  userNamed(name: string): User | null {
    const rights = USERS[name];
    if (rights === undefined) return null;
    const has = (right: Right, ns: string) => rights === null || (rights[ns]?.includes(right) ?? false);
    const may = (right: Right, ns: string) => has(right, ns) || (right === 'browse' && has('read', ns));
    return {
      name,
      isAdministrator: rights === null,
      may,
      maySeeBodies: (ns) => may(name === 'masked' ? 'read' : 'browse', ns),
      maySee: (ns) => rights === null || (rights[ns]?.length ?? 0) > 0,
    };
  }

  loginWithoutPassword(name: string | null): User | null {
    return name === null ? null : this.userNamed(name);
  }

  login(): Promise<User> {
    return Promise.reject(new QuaysideError('unauthorized', 'wrong'));
  }

  renew(user: User): User | null {
    return user;
  }
}

/** Delays each password check, as the real one does, until `acceptLogins`. */
export class SlowAuthenticator extends TestAuthenticator {
  readonly #checked = Promise.withResolvers<void>();

  override recall(): null {
    return null;
  }

  override async login(): Promise<User> {
    await this.#checked.promise;
    return this.userNamed('test') as User;
  }

  acceptLogins(): void {
    this.#checked.resolve();
  }
}

export interface SessionNodeOptions {
  readonly policies?: readonly NamespacePolicy[];
  readonly engine?: EngineUnderTest;
  readonly authenticator?: Authenticator;
  /** Whether clients connect by WebSocket to an HTTP port. */
  readonly overWebSocket?: boolean;
}

/** Plain queues, a stream, and queues with a dead letter. */
export const POLICIES: readonly NamespacePolicy[] = [
  plain('N'),
  plain('S', { groups: ['G1', 'G2'] }),
  plain('D', { deadLetter: { maxTries: 2, queue: '__deadletter__' } }),
];

/** Dependencies of a front end in tests. */
export interface NodeParts {
  readonly broker: Broker;
  readonly authenticator: Authenticator;
  readonly clock: FakeClock;
  readonly version: string;
  readonly log: FrontEndLog;
}

/** Opens the engine for a test. */
export function openFor(given: SessionNodeOptions): Promise<TestEngine> {
  return (given.engine ?? MEMORY_SQLITE).open({ namespaces: given.policies ?? POLICIES });
}

/** A node with its own engine and one front end whose clients have sessions. */
export abstract class SessionNode<Server extends SessionServer> {
  readonly engine: TestEngine;
  readonly broker: Broker;
  server: Server;
  readonly clock: FakeClock;
  /** Serves clients over WebSocket. */
  #webSocketPort: HttpServer | null = null;
  readonly #given: SessionNodeOptions;
  readonly #makeServer: () => Server;
  /** Log records of all levels. */
  readonly logged: { fields: object; message: string }[] = [];

  constructor(engine: TestEngine, given: SessionNodeOptions, makeServer: (parts: NodeParts) => Server) {
    assert.ok(engine.clock instanceof FakeClock);
    this.engine = engine;
    this.#given = given;
    this.clock = engine.clock;
    this.broker = brokerOn(
      (given.policies ?? POLICIES).map((policy) => ({ policy, engine: engine.engine })),
      engine.clock,
    );
    const log = (fields: object, message: string): void => {
      this.logged.push({ fields, message });
    };
    const parts = {
      broker: this.broker,
      authenticator: given.authenticator ?? new TestAuthenticator(),
      log: { debug: () => {}, info: log, warn: log, error: log },
      clock: engine.clock,
      version: '0.0.0',
    };
    this.#makeServer = () => makeServer(parts);
    this.server = this.#makeServer();
  }

  /** Renews the users of all sessions, as after a reload. */
  renewUsers(renew: Authenticator['renew']): void {
    this.server.authenticator.renew = renew;
    this.server.renewUsers();
  }

  get port(): number {
    return (this.#webSocketPort ?? this.server).address.port;
  }

  /** The path of its WebSocket endpoint. */
  protected abstract readonly path: string;

  /** Disconnects the remaining clients. */
  protected abstract cut(): void;

  async start(): Promise<void> {
    await this.broker.start();
    try {
      await this.server.start();
      if (this.#given.overWebSocket === true) {
        const { server, clock, path } = this;
        this.#webSocketPort = await startWebSocketPort({ server, clock, path });
      }
    } catch (error) {
      await this.stop();
      throw error;
    }
  }

  /** Stops the front end, as at the end of the program, and starts a new one on another port. */
  async restart(): Promise<void> {
    let isStopped = false;
    const stopped = this.server.stop().finally(() => {
      isStopped = true;
    });
    // Some clients read nothing until they get a command, and so do not notice the end.
    await until(() => {
      this.clock.advance(1);
      return isStopped;
    });
    await stopped;
    this.server = this.#makeServer();
    await this.server.start();
  }

  /** Stops everything, and fails if anything is left. */
  async stop(): Promise<void> {
    this.cut();
    await this.server.stop();
    await this.#webSocketPort?.stop();
    const { waiting } = this.broker;
    await this.broker.stop();
    await this.engine.close();
    const { sessions, subscriptions, links, unacknowledged, window, outgoingBytes, stalled } =
      this.server.counts;
    assert.deepEqual(
      { sessions, subscriptions, links, unacknowledged, window, outgoingBytes, stalled, waiting },
      {
        sessions: 0,
        subscriptions: 0,
        links: 0,
        unacknowledged: 0,
        window: 0,
        outgoingBytes: 0,
        stalled: 0,
        waiting: 0,
      },
    );
  }

  /** Blocks inserts before they reach the engine, until `release` is called. `asked` resolves at the first one. */
  holdInserts(): { readonly asked: Promise<void>; readonly release: () => void } {
    const { storage } = this.engine.engine;
    const { insert } = storage;
    const asked = Promise.withResolvers<void>();
    const held = Promise.withResolvers<void>();
    storage.insert = async (...given) => {
      asked.resolve();
      await held.promise;
      return insert.apply(storage, given);
    };
    return { asked: asked.promise, release: held.resolve };
  }

  queue(name: string, ns = 'N'): Queue {
    return this.broker.namespace(ns).queue(name);
  }

  /** Inserts elements with these bodies or fields. */
  async insert(name: string, ...elements: readonly (string | Partial<NewElement>)[]): Promise<string[]> {
    return this.insertInto('N', name, ...elements);
  }

  async insertInto(
    ns: string,
    name: string,
    ...elements: readonly (string | Partial<NewElement>)[]
  ): Promise<string[]> {
    const queue = this.queue(name, ns);
    return queue.insert(
      elements.map((element) => {
        const { body, ...fields } = typeof element === 'string' ? { body: Buffer.from(element) } : element;
        return newElement({ groups: queue.groups(null), ...fields, ...(body && { body }) });
      }),
    );
  }

  /** Pops the next ready element, or returns null. */
  pop(name: string, ns = 'N', group: string | null = null): Promise<Delivery | null> {
    return this.#take(name, ns, group, null);
  }

  reserve(name: string, ns = 'N', group: string | null = null): Promise<Delivery | null> {
    return this.#take(name, ns, group, 60_000);
  }

  /**
   * Advances the clock once a consumer that waits in the queue sleeps until its next element is due. The clock stands
   * still otherwise: if it advanced during a take, the consumer would then sleep without end.
   */
  async pass(ms: number, name: string, ns = 'N'): Promise<void> {
    await until(() =>
      this.queue(name, ns)
        .consumers()
        .some((one) => one.wakeup_timeout === 'set'),
    );
    this.clock.advance(ms);
  }

  #take(name: string, ns: string, group: string | null, leaseMs: number | null): Promise<Delivery | null> {
    return new Promise((resolve, reject) => {
      this.queue(name, ns).get(
        { group, leaseMs, timeoutMs: 0, tid: null, owner: null },
        {
          deliver: resolve,
          end: (reason) => (reason.code === 'pop-timeout' ? resolve(null) : reject(reason)),
        },
      );
    });
  }

  /** Returns the number of elements of a queue by state. */
  async sizes(name: string, ns = 'N'): Promise<{ ready: number; scheduled: number; reserved: number }> {
    const { size, schedSize, resvSize } = await this.broker.namespace(ns).visit(name).status(null);
    return { ready: size, scheduled: schedSize, reserved: resvSize };
  }
}

/** Resolves when that many clients have received as much as their kernels buffer, and nothing moves any more. */
export async function stalled(node: SessionNode<SessionServer>, clients: number): Promise<void> {
  const { counts } = node.server;
  await until(() => counts.stalled === clients && node.broker.waiting === 0);
}
