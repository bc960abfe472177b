import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { MeteredOperation } from '../../src/broker/meter.ts';
import { NODE } from '../../src/exchange/declaration.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import type { SelectorProgram, SelectorSandbox } from '../../src/sandbox/sandbox.ts';
import { withFolder } from '../engines/sqlite-folder.ts';
import type { TestEngine } from '../engines.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { plain, type TestNamespace } from '../support/broker.ts';
import { bodyText, bodyTexts, newElement } from '../support/elements.ts';
import { engineWith } from '../support/engine-with.ts';
import { until } from '../support/until.ts';
import { declare, ExchangeNode, FILLS_ITS_MEMORY, header, openEngine } from './node.ts';

type Opened = TestEngine & { namespaces: TestNamespace[] };

describe('an exchange', () => {
  const sandbox = sharedSandbox();
  let here: Opened;
  let there: Opened;
  let node: ExchangeNode;
  let queues = 0;
  /** Unique names, so that tests share no queues. */
  const names = (): { src: string; a: string; b: string; id: string } => {
    queues += 1;
    return { src: `src${queues}`, a: `a${queues}`, b: `b${queues}`, id: `x${queues}` };
  };

  before(async () => {
    await sandbox.start();
    here = await openEngine('N', 'M');
    there = await openEngine('far');
    node = await new ExchangeNode([...here.namespaces, ...there.namespaces], here.clock, sandbox).start();
  });

  after(async () => {
    await node.stop();
    await sandbox.stop();
    await here.close();
    await there.close();
  });

  it('copies each element to every destination byte for byte, with one more hop', async () => {
    const { src, a, b, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`, `M/${b}`]));
    const queue = node.broker.namespace('N').queue(src);
    const [given] = await queue.insert([
      newElement({ body: 'p\u00e4ckchen', contentType: 'text/x; a=b', headers: ['k', 'v'], tries: 3 }),
    ]);
    for (const [ns, name] of [
      ['N', a],
      ['M', b],
    ] as const) {
      const copy = await node.pop(ns, name);
      assert.equal(bodyText(copy), 'p\u00e4ckchen');
      assert.equal(copy.contentType, 'text/x; a=b');
      assert.equal(header(copy, 'k'), 'v');
      assert.equal(header(copy, 'x-hop-count'), '1');
      assert.equal(copy.tries, 0);
      assert.notEqual(copy.id, given);
    }
    assert.equal(await node.total('N', src), 0);
  });

  it('evaluates the selectors in order; later ones see the changes of earlier ones', async () => {
    const { src, a, b, id } = names();
    await node.exchanges.create(
      id,
      declare(`N/${src}`, [
        [`N/${a}`, 'env => { env.msg.hdrs.seen = "a"; return env.msg.payload.n > 1 }'],
        [`N/${b}`, 'env.msg.hdrs.seen === "a"'],
      ]),
    );
    const queue = node.broker.namespace('N').queue(src);
    const json = (n: number) => newElement({ body: JSON.stringify({ n }), contentType: 'application/json' });
    await queue.insert([json(1), json(2)]);
    assert.equal(bodyText(await node.pop('N', a)), '{"n":2}');
    const both = await node.popMany('N', b, 2);
    assert.deepEqual(both.map(bodyText), ['{"n":1}', '{"n":2}']);
    assert.deepEqual(
      both.map((copy) => header(copy, 'seen')),
      ['a', 'a'],
    );
    assert.equal(await node.total('N', a), 0);
  });

  it('delays a copy as its selector requests', async () => {
    const { src, a, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [[`N/${a}`, '({ delay: 60, tries: 2 })']]));
    await node.insert('N', src, 'later');
    const popped = node.pop('N', a);
    await settled(node, 'N', src);
    assert.equal((await node.broker.namespace('N').visit(a).status(null)).schedSize, 1);
    await here.passTime(60_000);
    const copy = await popped;
    assert.equal(copy.tries, 2);
  });

  it('moves unroutable elements to __no_route__, with the id of the exchange', async () => {
    const { src, a, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [[`N/${a}`, 'false']]));
    await node.insert('N', src, 'unroutable');
    const unroutable = await node.pop('N', '__no_route__');
    assert.equal(bodyText(unroutable), 'unroutable');
    assert.equal(header(unroutable, 'x-exchange-name'), id);
    assert.equal(header(unroutable, 'x-hop-count'), undefined);
  });

  it('ends a loop after 17 hops in __too_many_hops__, and reports the loop', async () => {
    const { src, a, id } = names();
    await node.exchanges.create(`${id}-back`, declare(`N/${a}`, [`N/${src}`]));
    const loops = await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`]));
    assert.deepEqual(loops, [[id, `${id}-back`, id]]);
    await node.insert('N', src, 'round');
    const lost = await node.pop('N', '__too_many_hops__');
    assert.equal(header(lost, 'x-hop-count'), '17');
    assert.ok([id, `${id}-back`].includes(header(lost, 'x-exchange-name') ?? ''));
    assert.deepEqual(node.exchanges.record(id).loops, [[id, `${id}-back`, id]]);
  });

  it('treats a selector that throws as false, and reports its error', async () => {
    const { src, a, b, id } = names();
    const declaration = declare(`N/${src}`, [[`N/${a}`, 'env => { throw new Error("boom") }'], `N/${b}`]);
    await node.exchanges.create(id, declaration);
    await node.insert('N', src, 'x');
    await node.pop('N', b);
    // The copy may be delivered before the exchange knows that its source was finished.
    await until(() => node.exchanges.record(id).stats.dst[1]?.matched === 1);
    const { stats, errors } = node.exchanges.record(id);
    assert.deepEqual(stats.dst, [
      { matched: 0, skipped: 0, failed: 1 },
      { matched: 1, skipped: 0, failed: 0 },
    ]);
    assert.match(errors[0]?.message ?? '', /boom/);
    assert.equal(await node.total('N', a), 0);
  });

  it('requeues an element whose selector exceeds a limit, and stops with the error after three in a row', async () => {
    const { src, a, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [[`N/${a}`, FILLS_ITS_MEMORY]]));
    await node.insert('N', src, '1', '2', '3');
    await until(() => node.exchanges.record(id).stopped === true);
    assert.notEqual(node.exchanges.record(id).lastError, null);
    await node.exchanges.delete(id);
    assert.equal(await node.total('N', src), 3);
  });

  for (const [when, goOn] of [
    ['after the next three in a row', (src: string) => node.insert('N', src, '4', '5', '6')],
    ['after a second', () => here.passTime(1_000)],
  ] as const) {
    it(`stops ${when} if its stop could not be stored`, async () => {
      const { src, a, id } = names();
      const { definitions } = here.engine;
      const put = definitions.put.bind(definitions);
      await node.exchanges.create(id, declare(`N/${src}`, [[`N/${a}`, FILLS_ITS_MEMORY]]));
      let rejections = 0;
      definitions.put = (...args) => {
        if (rejections > 0) return put(...args);
        rejections += 1;
        return Promise.reject(new QuaysideError('storage-unavailable', 'planted'));
      };
      try {
        await node.insert('N', src, '1', '2', '3');
        await until(() => rejections === 1 && node.exchanges.record(id).stats.put_back === 3);
        assert.equal(node.exchanges.record(id).stopped, null);
        await goOn(src);
        await until(() => node.exchanges.record(id).stopped === true);
      } finally {
        definitions.put = put;
        await node.exchanges.delete(id);
      }
    });
  }

  it('is not stopped because of a selector that a change has replaced', async () => {
    const { src, a, id } = names();
    const { definitions } = here.engine;
    const put = definitions.put.bind(definitions);
    await node.exchanges.create(id, declare(`N/${src}`, [[`N/${a}`, FILLS_ITS_MEMORY]]));
    const mended = declare(`N/${src}`, [[`N/${a}`, 'true']]);
    const { promise: overran, resolve } = Promise.withResolvers<void>();
    const changes: Promise<unknown>[] = [];
    let puts = 0;
    // The change is being stored when the old selector exceeds its limit for the third time.
    definitions.put = async (...args) => {
      puts += 1;
      if (puts === 1) await overran;
      return put(...args);
    };
    try {
      changes.push(
        node.exchanges.change(id, { declaration: mended, caller: NODE, versions: null }, () => {}),
      );
      await until(() => puts === 1);
      await node.insert('N', src, '1', '2', '3');
      await until(() => node.exchanges.record(id).stats.put_back === 3);
      resolve();
      await Promise.all(changes);
      // Changes run one after the other: the stop for the exceeded limit was requested before this one.
      await node.exchanges.stopExchange(id);
      assert.equal(node.exchanges.record(id).lastError, null);
    } finally {
      resolve();
      definitions.put = put;
      await node.exchanges.delete(id);
    }
  });

  for (const reserve of [false, true]) {
    it(`forwards to another engine, reserve ${reserve}`, async () => {
      const { src, a, b, id } = names();
      await node.exchanges.create(id, declare(`N/${src}`, [`far/${a}`, `N/${b}`], { reserve }));
      await node.insert('N', src, '1', '2', '3');
      assert.deepEqual((await node.popMany('far', a, 3)).map(bodyText), ['1', '2', '3']);
      assert.deepEqual((await node.popMany('N', b, 3)).map(bodyText), ['1', '2', '3']);
      await settled(node, 'N', src);
      assert.equal(await node.total('N', src), 0);
    });
  }

  it('stores a copy in another engine once, even if the commit at its source failed', async () => {
    const { src, a, id } = names();
    const storage = here.engine.storage;
    const settle = storage.settle.bind(storage);
    let refusals = 1;
    // The copies are stored, but finishing the source fails.
    storage.settle = (items) => {
      if (refusals === 0 || items[0]?.action.kind !== 'finish') return settle(items);
      refusals -= 1;
      return Promise.reject(new QuaysideError('storage-unavailable', 'planted'));
    };
    try {
      await node.exchanges.create(id, declare(`N/${src}`, [`far/${a}`], { reserve: true }));
      await node.insert('N', src, 'once');
      assert.equal(bodyText(await node.pop('far', a)), 'once');
      await until(() => refusals === 0 && node.exchanges.record(id).stats.put_back === 1);
      while ((await node.total('N', src)) > 0) await here.passTime(5_000);
      assert.equal(await node.total('far', a), 0);
    } finally {
      storage.settle = settle;
    }
  });

  it('stores copies of more than 16 MiB before it finishes their element, each once, even if that failed', async () => {
    const { src, a, b, id } = names();
    const storage = here.engine.storage;
    const settle = storage.settle.bind(storage);
    /** Copies in each call that finishes the element. */
    const finishes: number[] = [];
    storage.settle = (items, ...rest) => {
      const [{ action } = { action: null }] = items;
      if (action?.kind !== 'finish') return settle(items, ...rest);
      finishes.push(action.inserts?.length ?? 0);
      if (finishes.length > 1) return settle(items, ...rest);
      return Promise.reject(new QuaysideError('storage-unavailable', 'planted'));
    };
    try {
      await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`, `M/${b}`]));
      await node.insert('N', src, 'x'.repeat(9 * 2 ** 20));
      await until(() => node.exchanges.record(id).stats.put_back === 1);
      while ((await node.total('N', src)) > 0) await here.passTime(5_000);
      assert.deepEqual([await node.total('N', a), await node.total('M', b)], [1, 1]);
      assert.deepEqual(finishes, [0, 0]);
    } finally {
      storage.settle = settle;
    }
  });

  it('stores at most 16 MiB of large copies in one call, also if one queue is several destinations', async () => {
    const { src, a, id } = names();
    const storage = here.engine.storage;
    const insert = storage.insert.bind(storage);
    const copies: number[] = [];
    await node.insert('N', a, 'so that the queue exists');
    storage.insert = (queue, elements, ...rest) => {
      if (queue.name === a) copies.push(elements.length);
      return insert(queue, elements, ...rest);
    };
    try {
      const selected = ['1', '2', '3'].map((selector): [string, string] => [`N/${a}`, selector]);
      await node.exchanges.create(id, declare(`N/${src}`, selected));
      await node.insert('N', src, 'x'.repeat(7 * 2 ** 20));
      await until(async () => (await node.total('N', src)) === 0);
      assert.equal(await node.total('N', a), 4);
      assert.deepEqual(copies, [2, 1]);
    } finally {
      storage.insert = insert;
    }
  });

  it('stores at most 2,000 copies of several elements in one call', async () => {
    const { src, a, id } = names();
    const storage = here.engine.storage;
    const settle = storage.settle.bind(storage);
    const copies: number[] = [];
    storage.settle = (items, ...rest) => {
      const inserts = items.map(({ action }) => (action.kind === 'finish' && action.inserts?.length) || 0);
      copies.push(inserts.reduce((sum, count) => sum + count, 0));
      return settle(items, ...rest);
    };
    try {
      const selected = Array.from({ length: 250 }, (_, i): [string, string] => [`N/${a}`, `${i + 1}`]);
      const elements = Array.from({ length: 30 }, () => newElement({}));
      await node.broker.namespace('N').queue(src).insert(elements);
      await node.exchanges.create(id, declare(`N/${src}`, selected));
      await until(async () => (await node.total('N', src)) === 0);
      assert.equal(await node.total('N', a), 30 * 250);
      assert.ok(Math.max(...copies) <= 2_000, `${copies} copies`);
    } finally {
      storage.settle = settle;
    }
  });

  it('keeps the lease of an element while its large copies are being stored', async () => {
    const { src, a, b, id } = names();
    const storage = here.engine.storage;
    const insert = storage.insert.bind(storage);
    storage.insert = async (queue, ...rest) => {
      if (queue.name !== src) await here.passTime(800);
      return insert(queue, ...rest);
    };
    try {
      await node.broker.namespace('N').queue(src).storeOptions({ leaseMs: 1_000 });
      await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`, `M/${b}`]));
      await node.insert('N', src, 'x'.repeat(9 * 2 ** 20));
      await until(() => node.exchanges.record(id).stats.dst.every(({ matched }) => matched === 1));
      assert.equal(await node.total('N', src), 0);
    } finally {
      storage.insert = insert;
    }
  });

  it('asks an engine that fails for one large copy to store no other ones of the element', async () => {
    const { src, a, b, id } = names();
    const storage = there.engine.storage;
    const insert = storage.insert.bind(storage);
    const asked: string[] = [];
    storage.insert = (queue) => {
      asked.push(queue.name);
      return Promise.reject(new QuaysideError('storage-unavailable', 'planted'));
    };
    try {
      const to = [`far/${a}`, `far/${b}`, `N/${a}`];
      await node.exchanges.create(id, declare(`N/${src}`, to, { reserve: true }));
      await node.insert('N', src, 'x'.repeat(6 * 2 ** 20));
      await until(() => node.exchanges.record(id).stats.put_back === 1);
      assert.deepEqual(asked, [a]);
      const { stats } = node.exchanges.record(id);
      assert.deepEqual(
        stats.dst.map(({ failed }) => failed),
        [1, 1, 0],
      );
      storage.insert = insert;
      while ((await node.total('N', src)) > 0) await here.passTime(5_000);
      for (const [ns, queue] of [
        ['far', a],
        ['far', b],
        ['N', a],
      ] as const)
        assert.equal(await node.total(ns, queue), 1);
    } finally {
      storage.insert = insert;
    }
  });

  it('stores a copy in another engine once, even if another destination is removed before the retry', async () => {
    const { src, a, b, id } = names();
    const storage = there.engine.storage;
    const insert = storage.insert.bind(storage);
    storage.insert = (queue, ...rest) =>
      queue.name === b
        ? Promise.reject(new QuaysideError('storage-unavailable', 'planted'))
        : insert(queue, ...rest);
    try {
      await node.exchanges.create(id, declare(`N/${src}`, [`far/${b}`, `far/${a}`], { reserve: true }));
      await node.insert('N', src, 'once');
      await until(() => node.exchanges.record(id).stats.put_back === 1);
      const declaration = declare(`N/${src}`, [`far/${a}`], { reserve: true });
      await node.exchanges.change(id, { declaration, caller: NODE, versions: null }, () => {});
      while ((await node.total('N', src)) > 0) await here.passTime(5_000);
      assert.equal(bodyText(await node.pop('far', a)), 'once');
      assert.equal(await node.total('far', a), 0);
    } finally {
      storage.insert = insert;
    }
  });

  it('reports the last error of a destination that rejects its copy, and counts requeued elements', async () => {
    const { src, a, id } = names();
    const storage = there.engine.storage;
    const insert = storage.insert.bind(storage);
    let refusals = 1;
    storage.insert = (queue, elements) => {
      if (refusals === 0) return insert(queue, elements);
      refusals -= 1;
      return Promise.reject(new QuaysideError('storage-full', 'planted'));
    };
    try {
      await node.exchanges.create(id, declare(`N/${src}`, [`N/${id}`, `far/${a}`], { reserve: true }));
      await node.insert('N', src, 'x');
      await until(() => node.exchanges.record(id).stats.put_back === 1);
      const { errors } = node.exchanges.record(id);
      assert.deepEqual(
        errors.map(({ destination, message, count }) => ({ destination, message, count })),
        [{ destination: 1, message: 'storage-full: planted', count: 1 }],
      );
      while ((await node.total('N', src)) > 0) await here.passTime(5_000);
      assert.deepEqual([await node.total('N', id), await node.total('far', a)], [1, 1]);
    } finally {
      storage.insert = insert;
    }
  });

  it('is created once: the same declaration again changes nothing, a different one is rejected', async () => {
    const { src, a, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`]));
    const { cid } = node.exchanges.record(id);
    await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`]));
    assert.equal(node.exchanges.record(id).cid, cid);
    await assert.rejects(node.exchanges.create(id, declare(`N/${src}`, [`N/${a}x`])), {
      code: 'exchange-exists',
    });
  });

  it('shows null or the last requested state as stopped; stop and start are idempotent', async () => {
    const { src, a, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`]));
    assert.equal(node.exchanges.record(id).stopped, null);
    for (const stop of [true, true, false, false, true]) {
      await (stop ? node.exchanges.stopExchange(id) : node.exchanges.startExchange(id));
      assert.equal(node.exchanges.record(id).stopped, stop);
    }
    await node.insert('N', src, 'held');
    assert.equal(await node.total('N', src), 1);
    await node.exchanges.startExchange(id);
    assert.equal(bodyText(await node.pop('N', a)), 'held');
  });

  it('leaves its queues untouched when it is deleted', async () => {
    const { src, a, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`]));
    await node.insert('N', src, 'x');
    await node.pop('N', a);
    await node.insert('N', a, 'stays');
    await node.exchanges.delete(id);
    assert.equal(await node.total('N', a), 1);
    assert.throws(() => node.exchanges.record(id), { code: 'exchange-not-found' });
    for (const change of [
      () => node.exchanges.delete(id),
      () => node.exchanges.stopExchange(id),
      () => node.exchanges.startExchange(id),
    ]) {
      await assert.rejects(change, { code: 'exchange-not-found' });
    }
  });

  it('is metered as a consumer that reserves and commits; stopping it counts no error of a get', async () => {
    const { src, a, id } = names();
    const counted = (operation: MeteredOperation) =>
      new Map(node.broker.namespace('N').meter.operations().get(operation));
    const takes = () => node.broker.namespace('N').meter.storageTimes().get('reserve')?.count ?? 0;
    const [reserves, commits, asked] = [counted('reserve'), counted('commit'), takes()];
    await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`, `M/${a}`]));
    await node.insert('N', src, 'x', 'y');
    await node.popMany('N', a, 2);
    await until(() => Object.keys(node.exchanges.record(id).pending_acks).length === 0);
    await node.exchanges.stopExchange(id);
    assert.deepEqual(counted('reserve'), reserves.set('ok', (reserves.get('ok') ?? 0) + 2));
    assert.deepEqual(counted('commit'), commits.set('ok', (commits.get('ok') ?? 0) + 2));
    assert.ok(takes() > asked);
  });

  it('loses nothing when it is stopped under load', async () => {
    const { src, a, id } = names();
    const bodies = Array.from({ length: 2000 }, (_, i) => `${i}`);
    await node.insert('N', src, ...bodies);
    await node.exchanges.create(id, declare(`N/${src}`, [[`N/${a}`, 'true']], { wsize: 300, parallel: 3 }));
    await node.pop('N', a);
    await node.exchanges.stopExchange(id);
    await until(() => Object.keys(node.exchanges.record(id).pending_acks).length === 0);
    await node.exchanges.delete(id);
    assert.equal((await node.total('N', src)) + (await node.total('N', a)), 1999);
  });

  it('releases its elements when it stops, without waiting for its selectors', async () => {
    const asked = Promise.withResolvers<void>();
    const answered = Promise.withResolvers<void>();
    const silent: SelectorSandbox = {
      start: () => sandbox.start(),
      stop: () => sandbox.stop(),
      check: (...given) => sandbox.check(...given),
      open: (...given) => {
        const program = sandbox.open(...given);
        const select: SelectorProgram['select'] = async (elements) => {
          asked.resolve();
          await answered.promise;
          return program.select(elements);
        };
        return { select, selectWithoutBodies: select, close: () => program.close() };
      },
    };
    const apart = await openEngine('apart');
    const alone = await new ExchangeNode(apart.namespaces, apart.clock, silent).start();
    await alone.exchanges.create('x', declare('apart/src', [['apart/to', 'true']]));
    await alone.insert('apart', 'src', 'asked about');
    await asked.promise;
    await alone.exchanges.stopExchange('x');
    assert.equal(bodyText(await alone.pop('apart', 'src')), 'asked about');
    await alone.stop();
    answered.resolve();
    assert.equal(await alone.total('apart', 'to'), 0);
    await apart.close();
  });

  it('preserves the order of its source', async () => {
    const { src, a, id } = names();
    const bodies = Array.from({ length: 1500 }, (_, i) => `${i}`);
    await node.exchanges.create(id, declare(`N/${src}`, [[`N/${a}`, 'true']]));
    await node.insert('N', src, ...bodies);
    assert.deepEqual((await node.popMany('N', a, 1500)).map(bodyText), bodies);
  });

  it('runs on a second node of the same engine, each element once, and is deleted on both', async () => {
    const { src, a, id } = names();
    const second = await new ExchangeNode(here.namespaces, here.clock, sandbox).start();
    await node.exchanges.create(id, declare(`N/${src}`, [[`N/${a}`, 'true']]));
    await until(() => second.exchanges.visible().some(([known]) => known === id));
    const bodies = Array.from({ length: 500 }, (_, i) => `${i}`);
    await Promise.all(bodies.map((body, i) => (i % 2 === 0 ? node : second).insert('N', src, body)));
    const got = (await node.popMany('N', a, 500)).map(bodyText);
    assert.deepEqual(got.sort(), bodies.sort());
    await second.exchanges.stopExchange(id);
    await until(() => node.exchanges.record(id).stopped === true);
    await second.exchanges.delete(id);
    await until(() => !node.exchanges.visible().some(([known]) => known === id));
    assert.equal(await node.total('N', a), 0);
    await second.stop();
  });

  it('exists after a restart, stopped if it was stopped', async () => {
    const { src, a, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`]));
    await node.exchanges.stopExchange(id);
    const later = await new ExchangeNode(here.namespaces, here.clock, sandbox).start();
    assert.equal(later.exchanges.record(id).stopped, true);
    await later.stop();
  });

  it('of the configuration file overrides the declaration of a stored one', async () => {
    const { src, a, b, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`]));
    await node.exchanges.stopExchange(id);
    const configured = new Map([[id, declare(`N/${src}`, [`N/${b}`])]]);
    const later = await new ExchangeNode(here.namespaces, here.clock, sandbox, { configured }).start();
    assert.equal(later.exchanges.record(id).dst[0]?.q, b);
    assert.equal(later.exchanges.record(id).stopped, true);
    await later.stop();
  });

  it('is rejected for unknown namespaces, invalid selectors, and selectors when they are off, with the parameter', async () => {
    const { src, a, id } = names();
    const refused = (promise: Promise<unknown>, parameter: string) =>
      assert.rejects(promise, (error: QuaysideError) => error.details.parameter === parameter);
    await refused(node.exchanges.create(id, declare(`nowhere/${src}`, [`N/${a}`])), 'src.ns');
    await refused(node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`, 'nowhere/q'])), 'dst[1].ns');
    await refused(
      node.exchanges.create(id, declare(`N/${src}`, [[`N/${a}`, 'env => (']])),
      'dst[0].selector',
    );
    const off = await new ExchangeNode(here.namespaces, here.clock, sandbox, { selectors: false }).start();
    await refused(off.exchanges.create(id, declare(`N/${src}`, [[`N/${a}`, 'true']])), 'dst[0].selector');
    await off.exchanges.create(id, declare(`N/${src}`, [`N/${a}`]));
    await off.stop();
  });

  it('can be dry-run with a sample, as can a declaration that is not stored', async () => {
    const { src, a, b, id } = names();
    const declaration = declare(`N/${src}`, [
      [`N/${a}`, 'env => { env.msg.hdrs.c = "1"; env.msg.payload.n += 1; return { delay: 5 } }'],
      [`N/${b}`, 'env.msg.hdrs.c === "2"'],
    ]);
    const sample = {
      ...newElement({ body: '{"n":1}', contentType: 'application/json' }),
      id: 'sample',
      matureAt: 0,
    };
    const tried = await node.exchanges.dryRun(id, sample, declaration);
    assert.deepEqual(
      tried.dst.map(({ q, accepted, delay, payload, hdrs }) => ({
        q,
        accepted,
        delay,
        payload,
        c: hdrs.c,
      })),
      [
        { q: a, accepted: true, delay: 5, payload: '{"n":2}', c: '1' },
        { q: b, accepted: false, delay: null, payload: '{"n":2}', c: '1' },
      ],
    );
    await assert.rejects(node.exchanges.dryRun(id, sample, null), { code: 'exchange-not-found' });
    await node.exchanges.create(id, declare(`N/${src}`, [[`N/${a}`, 'false']]));
    assert.equal((await node.exchanges.dryRun(id, sample, null)).strays_to, '__no_route__');
    assert.equal(
      (await node.exchanges.dryRun(id, { ...sample, headers: ['x-hop-count', '17'] }, null)).strays_to,
      '__too_many_hops__',
    );
    assert.equal((await node.total('N', a)) + (await node.total('N', src)), 0);
  });

  it('has no more elements in progress than its window, however many loops are declared', async () => {
    const { src, a, id } = names();
    await node.exchanges.create(id, declare(`N/${src}`, [`N/${a}`], { parallel: 16, wsize: 2 }));
    const idle = (): number => Object.keys(node.exchanges.record(id).pending_tids).length;
    await until(() => idle() >= 2);
    assert.equal(idle(), 2);
  });

  it('has the record of the specification', async () => {
    const { src, a, id } = names();
    const declaration = declare(`N/${src}`, [[`N/${a}`, 'true']], { parallel: 2, wsize: 50, reserve: true });
    await node.exchanges.create(id, declaration);
    await until(() => Object.keys(node.exchanges.record(id).pending_tids).length === 2);
    const record = node.exchanges.record(id);
    assert.deepEqual(record.src, { q: src, ns: 'N' });
    assert.deepEqual(record.dst, [{ q: a, ns: 'N', selector: 'true' }]);
    assert.deepEqual(record.opts, { parallel: 2, wsize: 50, reserve: true });
    assert.equal(record.wsize, 50);
    assert.equal(typeof record.cid, 'string');
    assert.deepEqual(record.pending_acks, {});
    for (const since of Object.values(record.pending_tids)) assert.ok(!Number.isNaN(Date.parse(since)));
  });
});

