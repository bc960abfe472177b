import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { Engine } from '../../src/engine/engine.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import { type EngineUnderTest, MAIN_ENGINES_AND_CLUSTER, type TestEngine } from '../engines.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { betweenProcesses, plain } from '../support/broker.ts';
import { type Cut, DyingNode } from './dying-node.ts';
import { OperationNode } from './node.ts';

const COUNT = 150;
const BODIES = Array.from({ length: COUNT }, (_, i) => String(i)).sort();
const CUTS: readonly Cut[] = ['before', 'after'];
/** Longer than a node may be silent. */
const SILENT_MS = 13_000;

/** What an operation must have done to the elements `0` to `149` of its source, whatever happened while it ran. */
interface Kind {
  readonly request: (source: object) => object;
  /** The bodies that the source has at the end, and those that the target has. */
  readonly source: readonly string[];
  readonly target: readonly string[];
  readonly targetNamespace: string;
}

const move = (ns: string) => (source: object) => ({ action: 'move', source, to: { ns, queue: 'to' } });

const KINDS: Readonly<Record<string, Kind>> = {
  delete: {
    request: (source) => ({ action: 'delete', source }),
    source: [],
    target: [],
    targetNamespace: 'N',
  },
  'move within an engine': { request: move('N'), source: [], target: BODIES, targetNamespace: 'N' },
  'move to another engine': { request: move('far'), source: [], target: BODIES, targetNamespace: 'far' },
  copy: {
    request: (source) => ({ action: 'copy', source, to: { ns: 'N', queue: 'to' } }),
    source: BODIES,
    target: BODIES,
    targetNamespace: 'N',
  },
  redrive: {
    request: (source) => ({ action: 'redrive', source }),
    source: [],
    target: BODIES,
    targetNamespace: 'N',
  },
  delay: {
    request: (source) => ({ action: 'delay', source, delay: 3_600_000 }),
    source: BODIES,
    target: [],
    targetNamespace: 'N',
  },
  set: {
    request: (source) => ({ action: 'set', source, set: { headers: { times: '1' } } }),
    source: BODIES,
    target: [],
    targetNamespace: 'N',
  },
  release: {
    request: (source) => ({ action: 'release', source }),
    source: BODIES,
    target: [],
    targetNamespace: 'N',
  },
};

/** The engines and the sandbox on which one node dies and another one continues. */
class CrashWorld {
  readonly #near: TestEngine;
  readonly #far: TestEngine;
  readonly #sandbox = sharedSandbox();

  private constructor(near: TestEngine, far: TestEngine) {
    this.#near = near;
    this.#far = far;
  }

  static async open(engine: EngineUnderTest): Promise<CrashWorld> {
    const near = await engine.open({ namespaces: [plain('N')] });
    return new CrashWorld(near, await MEMORY_SQLITE.open({ namespaces: [plain('far')] }));
  }

  async close(): Promise<void> {
    await this.#sandbox.stop();
    await this.#far.close();
    await this.#near.close();
  }

