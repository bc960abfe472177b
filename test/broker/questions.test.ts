import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { Broker } from '../../src/broker/broker.ts';
import type { Ask, Gathered, MessagePart } from '../../src/broker/questions.ts';
import type { JsonValue } from '../../src/engine/definitions.ts';
import type { Engine } from '../../src/engine/engine.ts';
import type { Signaller } from '../../src/engine/signaller.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { betweenProcesses, brokerOn, plain } from '../support/broker.ts';

const POLICIES = [plain('N'), plain('M')];
/** The bytes of a PostgreSQL notification that are left for a signal. */
const SIGNAL_BYTES = 7_700;

interface Params {
  readonly prefix: string;
}

interface Row {
  readonly text: string;
}

type Message = { readonly kind: string; readonly from: string; readonly part: MessagePart };

describe('A question between nodes', () => {
  let opened: TestEngine;
  let engine: Engine;
  let nodes: { readonly broker: Broker; readonly ask: Ask<Params, Row> }[] = [];
  /** All published messages. */
  let messages: Message[] = [];
  /** How a message is transported: unchanged, unless a test replaces it. */
  let carry: (message: Message, deliver: (message: Message) => void) => void;
  /** The rows of a node, by its index. */
  let rows: (at: number, params: Params) => readonly Row[];

  beforeEach(async () => {
    opened = await MEMORY_SQLITE.open({ namespaces: POLICIES });
    messages = [];
    carry = (message, deliver) => deliver(message);
    rows = (at, { prefix }) => [{ text: `${prefix} ${at}` }];
    const real = betweenProcesses(opened.engine);
    const signaller: Signaller = {
      type: 'memory',
      publish(topic, message) {
        const signal = message as unknown as Message;
        if (signal.kind !== 'message') {
          real.signaller.publish(topic, message);
          return;
        }
        messages.push(signal);
        carry(signal, (one) => real.signaller.publish(topic, one as unknown as JsonValue));
      },
      subscribe: (topic, listener) => real.signaller.subscribe(topic, listener),
    };
    engine = Object.create(real, { signaller: { value: signaller } });
    for (let at = 0; at < 3; at += 1) await start();
    await opened.passTime(0);
    for (const { broker } of nodes) assert.equal(broker.nodes().length, 3);
  });

  afterEach(async () => {
    for (const { broker } of nodes) await broker.stop();
    nodes = [];
    await opened.close();
  });

  async function start(): Promise<void> {
    const at = nodes.length;
    const namespaces = POLICIES.map((policy) => ({ policy, engine }));
    const broker = brokerOn(namespaces, opened.clock, at + 1);
    const ask = broker.questions.register<Params, Row>({
      name: 'test',
      maxBytes: 100_000,
      reply: (params) => {
        const all = rows(at, params);
        return { total: all.length, rows: all };
      },
    });
    nodes.push({ broker, ask });
    await broker.start();
  }

  const idOf = (at: number): string => nodes[at]?.broker.nodeId ?? assert.fail();
  const ask = (prefix = 'x'): Promise<Gathered<Row>> => nodes[0]?.ask({ prefix }) ?? assert.fail();
  /** The answer to a question that is answered without any time passing. */
  async function answer(prefix?: string): Promise<Gathered<Row>> {
    const asked = ask(prefix);
    assert.equal(await isAnswered(asked), true);
    return asked;
  }
  /** The text of the rows of each node, in the order of `nodes`; undefined if it did not reply. */
  const textsOf = (gathered: Gathered<Row>): (readonly string[] | undefined)[] =>
    nodes.map((_, at) => gathered.nodes.find(({ node }) => node === idOf(at))?.rows.map(({ text }) => text));
  /** Resolves with whether the question is answered before any time passes. */
  async function isAnswered(asked: Promise<unknown>): Promise<boolean> {
    let isDone = false;
    void asked.then(() => {
      isDone = true;
    });
    await turn();
    return isDone;
  }

  it('is answered by all nodes, each asked once however many namespaces they share', async () => {
    const gathered = await answer('row');
    assert.deepEqual(textsOf(gathered), [['row 0'], ['row 1'], ['row 2']]);
    assert.equal(gathered.nodes[0]?.node, idOf(0));
    assert.deepEqual(gathered.missing, []);
    assert.deepEqual(
      messages.map(({ part: { type } }) => type),
      ['question', 'reply', 'reply'],
    );
  });

  it('carries many rows and long strings of any characters in signals that every engine transports', async () => {
    const text = '"\\\u0000ü€😀'.repeat(100);
    rows = (at) => Array.from({ length: 30 }, (_, i) => ({ text: `${at} ${i} ${text}` }));
    const long = '"\\\u0000ü€😀'.repeat(500);
    const gathered = await answer(long);
    assert.deepEqual(
      textsOf(gathered),
      nodes.map((_, at) => rows(at, { prefix: '' }).map((row) => row.text)),
    );
    assert.ok(messages.length > 30);
    for (const message of messages) assert.ok(Buffer.byteLength(JSON.stringify(message)) < SIGNAL_BYTES);
  });

  it('lists a node as missing whose reply this version cannot decode', async () => {
    for (const wrong of [{ text: '!' }, { text: 'MQ==' }, { at: 1 }, { of: 0 }]) {
      carry = (message, deliver) => {
        const isWrong = message.part.type === 'reply' && message.from === idOf(1);
        deliver(isWrong ? { ...message, part: { ...message.part, ...wrong } } : message);
      };
      const asked = ask('row');
      assert.equal(await isAnswered(asked), false);
      await opened.passTime(1_000);
      const gathered = await asked;
      assert.deepEqual(gathered.missing, [idOf(1)]);
      assert.deepEqual(textsOf(gathered), [['row 0'], undefined, ['row 2']]);
    }
  });

  it('gets as many rows as allowed, and their total', async () => {
    rows = () => Array.from({ length: 500 }, (_, i) => ({ text: `${i} ${'x'.repeat(1_000)}` }));
    const { nodes: replies } = await answer();
    for (const { node, total, rows: some } of replies) {
      assert.equal(total, 500);
      if (node === idOf(0)) assert.equal(some.length, 500, 'the rows of the asking node are not truncated');
      else assert.ok(some.length > 90 && some.length < 100, `${some.length}`);
    }
  });

  it('is assembled from parts that arrive in any order', async () => {
    rows = (at) => [{ text: `${at}`.repeat(20_000) }];
    const waiting: (() => void)[] = [];
    carry = (message, deliver) => {
      waiting.push(() => deliver(message));
      if (waiting.length === message.part.of * (message.part.type === 'reply' ? 2 : 1)) {
        for (const run of waiting.splice(0).reverse()) run();
      }
    };
    assert.deepEqual(
      textsOf(await answer('y'.repeat(10_000))),
      nodes.map((_, at) => [`${at}`.repeat(20_000)]),
    );
  });

  it('lists the nodes as missing that do not reply within a second', async () => {
    carry = (message, deliver) => {
      if (message.from !== idOf(2)) deliver(message);
    };
    const asked = ask();
    assert.equal(await isAnswered(asked), false);
    await opened.passTime(999);
    assert.equal(await isAnswered(asked), false);
    await opened.passTime(1);
    const gathered = await asked;
    assert.deepEqual(gathered.missing, [idOf(2)]);
    assert.deepEqual(textsOf(gathered), [['x 0'], ['x 1'], undefined]);
  });

  it('ignores a late reply to an earlier question', async () => {
    const late: (() => void)[] = [];
    carry = (message, deliver) => {
      if (message.from === idOf(2)) late.push(() => deliver(message));
      else deliver(message);
    };
    const first = ask('first');
    assert.equal(await isAnswered(first), false);
    await opened.passTime(1_000);
    const second = ask('second');
    assert.equal(await isAnswered(second), false);
    late.shift()?.();
    assert.equal(await isAnswered(second), false);
    late.shift()?.();
    assert.equal(await isAnswered(second), true);
    assert.deepEqual(textsOf(await second), [['second 0'], ['second 1'], ['second 2']]);
    assert.deepEqual(textsOf(await first), [['first 0'], ['first 1'], undefined]);
  });

  it('lists a node as missing whose reply is incomplete, and gets the next reply in full', async () => {
    rows = (at) => [{ text: `${at}`.repeat(20_000) }];
    carry = (message, deliver) => {
      if (message.from !== idOf(2) || message.part.at !== 1) deliver(message);
    };
    const first = ask();
    assert.equal(await isAnswered(first), false);
    await opened.passTime(1_000);
    assert.deepEqual((await first).missing, [idOf(2)]);
    rows = (at) => [{ text: `again ${at}` }];
    assert.deepEqual(textsOf(await answer()), [['again 0'], ['again 1'], ['again 2']]);
  });

  it('is answered immediately if a node fails to reply, and names it', async () => {
    rows = (at) => {
      if (at === 1) throw new Error('planted');
      return [{ text: `${at}` }];
    };
    const gathered = await answer();
    assert.deepEqual(gathered.missing, [idOf(1)]);
    assert.deepEqual(gathered.failures, [{ node: idOf(1), error: 'failed' }]);
    assert.deepEqual(textsOf(gathered), [['0'], undefined, ['2']]);
  });

  it('is answered immediately if it is too long to send, and names the nodes and the reason', async () => {
    const failures = [1, 2].map((at) => ({ node: idOf(at), error: 'question-too-long' }));
    const gathered = await answer('x'.repeat(600_000));
    assert.deepEqual([gathered.missing, gathered.failures], [[idOf(1), idOf(2)], failures]);
    assert.deepEqual(
      gathered.nodes.map(({ node }) => node),
      [idOf(0)],
    );
    assert.deepEqual(messages, []);
    // A node of another version may send such a question.
    carry = (message, deliver) => {
      const isLong = message.part.type === 'question';
      deliver(isLong ? { ...message, part: { ...message.part, of: 1_000 } } : message);
    };
    const refused = await answer();
    assert.deepEqual([refused.missing, refused.failures], [[idOf(1), idOf(2)], failures]);
  });

  it('does not wait for a node that stops, and does not list it as missing', async () => {
    carry = (message, deliver) => {
      if (message.from !== idOf(2)) deliver(message);
    };
    const asked = ask();
    assert.equal(await isAnswered(asked), false);
    await nodes[2]?.broker.stop();
    assert.equal(await isAnswered(asked), true);
    assert.deepEqual((await asked).missing, []);
  });

  it('is not sent to stopped nodes, so a single node does not wait', async () => {
    for (const { broker } of nodes.slice(1)) await broker.stop();
    await opened.passTime(0);
    assert.equal(await isAnswered(ask()), true);
    assert.deepEqual(messages, []);
  });
});
