import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { sharedSandbox } from '../sandbox/elements.ts';
import { betweenProcesses, SILENT_LOG, type TestNamespace } from '../support/broker.ts';
import { bodyText } from '../support/elements.ts';
import { engineWithoutNotifications } from '../support/engine-with.ts';
import { declare, ExchangeNode, openEngine } from './node.ts';

type Opened = Awaited<ReturnType<typeof openEngine>>;

describe('a node without notifications of another node’s changes to exchanges', () => {
  const sandbox = sharedSandbox();
  let here: Opened;
  let there: Opened;
  let node: ExchangeNode;
  let other: ExchangeNode;
  let made = 0;
  /** Unique names, so that tests share no queues. */
  const names = (): { src: string; a: string; b: string; id: string } => {
    made += 1;
    return { src: `src${made}`, a: `a${made}`, b: `b${made}`, id: `x${made}` };
  };
  const late = ({ engine, namespaces }: Opened): TestNamespace[] => {
    const deaf = engineWithoutNotifications(engine);
    return namespaces.map((namespace) => ({ ...namespace, engine: deaf }));
  };
  /** All of them are stopped at the end, even if a test fails. */
  const nodes: ExchangeNode[] = [];
  const run = (started: ExchangeNode): Promise<ExchangeNode> => {
    nodes.push(started);
    return started.start();
  };
  const started = (configured?: ReadonlyMap<string, ReturnType<typeof declare>>): Promise<ExchangeNode> =>
    run(
      new ExchangeNode([...late(here), ...late(there)], here.clock, sandbox, {
        ...(configured !== undefined && { configured }),
      }),
    );
  const stored = async (id: string): Promise<boolean[]> =>
    (await Promise.all([here, there].map(({ engine }) => engine.definitions.get('exchange', id)))).map(
      (definition) => definition !== null,
    );
  const gone = async (on: ExchangeNode, id: string): Promise<void> => {
    await on.exchanges.reload();
    assert.ok(!on.exchanges.visible().some(([known]) => known === id));
    assert.deepEqual(await stored(id), [false, false]);
  };

  before(async () => {
    await sandbox.start();
    here = await openEngine('N', 'M');
    there = await openEngine('far');
    [node, other] = [await started(), await started()];
  });

  after(async () => {
    for (const each of nodes) await each.stop();
    await sandbox.stop();
    await here.close();
    await there.close();
  });

  it('creates a deleted exchange again, whatever its earlier declaration', async () => {
    const { src, a, b, id } = names();
    for (const to of [a, a, b]) {
      await node.exchanges.create(id, declare(`N/${src}`, [`N/${to}`]));
      assert.deepEqual(await stored(id), [true, false]);
      await node.insert('N', src, to);
      assert.equal(bodyText(await node.pop('N', to)), to);
      await other.exchanges.delete(id);
    }
  });

  it('rejects a declaration that differs from the stored one, and runs the stored one', async () => {
    const { src, a, b, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`]));
    await other.exchanges.delete(id);
    await other.exchanges.create(id, declare(`N/${src}`, [`N/${b}`]));
    await assert.rejects(node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`])), {
      code: 'exchange-exists',
    });
    assert.equal(node.exchanges.record(id).dst[0]?.q, b);
  });

  it('stops, starts and deletes exchanges created on the other node, and loads them to show them', async () => {
    const { src, a, id } = names();
    const create = async (next: string): Promise<string> => {
      await other.exchanges.create(next, declare(`far/${src}`, [`far/${a}`]));
      return next;
    };
    const stopped = await create(`${id}-stopped`);
    await node.exchanges.stopExchange(stopped);
    assert.equal(node.exchanges.record(stopped).stopped, true);
    await node.exchanges.startExchange(await create(`${id}-started`));
    assert.equal(node.exchanges.record(`${id}-started`).stopped, false);
    assert.equal((await node.exchanges.declarationOf(await create(`${id}-seen`))).src.queue, src);
    assert.equal(node.exchanges.record(`${id}-seen`).stopped, null);
    await node.exchanges.delete(await create(`${id}-deleted`));
    await gone(node, `${id}-deleted`);
  });

  it('changes only exchanges that the caller may change', async () => {
    const { src, a, id } = names();
    await other.exchanges.create(id, declare(`N/${src}`, [`N/${a}`]));
    const refuse = (): never => {
      throw new Error('not yours');
    };
    for (const change of [
      () => node.exchanges.stopExchange(id, refuse),
      () => node.exchanges.startExchange(id, refuse),
      () => node.exchanges.delete(id, refuse),
    ]) {
      await assert.rejects(change, { message: 'not yours' });
    }
    assert.equal(node.exchanges.record(id).stopped, null);
    assert.deepEqual(await stored(id), [true, false]);
  });

  it('deletes an exchange that two nodes created concurrently in two engines, for good', async () => {
    const { src, a, id } = names();
    await Promise.all([
      node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`])),
      other.exchanges.create(id, declare(`far/${src}`, [`far/${a}`])),
    ]);
    assert.deepEqual(await stored(id), [true, true]);
    for (const each of [node, other]) {
      await each.exchanges.reload();
      assert.equal(each.exchanges.record(id).src.ns, 'N');
    }
    await other.exchanges.delete(id);
    await gone(other, id);
  });

  it('deletes only the copy that the caller may delete, which makes the one of the other engine visible', async () => {
    const { src, a, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`]));
    await other.exchanges.create(id, declare(`far/${src}`, [`far/${a}`]));
    await node.exchanges.reload();
    await node.exchanges.delete(id, (declaration) => {
      if (declaration.src.ns !== 'N') throw new Error('not yours');
    });
    assert.deepEqual(await stored(id), [false, true]);
    assert.equal((await node.exchanges.declarationOf(id)).src.ns, 'far');
    await node.exchanges.delete(id);
    await gone(node, id);
  });

  for (const [home, away] of [
    ['N', 'far'],
    ['far', 'N'],
  ] as const) {
    it(`starts with a configured exchange of ${home}, and deletes one with its id in ${away}`, async () => {
      const { src, a, b, id } = names();
      await node.exchanges.create(id, declare(`${away}/${src}`, [`${away}/${a}`]));
      await node.exchanges.stopExchange(id);
      const configured = new Map([[id, declare(`${home}/${src}`, [`${home}/${b}`])]]);
      const later = await started(configured);
      assert.deepEqual(await stored(id), [home === 'N', home === 'far']);
      const { src: source, stopped } = later.exchanges.record(id);
      assert.deepEqual([source.ns, stopped], [home, true]);
      await later.exchanges.delete(id);
      await gone(later, id);
      await node.exchanges.reload();
    });
  }

  it('keeps a configured exchange once if two engines share a store', async () => {
    const { src, a, b, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`]));
    const shared = here.namespaces.map((namespace) => ({
      ...namespace,
      engine: engineWithoutNotifications(namespace.engine),
    }));
    const configured = new Map([[id, declare(`M/${src}`, [`M/${b}`])]]);
    const later = await run(new ExchangeNode(shared, here.clock, sandbox, { configured }));
    assert.deepEqual(await stored(id), [true, false]);
    assert.equal(later.exchanges.record(id).src.ns, 'M');
    await later.exchanges.delete(id);
    await gone(later, id);
    await node.exchanges.reload();
  });
});

it('a stored exchange that cannot run on a node is logged once, and again after it has changed', async () => {
  const opened = await openEngine('A', 'B');
  const sandbox = sharedSandbox();
  const other = await new ExchangeNode(opened.namespaces, opened.clock, sandbox).start();
  await other.exchanges.create('x', declare('B/src', ['B/dst']));
  const lines: string[] = [];
  const log = { ...SILENT_LOG, warn: (_fields: object, line: string) => void lines.push(line) };
  const node = new ExchangeNode(opened.namespaces.slice(0, 1), opened.clock, sandbox, { log });
  await node.start();
  await node.exchanges.reload();
  await node.exchanges.reload();
  const line = 'a stored exchange cannot run on this node';
  assert.deepEqual(lines, [line]);
  await other.exchanges.stopExchange('x');
  await node.exchanges.reload();
  assert.deepEqual(lines, [line, line]);
  await node.stop();
  await other.stop();
  await sandbox.stop();
  await opened.close();
});

it('a stop and a deletion have been applied by the other nodes when they confirm it, in whatever engine the exchange is stored', async () => {
  const [earlier, present] = [await openEngine('M'), await openEngine('N')];
  const sandbox = sharedSandbox();
  const engines = [earlier, present].map(({ engine, namespaces }) => ({
    engine: betweenProcesses(engineWithoutNotifications(engine)),
    namespaces,
  }));
  const namespaces = engines.flatMap(({ engine, namespaces: own }) => own.map((one) => ({ ...one, engine })));
  const [node, other] = [1, 2].map(
    (seed) => new ExchangeNode(namespaces, present.clock, sandbox, { seed }),
  ) as [ExchangeNode, ExchangeNode];
  // As if N had been in the engine of M when the exchange was created.
  const declaration = declare('N/src', ['N/dst']);
  const value = { declaration, owner: '', stopped: null, lastError: null };
  await earlier.engine.definitions.put('exchange', 'x', JSON.parse(JSON.stringify(value)), null);
  try {
    await node.start();
    await other.start();
    assert.equal(other.exchanges.record('x').stopped, null);
    await node.exchanges.stopExchange('x');
    await node.exchanges.othersHave('x', 'N');
    assert.equal(other.exchanges.record('x').stopped, true);
    await node.exchanges.delete('x');
    await node.exchanges.othersHave('x', 'N');
    assert.equal(other.exchanges.has('x'), false);
  } finally {
    await other.stop();
    await node.stop();
    await sandbox.stop();
    await earlier.close();
    await present.close();
  }
});
