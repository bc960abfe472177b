import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import fc from 'fast-check';
import type { Delivery } from '../../src/model/element.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { bodyText, newElement } from '../support/elements.ts';
import { declare, ExchangeNode, openEngine } from './node.ts';

const RUNS = Number(process.env.MODEL_RUNS ?? 25);
/** Loops may double an element at every hop; with the default of 17 hops a test would take minutes. */
const MAX_HOPS = 4;
/** Max. consecutive checks without progress while a source still has elements. */
const MAX_STILL_CHECKS = 100_000;

type Headers = Readonly<Record<string, string>>;

interface Element {
  readonly body: string;
  readonly headers: Headers;
  readonly hops: number;
}

/** A selector and its expected effect: the headers that it leaves, and whether it accepts. */
interface Rule {
  readonly source: string | null;
  readonly apply: (headers: Headers) => { headers: Headers; accepted: boolean };
}

interface Graph {
  readonly exchanges: readonly {
    readonly from: number;
    readonly to: readonly { queue: number; rule: Rule }[];
  }[];
  readonly inserts: readonly { readonly queue: number; readonly headers: Headers }[];
  /** The engine of each queue, by its index. */
  readonly engines: readonly ('near' | 'far')[];
}

describe('a graph of exchanges', () => {
  const sandbox = sharedSandbox();
  let node: ExchangeNode;
  let close: () => Promise<void>;

  before(async () => {
    const near = await openEngine('near');
    const far = await openEngine('far');
    node = new ExchangeNode([...near.namespaces, ...far.namespaces], near.clock, sandbox, {
      maxHops: MAX_HOPS,
    });
    await node.start();
    close = async () => {
      await node.stop();
      await sandbox.stop();
      await near.close();
      await far.close();
    };
  });

  after(() => close());

  it('forwards like a sequential forwarder', async () => {
    let run = 0;
    await fc.assert(
      fc.asyncProperty(graphs, async (graph) => {
        run += 1;
        const { ended, copies } = forwardAll(graph);
        assert.deepEqual(await forwardThrough(node, graph, { prefix: `${run}-`, maxCopies: copies }), ended);
      }),
      { numRuns: RUNS },
    );
  });
});

/**
 * The model: the final contents of each queue, sorted, and the number of copies stored on the way. Unroutable elements
 * are listed under their queue and engine.
 */
function forwardAll({ exchanges, inserts, engines }: Graph): {
  ended: Record<string, string[]>;
  copies: number;
} {
  let copies = 0;
  const ended: Record<string, string[]> = {};
  const end = (queue: string, element: Element): void => {
    ended[queue] = [...(ended[queue] ?? []), shown(element)].sort();
  };
  const todo = inserts.map(({ queue, headers }, i) => ({
    queue,
    element: { body: `${i}`, headers, hops: 0 },
  }));
  for (let next = todo.pop(); next !== undefined; next = todo.pop()) {
    const { queue, element } = next;
    const exchange = exchanges.find(({ from }) => from === queue);
    if (exchange === undefined) {
      end(`${engines[queue]}/q${queue}`, element);
    } else if (element.hops >= MAX_HOPS) {
      end(`${engines[queue]}/__too_many_hops__`, element);
    } else {
      let { headers } = element;
      let accepted = 0;
      for (const { queue: to, rule } of exchange.to) {
        const verdict = rule.apply(headers);
        ({ headers } = verdict);
        if (!verdict.accepted) continue;
        accepted += 1;
        copies += 1;
        todo.push({ queue: to, element: { ...element, headers, hops: element.hops + 1 } });
      }
      if (accepted === 0) end(`${engines[queue]}/__no_route__`, element);
    }
  }
  return { ended, copies };
}

/**
 * The system: creates the exchanges, inserts, waits until they are idle, and pops everything. Fails once it stores more
 * copies than the model, because in a loop their number doubles until the memory is full.
 */
