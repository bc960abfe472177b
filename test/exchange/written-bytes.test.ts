import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { SelectorProgram, SelectorSandbox } from '../../src/sandbox/sandbox.ts';
import { writtenBytes } from '../../src/sandbox/sandbox.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { newElement } from '../support/elements.ts';
import { declare, ExchangeNode, header, openEngine } from './node.ts';

const MiB = 2 ** 20;
const ELEMENTS = 800;
/** Bytes that selectors write per element. */
const WRITTEN = 128 * 1024;
/** Bytes that all exchanges of a node may have in flight. */
const MAX_IN_FLIGHT = 64 * MiB;
const GREEDY = { name: 'greedy', maySee: () => true, maySeeBodies: () => true };

describe('Bytes that selectors write', () => {
  /** Counts the bytes that the selectors of one owner have written. */
  function counting(sandbox: SelectorSandbox, owner: string): { sandbox: SelectorSandbox; bytes(): number } {
    let bytes = 0;
    const open: SelectorSandbox['open'] = (selectors, options) => {
      const program = sandbox.open(selectors, options);
      if (options?.payer !== owner) return program;
      const select: SelectorProgram['select'] = async (elements) => {
        const answers = await program.select(elements);
        for (const answer of answers) {
          if (answer.outcome === 'evaluated') bytes += writtenBytes(answer.verdicts);
        }
        return answers;
      };
      return { select, selectWithoutBodies: select, close: () => program.close() };
    };
    const counted: SelectorSandbox = {
      start: () => sandbox.start(),
      stop: () => sandbox.stop(),
      check: (...given) => sandbox.check(...given),
      open,
    };
    return { sandbox: counted, bytes: () => bytes };
  }

  it('count as in flight, keep the order of the source, and are stored in bounded calls', async (t) => {
    const { sandbox, bytes } = counting(sharedSandbox(), GREEDY.name);
    const opened = await openEngine('N');
    const node = await new ExchangeNode(opened.namespaces, opened.clock, sandbox).start();
    const held = Promise.withResolvers<void>();
    t.after(async () => {
      held.resolve();
      await node.stop();
      await sandbox.stop();
      await opened.close();
    });
    const { storage } = opened.engine;
    const settle = storage.settle.bind(storage);
    let copies = 0;
    let largest = 0;
    // The engine does not finish elements of one exchange.
    storage.settle = async (items, ...rest) => {
      if (items[0]?.queue.name === 'from') {
        const inserted = items.flatMap(({ action }) =>
          action.kind === 'finish' && action.inserts ? action.inserts : [],
        );
        copies += inserted.length;
        const bytes = inserted.reduce((sum, { element }) => sum + element.body.byteLength, 0);
        largest = Math.max(largest, bytes);
        await held.promise;
      }
      return settle(items, ...rest);
    };
    const grows = `env => { env.msg.payload = new Uint8Array(${WRITTEN / 2}); return true }`;
    await node.exchanges.create('grows', declare('N/from', [['N/a', grows], 'N/b']), GREEDY);
    await node.exchanges.create('honest', declare('N/in', [['N/out', 'true']]));
    const from = node.broker.namespace('N').queue('from');
    await from.insert(
      Array.from({ length: ELEMENTS }, (_, n) =>
        newElement({ body: 'x', contentType: null, headers: ['n', `${n}`] }),
      ),
    );
    // The selector thread is shared fairly: the other exchange has its turn this many times.
    for (let turns = 0; turns < 100; turns += 1) {
      await node.insert('N', 'in', 'honest');
      await node.pop('N', 'out');
    }
    assert.ok(bytes() > 0, 'the selectors ran');
    assert.ok(bytes() <= MAX_IN_FLIGHT, `${bytes()} bytes are in flight`);
    assert.ok(copies < 2 * ELEMENTS);
    held.resolve();
    const stored = await node.popMany('N', 'b', ELEMENTS);
    assert.deepEqual(
      stored.map((copy) => header(copy, 'n')),
      Array.from({ length: ELEMENTS }, (_, n) => `${n}`),
    );
    assert.ok(stored.every(({ body }) => body.byteLength === WRITTEN / 2));
    assert.equal(bytes(), ELEMENTS * WRITTEN, 'no selector ran twice');
    assert.ok(largest <= 5 * MiB, `${largest} bytes were stored in one call`);
  });
});