/** Resolves once no element of a queue is reserved or ready. */
async function settled(node: ExchangeNode, ns: string, queue: string): Promise<void> {
  await until(async () => {
    const { size, resvSize } = await node.broker.namespace(ns).visit(queue).status(null);
    return size === 0 && resvSize === 0;
  });
}

describe('an exchange on a SQLite file', () => {
  const sandbox = sharedSandbox();
  before(() => sandbox.start());
  after(() => sandbox.stop());

  it('leaves the elements that it has not forwarded when the engine ends ready for the next start, without a failed try', async () => {
    await withFolder(async (folder) => {
      const first = await folder.started();
      const { promise: isSettling, resolve: settling } = Promise.withResolvers<void>();
      const { promise: hasEnded, resolve: end } = Promise.withResolvers<void>();
      const engine = engineWith(first, () => ({
        settle: async () => {
          settling();
          await hasEnded;
          throw new QuaysideError('storage-unavailable', 'ended');
        },
      }));
      const node = await new ExchangeNode([{ policy: plain('N'), engine }], folder.clock, sandbox).start();
      await node.insert('N', 'src', 'a', 'b');
      await node.exchanges.create('held', declare('N/src', ['N/dst']));
      await isSettling;
      await first.stop();
      const second = await folder.started();
      const options = { group: '', count: 9, leaseMs: null };
      const { deliveries } = await second.storage.take({ ns: 'N', name: 'src' }, options);
      end();
      await node.stop();
      assert.deepEqual(bodyTexts(deliveries), ['a', 'b']);
      assert.deepEqual(
        deliveries.map(({ tries }) => tries),
        [0, 0],
      );
    });
  });
});
