import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { DEFAULT_LIMITS } from '../../src/sandbox/limits.ts';
import { callSize, packElements } from '../../src/sandbox/sandbox.ts';
import {
  Deadline,
  makeImage,
  readAnswer,
  SelectorCall,
  SelectorVm,
  VmCache,
} from '../../src/sandbox/thread/selector-thread.ts';
import { readSelector } from '../../src/sandbox/thread/source.ts';
import { loadWasm } from '../../src/sandbox/worker-handle.ts';
import { element, json } from './elements.ts';

const wasm = await loadWasm();
const image = await makeImage(wasm, DEFAULT_LIMITS);
const deadline = new Deadline();
const unhurried = { ...DEFAULT_LIMITS, callMs: 3_600_000 };

async function makeVm(...selectors: string[]): Promise<SelectorVm> {
  const vm = await SelectorVm.restore(image, wasm, DEFAULT_LIMITS, deadline);
  deadline.start(unhurried.callMs);
  vm.load(selectors.map(readSelector));
  return vm;
}

function ask(vm: SelectorVm, inputs: Parameters<typeof packElements>[0]): string {
  const packed = packElements(inputs, 0, inputs.length, true);
  deadline.start(unhurried.callMs);
  return vm.evaluate(
    packed,
    unhurried.callMs,
    new SelectorCall(packed, { destinations: 1, selectors: 1 }, unhurried, deadline),
  );
}

describe('a selector VM', () => {
  it('uses no more memory after many calls than after a few', async () => {
    const vm = await makeVm(
      'env => { env.msg.hdrs.seen = "1"; env.msg.payload.text += "!"; env.self = env; if (env.msg.tries) throw env; return { delay: 1 } }',
    );
    const inputs = Array.from({ length: 50 }, (_, n) => ({
      ...json({ text: 'x'.repeat(1000) }, ['a', 'b']),
      tries: n % 2,
    }));
    for (let round = 0; round < 30; round += 1) ask(vm, inputs);
    const before = vm.bytes;
    for (let round = 0; round < 300; round += 1) ask(vm, inputs);
    assert.equal(vm.bytes, before);
    assert.ok(before < 4 * 2 ** 20, `${before} bytes`);
    vm.dispose();
  });

  it('returns early if it has used up its time, with the number of evaluated elements', async () => {
    const vm = await makeVm('env => { for (let i = 0; i < 1e4; i += 1); return true }');
    const packed = packElements(Array(50).fill(element()), 0, 50, false);
    const call = new SelectorCall(packed, { destinations: 1, selectors: 1 }, DEFAULT_LIMITS, deadline);
    deadline.start(unhurried.callMs);
    const { count, codes } = readAnswer(vm.evaluate(packed, -1, call), 50, 1, call);
    assert.deepEqual([count, codes], [1, '1']);
    vm.dispose();
  });

  it('is independent of others: VMs do not change the image from which they are created', async () => {
    const [first, second] = [await makeVm('env => true'), await makeVm('env => false')];
    const inputs = [element()];
    assert.deepEqual(
      [ask(first, inputs), ask(second, inputs), ask(first, inputs)],
      ['[1,"1",[]]', '[1,"0",[]]', '[1,"1",[]]'],
    );
    first.dispose();
    second.dispose();
  });

  it('has other random numbers than others', async () => {
    const vms = [
      await makeVm('env => { throw Math.random() }'),
      await makeVm('env => { throw Math.random() }'),
    ];
    const answers = vms.flatMap((vm) => [ask(vm, [element()]), ask(vm, [element()])]);
    assert.equal(new Set(answers).size, 4, answers.join());
    for (const vm of vms) vm.dispose();
  });
});

describe('the elements of one call', () => {
  const of = (bytes: number) => element({ body: Buffer.alloc(bytes) });
  const limits = { batch: 4, batchBodyBytes: 100 };

  it('are limited by the batch size if no bodies are sent', () => {
    const elements = Array(10).fill(of(1000));
    assert.equal(callSize(elements, 0, limits, false), 4);
    assert.equal(callSize(elements, 8, limits, false), 2);
  });

  it('are also limited by the bytes of their bodies, but at least one', () => {
    assert.equal(callSize([of(40), of(60), of(1)], 0, limits, true), 2);
    assert.equal(callSize([of(40), of(60), of(1)], 1, limits, true), 2);
    assert.equal(callSize([of(101), of(1)], 0, limits, true), 1);
    assert.equal(callSize([of(1), of(101)], 0, limits, true), 1);
    assert.equal(callSize(Array(9).fill(of(0)), 0, limits, true), 4);
  });
});

