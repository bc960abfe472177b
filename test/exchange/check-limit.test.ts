import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { type Declaration, NODE } from '../../src/exchange/declaration.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import type { ProgramOptions, SelectorAnswer, SelectorSandbox } from '../../src/sandbox/sandbox.ts';
import { element } from '../sandbox/elements.ts';
import { until } from '../support/until.ts';
import { declare, ExchangeNode, openEngine } from './node.ts';

const OVERLOADED = { code: 'overloaded', details: { retryAfterMs: 1000 } };
const DECLARATION = declare('N/a', [['N/b', 'true']]);

/** A sandbox whose checks and selectors wait until the test releases them. */
class HeldSandbox implements SelectorSandbox {
  readonly payers: (string | undefined)[] = [];
  checks = 0;
  holdsChecks = false;
  readonly #held: (() => void)[] = [];

  async start(): Promise<void> {}
  async stop(): Promise<void> {}

  check(): Promise<void> {
    this.checks += 1;
    if (!this.holdsChecks) return Promise.resolve();
    return new Promise((resolve) => this.#held.push(resolve));
  }

  open(_: unknown, options?: ProgramOptions) {
    this.payers.push(options?.payer);
    const notEvaluated: SelectorAnswer[] = [{ outcome: 'not-evaluated' }];
    return {
      select: () => new Promise<SelectorAnswer[]>((resolve) => this.#held.push(() => resolve(notEvaluated))),
      selectWithoutBodies: async () => notEvaluated,
      close: () => {},
    };
  }

  async release(count: number): Promise<void> {
    await until(() => this.#held.length >= count);
    for (const resolve of this.#held.splice(0, count)) resolve();
  }
}

describe('Dry runs of exchanges', () => {
  const sandbox = new HeldSandbox();
  let node: ExchangeNode;
  let close: () => Promise<void>;
  const attempt = (name: string) =>
    node.exchanges.dryRun('x', element(), DECLARATION, {
      caller: { name, maySee: () => true, maySeeBodies: () => true },
    });

  before(async () => {
    const engine = await openEngine('N');
    node = await new ExchangeNode(engine.namespaces, engine.clock, sandbox).start();
    close = async () => {
      await node.stop();
      await engine.close();
    };
  });

  after(() => close());

  it('run two at a time per user; two more wait, and others of that user are rejected', async () => {
    const four = Array.from({ length: 4 }, () => attempt('evil'));
    const other = attempt('honest');
    await assert.rejects(attempt('evil'), OVERLOADED);
    await sandbox.release(3);
    assert.deepEqual(sandbox.payers, ['evil', 'evil', 'honest']);
    await sandbox.release(2);
    await Promise.all([...four, other]);
    assert.deepEqual(sandbox.payers, ['evil', 'evil', 'honest', 'evil', 'evil']);
  });

  it('run sixteen at a time over all users', async () => {
    const first = sandbox.payers.length;
    const all = Array.from({ length: 17 }, (_, i) => attempt(`user ${i}`));
    await sandbox.release(16);
    assert.equal(sandbox.payers.length, first + 16);
    await sandbox.release(1);
    await Promise.all(all);
  });

  it('share the limit of two checks per user with creates; 32 more wait, in order', async () => {
    sandbox.holdsChecks = true;
    const before = sandbox.checks;
    const caller = { name: 'evil', maySee: () => true, maySeeBodies: () => true };
    const made: number[] = [];
    const create = (i: number) =>
      node.exchanges.create(`c${i}`, declare(`N/c${i}`, [['N/d', 'true']]), caller).then(() => made.push(i));
    const all = Array.from({ length: 34 }, (_, i) => create(i));
    await assert.rejects(create(34), OVERLOADED);
    await assert.rejects(attempt('evil'), OVERLOADED);
    await new Promise(setImmediate);
    assert.equal(sandbox.checks, before + 2);
    for (let i = 0; i < 34; i += 1) await sandbox.release(1);
    await Promise.all(all);
    assert.deepEqual(made.slice(0, 2).sort(), [0, 1]);
    assert.equal(made.length, 34);
    sandbox.holdsChecks = false;
  });

  it('check the exchange as it is once they run, because it may have changed while they waited', async () => {
    const caller = { name: 'user', maySee: () => true, maySeeBodies: () => true };
    await node.exchanges.create('changed', declare('N/changed', ['N/d']));
    const others = [attempt('user'), attempt('user')];
    const mayTry = ({ dst }: Declaration): void => {
      if (dst[0]?.queue === 'secret') throw new QuaysideError('forbidden', 'planted');
    };
    const waiting = node.exchanges.dryRun('changed', element(), null, { caller, mayTry });
    let code: string | null = null;
    waiting.catch((error: QuaysideError) => {
      code = error.code;
    });
    const declaration = declare('N/changed', ['N/secret']);
    await node.exchanges.change('changed', { declaration, caller: NODE, versions: null }, () => {});
    const opened = sandbox.payers.length;
    await sandbox.release(2);
    await Promise.all(others);
    // A dry run that is not rejected opens a program.
    await until(() => code !== null || sandbox.payers.length > opened);
    assert.equal(code, 'forbidden');
    await node.exchanges.delete('changed');
  });

  it('free their place when they fail', async () => {
    for (let i = 0; i < 20; i += 1) {
      const missing = node.exchanges.dryRun('missing', element(), null);
      await assert.rejects(missing, { code: 'exchange-not-found' });
    }
  });
});