async function forwardThrough(
  node: ExchangeNode,
  graph: Graph,
  { prefix, maxCopies }: { prefix: string; maxCopies: number },
): Promise<Record<string, string[]>> {
  const { exchanges, inserts, engines } = graph;
  const name = (queue: number): string => `${prefix}q${queue}`;
  const full = (queue: number): string => `${engines[queue]}/${name(queue)}`;
  for (const { from, to } of exchanges) {
    // Without selectors, a queue may be a destination only once.
    const destinations = to.map(({ queue, rule }, i) =>
      rule.source === null && to.findIndex((other) => other.queue === queue) === i
        ? full(queue)
        : ([full(queue), rule.source ?? 'true'] as [string, string]),
    );
    await node.exchanges.create(name(from), declare(full(from), destinations, { reserve: true }));
  }
  for (const [i, { queue, headers }] of inserts.entries()) {
    const target = node.broker.namespace(engines[queue] ?? '').queue(name(queue));
    await target.insert([newElement({ body: `${i}`, headers: Object.entries(headers).flat() })]);
  }
  const counts = () => exchanges.map(({ from }) => node.exchanges.record(name(from)).stats);
  let stillChecks = 0;
  for (let before = ''; !(await atRest(node, graph, name)); ) {
    const stored = counts().flatMap(({ dst }) => dst.map(({ matched }) => matched));
    const copies = stored.reduce((sum, count) => sum + count, 0);
    assert.ok(copies <= maxCopies, `the exchanges stored ${copies} copies, the model ${maxCopies}`);
    const now = JSON.stringify(counts());
    stillChecks = now === before ? stillChecks + 1 : 0;
    before = now;
    assert.ok(stillChecks < MAX_STILL_CHECKS, `elements are stuck in the source of an exchange: ${now}`);
    await new Promise(setImmediate);
  }
  const ended: Record<string, string[]> = {};
  const places = [
    ...engines.map((engine, queue) => ({ engine, queue: name(queue), shownAs: `${engine}/q${queue}` })),
    ...(['near', 'far'] as const).flatMap((engine) =>
      ['__no_route__', '__too_many_hops__'].map((queue) => ({
        engine,
        queue,
        shownAs: `${engine}/${queue}`,
      })),
    ),
  ];
  for (const { engine, queue, shownAs } of places) {
    const count = await node.total(engine, queue);
    if (count > 0) ended[shownAs] = (await node.popMany(engine, queue, count)).map(shownDelivery).sort();
  }
  for (const { from } of exchanges) await node.exchanges.delete(name(from));
  return ended;
}

/** Whether every source is empty and nothing moved while they were counted one after the other. */
async function atRest(
  node: ExchangeNode,
  { exchanges, engines }: Graph,
  name: (queue: number) => string,
): Promise<boolean> {
  const moved = (): string =>
    JSON.stringify(exchanges.map(({ from }) => node.exchanges.record(name(from)).stats));
  const before = moved();
  for (const { from } of exchanges) {
    if ((await node.total(engines[from] ?? '', name(from))) > 0) return false;
  }
  return moved() === before;
}

function shown({ body, headers, hops }: Element): string {
  const own = Object.entries(headers).sort(([a], [b]) => (a < b ? -1 : 1));
  return JSON.stringify([body, own, hops]);
}

function shownDelivery(delivery: Delivery): string {
  const headers: Record<string, string> = {};
  let hops = 0;
  for (let i = 0; i < delivery.headers.length; i += 2) {
    const [name = '', value = ''] = [delivery.headers[i], delivery.headers[i + 1]];
    if (name === 'x-hop-count') hops = Number(value);
    else if (name !== 'x-exchange-name' && name !== 'x-copy-count') headers[name] = value;
  }
  return shown({ body: bodyText(delivery), headers, hops });
}

const names = fc.constantFrom('h', 'k');
const values = fc.constantFrom('a', 'b', 'c');

const rules: fc.Arbitrary<Rule> = fc.oneof(
  fc.constant<Rule>({ source: null, apply: (headers) => ({ headers, accepted: true }) }),
  fc.tuple(names, values).map<Rule>(([header, value]) => ({
    source: `env => env.msg.hdrs.${header} === '${value}'`,
    apply: (headers) => ({ headers, accepted: headers[header] === value }),
  })),
  fc.tuple(names, values).map<Rule>(([header, value]) => ({
    source: `env => { env.msg.hdrs.${header} = '${value}'; return env.msg.hdrs.h !== env.msg.hdrs.k }`,
    apply: (headers) => {
      const written = { ...headers, [header]: value };
      return { headers: written, accepted: written.h !== written.k };
    },
  })),
);

const graphs: fc.Arbitrary<Graph> = fc.integer({ min: 2, max: 6 }).chain((queues) => {
  const queue = fc.nat(queues - 1);
  return fc.record({
    exchanges: fc.uniqueArray(
      fc.record({
        from: queue,
        to: fc.array(fc.record({ queue, rule: rules }), { minLength: 1, maxLength: 3 }),
      }),
      { selector: ({ from }) => from, maxLength: 6 },
    ),
    inserts: fc.array(fc.record({ queue, headers: fc.dictionary(names, values, { maxKeys: 2 }) }), {
      minLength: 1,
      maxLength: 6,
    }),
    engines: fc.array(fc.constantFrom('near' as const, 'near' as const, 'far' as const), {
      minLength: queues,
      maxLength: queues,
    }),
  });
});