  async #passTime(ms: number): Promise<void> {
    await this.#far.passTime(ms);
    await this.#near.passTime(ms);
  }

  /** Runs one operation whose node dies at changing call number `dyingCall`. Returns whether the node died. */
  async run(kind: Kind, dyingCall: number, cut: Cut): Promise<boolean> {
    const near = betweenProcesses(this.#near.engine);
    const far = betweenProcesses(this.#far.engine);
    const mortal = new DyingNode(dyingCall, cut);
    const node = (engines: readonly [Engine, Engine], seed: number): Promise<OperationNode> =>
      new OperationNode(
        [
          { policy: plain('N'), engine: engines[0] },
          { policy: plain('far'), engine: engines[1] },
        ],
        this.#near.clock,
        this.#sandbox,
        seed,
      ).start();
    const survivor = await node([near, far], 1);
    const doomed = await node([mortal.view(near), mortal.view(far)], 2);
    mortal.calls = 0;
    try {
      return await this.#follow(kind, { survivor, doomed, mortal });
    } finally {
      mortal.end();
      await doomed.stop();
      await this.#empty(survivor);
      await survivor.stop();
    }
  }

  async #follow(
    { request, source, target, targetNamespace }: Kind,
    { survivor, doomed, mortal }: { survivor: OperationNode; doomed: OperationNode; mortal: DyingNode },
  ): Promise<boolean> {
    const action = (request({}) as { action: string }).action;
    const headers = action === 'redrive' ? ['x-dl-from-queue', 'to'] : [];
    const bodies = Array.from({ length: COUNT }, (_, i) => ({ body: String(i), headers }));
    await survivor.insert('N', 'from', ...bodies);
    if (action === 'release') await survivor.reserve('N', 'from', COUNT, 86_400_000);
    const creating = doomed.create(request({ ns: 'N', queue: 'from' }));
    creating.catch(() => {});
    // Until the operation has ended, or the dead node cannot continue it any more.
    for (let idle = 0; idle < 50; idle = mortal.isDead ? idle + 1 : 0) {
      const all = await survivor.operations.list({ ns: null, queue: null, state: null }, ALL);
      if (all[0] !== undefined && all[0].state !== 'running') break;
      await this.#passTime(1);
      await turn();
    }
    const found = await this.#bodies(survivor, targetNamespace);
    if (action !== 'copy') {
      const twice = found.source.filter((body) => found.target.includes(body));
      assert.deepEqual(twice, [], 'no element is in two queues when the node dies');
    }
    const [stored] = await survivor.operations.list({ ns: null, queue: null, state: null }, ALL);
    if (stored === undefined) {
      // It died before the operation was stored: nothing has happened.
      assert.deepEqual(found.source, BODIES);
      return mortal.isDead;
    }
    for (let passed = 0; passed < SILENT_MS && mortal.isDead; passed += 1000) {
      await this.#passTime(1000);
      // When this call is answered, so are those that the other node made at this time.
      await survivor.get(stored.id);
    }
    const record = await survivor.ended(stored.id, { passTime: (ms) => this.#passTime(ms) });
    assert.deepEqual([record.state, record.changed, record.failed], ['done', COUNT, 0]);
    assert.deepEqual(await this.#bodies(survivor, targetNamespace), { source, target });
    const left = await survivor.elements('N', 'from');
    if (action === 'set') assert.ok(left.every((one) => one.headers.join() === 'times,1'));
    if (action === 'delay') assert.equal(new Set(left.map(({ matureAt }) => matureAt)).size, 1);
    if (action === 'release') assert.ok(left.every(({ state, tries }) => state === 'ready' && tries === 0));
    if (action === 'redrive') {
      const back = await survivor.elements('N', 'to');
      assert.ok(back.every((one) => one.headers.length === 0));
    }
    return mortal.isDead;
  }

  async #bodies(
    node: OperationNode,
    targetNamespace: string,
  ): Promise<Record<'source' | 'target', string[]>> {
    return {
      source: (await node.bodies('N', 'from')).sort(),
      target: (await node.bodies(targetNamespace, 'to')).sort(),
    };
  }

  /** Deletes all elements and operations, for the next run. */
  async #empty(node: OperationNode): Promise<void> {
    for (const [ns, queue] of [
      ['N', 'from'],
      ['N', 'to'],
      ['far', 'to'],
    ] as const) {
      const { storage } = node.broker.namespace(ns);
      while (!(await storage.purge({ ns, name: queue })).isDone);
    }
    const { definitions } = node.broker.namespace('N');
    for (const kind of ['operation', 'operation-progress'] as const) {
      for (const { key } of await definitions.list(kind)) await definitions.delete(kind, key, 'any');
    }
  }
}

const ALL = { name: 'op', may: () => true, maySee: () => true, maySeeBodies: () => true };

for (const engine of MAIN_ENGINES_AND_CLUSTER) {
  describe(`A node that dies during a bulk operation, on ${engine.name}`, () => {
    let world: CrashWorld;
    // In memory the node dies at every change; over a network only at some, since the loop is the same.
    const isInMemory = engine === MEMORY_SQLITE;
    before(async () => {
      world = await CrashWorld.open(engine);
    });
    after(() => world.close());

    for (const [name, kind] of Object.entries(KINDS)) {
      for (const cut of isInMemory ? CUTS : ['after' as const]) {
        it(`${name}: another node completes it, whichever of its changes the node dies ${cut}`, async () => {
          let runs = 0;
          for (let dyingCall = 1; await world.run(kind, dyingCall, cut); dyingCall += isInMemory ? 1 : 4)
            runs += 1;
          assert.ok(runs >= 2, `${runs} runs in which the node died`);
        });
      }
    }
  });
}