describe('reading the answer of a VM', () => {
  const call = new SelectorCall(
    packElements([], 0, 0, false),
    { destinations: 2, selectors: 2 },
    DEFAULT_LIMITS,
    deadline,
  );
  const read = (answer: unknown): unknown => readAnswer(JSON.stringify(answer), 2, 2, call);

  it('accepts what the guest code writes', () => {
    assert.deepEqual(
      read([
        2,
        '0123',
        [
          [2, null, 5, null, 1, null],
          [3, 'text', null, null, null, [3, 7]],
        ],
      ]),
      {
        outcome: 'called',
        count: 2,
        codes: '0123',
        extras: [
          [2, null, 5, null, 1, null],
          [3, 'text', null, null, null, [2, 7]],
        ],
        changes: [],
        bodies: new Uint8Array(),
        logs: [],
      },
    );
  });

  it('rejects everything else, in case a VM is compromised', () => {
    for (const answer of [
      null,
      {},
      [],
      [0, '', []],
      [3, '000000', []],
      [1, '0', []],
      [1, '0x', []],
      [1, ['0', '0'], []],
      [1, '00', {}],
      [1, '00', [null]],
      [1, '00', [[0, null, 1, null, null, null]]],
      [1, '30', [[0, null, null, null, null, null]]],
      [1, '20', [[0, null, -1, null, null, null]]],
      [1, '20', [[0, null, '1', null, null, null]]],
      [1, '20', [[7, null, 1, null, null, null]]],
      [1, '30', [[0, { toString: 1 }, null, null, null, null]]],
      [1, '30', [[0, 'text', null, null, null]]],
      [1, '30', [[0, 'text', null, null, null, 'there']]],
      [1, '30', [[0, 'text', null, null, null, [1]]]],
      [1, '30', [[0, 'text', null, null, null, [1, 'x']]]],
      { length: 3, 0: 1, 1: '00', 2: [] },
    ]) {
      assert.throws(() => read(answer), /malformed/, JSON.stringify(answer));
    }
    assert.equal(
      (read([1, '30', [[0, 'x'.repeat(500), null, null, null, null]]]) as { extras: string[][] })
        .extras[0]?.[1]?.length,
      200,
    );
  });
});

describe('the VMs kept alive', () => {
  const fakes = (limits: { liveVms: number; liveBytes: number }) => {
    const disposed: number[] = [];
    const cache = new VmCache(limits);
    const vm = (id: number, bytes = 1): SelectorVm =>
      ({ bytes, dispose: () => disposed.push(id) }) as unknown as SelectorVm;
    return { cache, disposed, vm };
  };

  it('are limited in number, least recently used first', () => {
    const { cache, disposed, vm } = fakes({ liveVms: 2, liveBytes: 100 });
    const [one, two, three] = [vm(1), vm(2), vm(3)];
    cache.put(1, one);
    cache.put(2, two);
    assert.equal(cache.take(1), one);
    cache.put(1, one);
    cache.put(3, three);
    assert.deepEqual(disposed, [2]);
    assert.equal(cache.take(2), null);
    assert.equal(cache.take(3), three);
  });

  it('are limited in memory, oldest first', () => {
    const { cache, disposed, vm } = fakes({ liveVms: 9, liveBytes: 10 });
    cache.put(1, vm(1, 4));
    cache.put(2, vm(2, 4));
    cache.put(3, vm(3, 5));
    assert.deepEqual(disposed, [1]);
    cache.put(4, vm(4, 50));
    assert.deepEqual(disposed, [1, 2, 3, 4]);
    cache.drop(4);
    cache.put(5, vm(5));
    cache.drop(5);
    assert.deepEqual(disposed, [1, 2, 3, 4, 5]);
  });
});
