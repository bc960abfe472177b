import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { SelectorAnswer, SelectorProgram, SelectorSandbox } from '../../src/sandbox/sandbox.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import { plain } from '../support/broker.ts';
import { until } from '../support/until.ts';
import { declare, ExchangeNode } from './node.ts';

const ELEMENTS = 600;
/** How long an element waits for its selectors: a batch of 256 waits for longer than the lease, 120 s. */
const SELECTOR_MS = 1_000;
const ACCEPTED: SelectorAnswer = {
  outcome: 'evaluated',
  verdicts: [
    {
      accepted: true,
      error: null,
      place: null,
      matureAt: null,
      delayMs: null,
      tries: null,
      headers: null,
      body: null,
    },
  ],
  logs: [],
};

describe('An exchange with slow selectors', () => {
  it('takes no more elements than it can forward before their leases expire', async (t) => {
    const deadLetter = { maxTries: 1, queue: 'dead' };
    const policy = plain('N', { deadLetter });
    const { engine, clock, passTime, close } = await MEMORY_SQLITE.open({ namespaces: [policy] });
    const select: SelectorProgram['select'] = async (elements) => {
      await passTime(elements.length * SELECTOR_MS);
      return elements.map(() => ACCEPTED);
    };
    const sandbox: SelectorSandbox = {
      start: async () => {},
      stop: async () => {},
      check: async () => {},
      open: () => ({ select, selectWithoutBodies: select, close: () => {} }),
    };
    const node = await new ExchangeNode([{ policy, engine }], clock, sandbox).start();
    t.after(async () => {
      await node.stop();
      await close();
    });
    await node.insert('N', 'from', ...Array<string>(ELEMENTS).fill('x'));
    await node.exchanges.create('x', declare('N/from', [['N/to', 'env => slow(env)']]));
    let dead = 0;
    await until(async () => {
      dead = await node.total('N', 'dead');
      return dead + (await node.total('N', 'to')) >= ELEMENTS;
    });
    assert.equal(dead, 0);
  });
});
