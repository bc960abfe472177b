import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { type Edge, ExchangeGraph } from '../../src/exchange/cycles.ts';
import { MAX_LOOP_LENGTH, MAX_LOOPS } from '../../src/model/records.ts';
import { declare } from './node.ts';

const ALL = { name: 'all', maySee: () => true, maySeeBodies: () => true };

function edge(key: string, src: string, ...dst: readonly string[]): Edge {
  return { key, declaration: declare(src, dst) };
}

/** `size` exchanges, each with the source of the next one as destination, and the last with that of the first. */
function ring(size: number): Edge[] {
  return Array.from({ length: size }, (_, i) => edge(`x${i}`, `N/q${i}`, `N/q${(i + 1) % size}`));
}

/** The destinations of a queue's exchanges: the reference against which loops are checked. */
function nextQueues(edges: readonly Edge[], queue: string): string[] {
  return edges
    .filter(({ declaration: { src } }) => nameOf(src) === queue)
    .flatMap(({ declaration: { dst } }) => dst.map(nameOf));
}

function nameOf({ ns, queue }: { ns: string; queue: string }): string {
  return `${ns}/${queue}`;
}

/** Exchanges on a shortest path between two queues; null: there is no path. Breadth first, without a cache. */
function distance(edges: readonly Edge[], from: string, to: string): number | null {
  let reached = new Set([from]);
  for (let steps = 0; ; steps += 1) {
    if (reached.has(to)) return steps;
    const further = new Set([...reached, ...[...reached].flatMap((queue) => nextQueues(edges, queue))]);
    if (further.size === reached.size) return null;
    reached = further;
  }
}

/** The length of a shortest loop through each destination, in exchanges, ascending. */
function lengths(edges: readonly Edge[], { declaration: { src, dst } }: Edge): number[] {
  return [...new Set(dst.map(nameOf))]
    .map((queue) => distance(edges, queue, nameOf(src)))
    .filter((length) => length !== null)
    .map((length) => length + 1)
    .sort((a, b) => a - b);
}

function mustBeLoop(loop: readonly string[], edges: readonly Edge[]): void {
  const declared = new Map(edges.map(({ key, declaration }) => [key, declaration]));
  assert.equal(loop[0], loop.at(-1));
  for (const [i, key] of loop.slice(1).entries()) {
    const [before, after] = [declared.get(loop[i] ?? ''), declared.get(key)];
    assert.ok(before !== undefined && after !== undefined);
    assert.ok(before.dst.map(nameOf).includes(nameOf(after.src)), loop.join('>'));
  }
}

const graphs: fc.Arbitrary<Edge[]> = fc
  .array(fc.tuple(fc.nat(6), fc.array(fc.nat(6), { minLength: 1, maxLength: 4 })), { maxLength: 9 })
  .map((declared) =>
    declared.map(([src, dst], i) => edge(`x${i}`, `N/q${src}`, ...dst.map((to) => `N/q${to}`))),
  );

describe('Loops through an exchange', () => {
  it('contain a shortest one for each destination that leads back, the shortest first', () => {
    fc.assert(
      fc.property(graphs, (edges) => {
        const graph = new ExchangeGraph(edges);
        for (const one of edges) {
          const loops = graph.loopsThrough(one.key);
          for (const loop of loops) mustBeLoop(loop, edges);
          assert.deepEqual(
            loops.map((loop) => loop.length - 1),
            lengths(edges, one),
          );
        }
      }),
    );
  });

  it('are empty for an exchange that is not declared', () => {
    assert.deepEqual(new ExchangeGraph(ring(2)).loopsThrough('other'), []);
  });

  it(`are the ${MAX_LOOPS} shortest ones at most`, () => {
    const backs = Array.from({ length: 30 }, (_, i) => edge(`b${i}`, `N/b${i}`, i < 20 ? 'N/far' : 'N/s'));
    const start = edge('start', 'N/s', ...backs.map((_, i) => `N/b${i}`));
    const loops = new ExchangeGraph([start, edge('last', 'N/far', 'N/s'), ...backs]).loopsThrough('start');
    assert.deepEqual(
      loops.map((loop) => loop.length),
      Array(MAX_LOOPS).fill(3),
    );
  });

  it(`are truncated after ${MAX_LOOP_LENGTH} ids, and then do not end with their first id`, () => {
    const [whole] = new ExchangeGraph(ring(MAX_LOOP_LENGTH)).loopsThrough('x0');
    assert.equal(whole?.length, MAX_LOOP_LENGTH + 1);
    assert.equal(whole?.at(-1), 'x0');
    const [cut] = new ExchangeGraph(ring(MAX_LOOP_LENGTH + 1)).loopsThrough('x0');
    assert.deepEqual(cut, whole?.slice(0, -1));
  });

  it('consist of the exchange’s own key if the bounded search ends before it finds a path back', () => {
    const edges = [...ring(50), edge('out', 'N/q0', 'N/nowhere')];
    const graph = new ExchangeGraph(edges, 10);
    assert.deepEqual(graph.loopsThrough('x0'), [['x0']]);
    assert.deepEqual(graph.loopsThrough('x40')[0]?.[0], 'x40');
    assert.deepEqual(graph.loopsThrough('out'), []);
  });

  it('are the shorter ones if the bounded search ends before it found all', () => {
    const edges = [...ring(50), edge('self', 'N/q0', 'N/q0', 'N/q1')];
    assert.deepEqual(new ExchangeGraph(edges, 10).loopsThrough('self'), [['self', 'self']]);
  });

  it('are found in a ring longer than the maximum call depth', () => {
    const graph = new ExchangeGraph(ring(50_000), 100_000);
    assert.equal(graph.loopsThrough('x1')[0]?.length, MAX_LOOP_LENGTH);
  });
});

describe('The destinations of an exchange that lead back', () => {
  it('are those from which its source is reachable', () => {
    fc.assert(
      fc.property(graphs, (edges) => {
        const graph = new ExchangeGraph(edges);
        for (const { key, declaration } of edges) {
          const back = declaration.dst.map(
            (queue) => distance(edges, nameOf(queue), nameOf(declaration.src)) !== null,
          );
          assert.deepEqual(graph.returning(key), back.includes(true) ? back : null);
        }
      }),
    );
  });
});

describe('The loops visible to a caller', () => {
  const edges = [
    edge('here', 'N/a', 'M/b', 'N/c'),
    edge('hidden', 'M/b', 'N/a'),
    edge('round', 'N/c', 'N/d'),
    edge('back', 'N/d', 'N/a'),
  ];

  it('contain only exchanges whose source namespace the caller may see', () => {
    const some = {
      name: 'some',
      maySee: (namespace: string) => namespace === 'N',
      maySeeBodies: () => true,
    };
    const whole = ['here', 'round', 'back', 'here'];
    assert.deepEqual(ExchangeGraph.visible(edges, ALL).loopsThrough('here'), [
      ['here', 'hidden', 'here'],
      whole,
    ]);
    assert.deepEqual(ExchangeGraph.visible(edges, some).loopsThrough('here'), [whole]);
  });
});
