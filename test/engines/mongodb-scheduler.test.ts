import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Settled } from '../../src/engines/mongodb/call.ts';
import { Lost } from '../../src/engines/mongodb/errors.ts';
import type { Round } from '../../src/engines/mongodb/round.ts';
import { Scheduler } from '../../src/engines/mongodb/scheduler.ts';
import type { Store } from '../../src/engines/mongodb/store.ts';
import { FakeClock } from '../support/clock.ts';
import { newElement } from '../support/elements.ts';
import { codeOf } from '../support/outcome.ts';

const A = { ns: 'n', name: 'a' };
const B = { ns: 'n', name: 'b' };
const TAKE = { kind: 'take', group: '', count: 1, leaseMs: null } as const;

/** A scheduler whose rounds end when the test says so. */
class Stage {
  readonly clock = new FakeClock();
  readonly store = { isUp: true, awayMs: 0 };
  readonly rounds: { readonly round: Round; readonly end: () => void }[] = [];
  readonly scheduler = new Scheduler({
    clock: this.clock,
    store: this.store as Store,
    run: (round) =>
      new Promise((resolve) => {
        const end = (): void => {
          for (const call of round.inserts) {
            call.succeed(call.args.elements.map((_, index) => `${index}`));
          }
          for (const call of round.takes) call.succeed({ deliveries: [], nextDueAt: null });
          for (const call of round.settles) call.succeed(call.args.items.map((): Settled => 'done'));
          resolve();
        };
        this.rounds.push({ round, end });
      }),
  });

  insert(queue = A): Promise<string[]> {
    return this.scheduler.call({ kind: 'insert', queue, elements: [newElement({})] });
  }

  take(queue = A): Promise<unknown> {
    return this.scheduler.call({ ...TAKE, queue });
  }

  /** What each round carries, as the kinds and queues of its calls. */
  carried(): string[][] {
    return this.rounds.map(({ round: { calls } }) =>
      calls.map(({ args, queues }) => `${args.kind} ${JSON.parse(queues[0] ?? '[]')[1]}`),
    );
  }
}

async function turns(): Promise<void> {
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
}

describe('The scheduler of a MongoDB engine', () => {
  it('carries out together what is called for in one turn, for all queues', async () => {
    const stage = new Stage();
    const calls = [stage.insert(A), stage.take(A), stage.insert(B), stage.insert(A)];
    await turns();
    assert.deepEqual(stage.carried(), [['insert a', 'take a', 'insert b', 'insert a']]);
    stage.rounds[0]?.end();
    await Promise.all(calls);
    await stage.scheduler.stop();
  });

  it('begins nothing about a queue while something about it is under way, and begins with others', async () => {
    const stage = new Stage();
    const calls = [stage.insert(A)];
    await turns();
    calls.push(stage.insert(A), stage.insert(B));
    await turns();
    assert.deepEqual(stage.carried(), [['insert a'], ['insert b']]);
    stage.rounds[0]?.end();
    await turns();
    assert.deepEqual(stage.carried(), [['insert a'], ['insert b'], ['insert a']]);
    for (const { end } of stage.rounds) end();
    await Promise.all(calls);
    await stage.scheduler.stop();
  });

  it('gathers what is called for while as many rounds are under way as may be', async () => {
    const stage = new Stage();
    const queues = Array.from({ length: 9 }, (_, index) => ({ ns: 'n', name: `${index}` }));
    const calls: Promise<unknown>[] = [];
    for (const queue of queues) {
      calls.push(stage.insert(queue));
      await turns();
    }
    assert.equal(stage.rounds.length, 4);
    stage.rounds[0]?.end();
    await turns();
    assert.deepEqual(stage.carried()[4], ['insert 4', 'insert 5', 'insert 6', 'insert 7', 'insert 8']);
    for (const { end } of stage.rounds) end();
    await Promise.all(calls);
    await stage.scheduler.stop();
  });

  it('lets questions run beside each other, but after what was called before and before what comes after', async () => {
    const stage = new Stage();
    const asked: string[] = [];
    const answers: (() => void)[] = [];
    const ask = (name: string): Promise<void> =>
      stage.scheduler.call({
        kind: 'question',
        queues: [A],
        run: () => {
          asked.push(name);
          return new Promise<void>((resolve) => answers.push(resolve));
        },
      });
    const calls: Promise<unknown>[] = [stage.insert(A), ask('one'), ask('two'), stage.take(A)];
    await turns();
    assert.deepEqual([stage.carried(), asked], [[['insert a']], []]);
    stage.rounds[0]?.end();
    await turns();
    assert.deepEqual([stage.rounds.length, asked], [1, ['one', 'two']]);
    answers[0]?.();
    await turns();
    assert.equal(stage.rounds.length, 1);
    answers[1]?.();
    await turns();
    assert.deepEqual(stage.carried(), [['insert a'], ['take a']]);
    stage.rounds[1]?.end();
    await Promise.all(calls);
    await stage.scheduler.stop();
  });

  it('keeps the order of calls that concern several queues', async () => {
    const stage = new Stage();
    const { promise, resolve } = Promise.withResolvers<void>();
    const calls: Promise<unknown>[] = [
      stage.insert(A),
      stage.scheduler.call({ kind: 'alone', queues: [A, B, A], run: () => promise }),
      stage.insert(B),
    ];
    await turns();
    assert.deepEqual(stage.carried(), [['insert a']]);
    stage.rounds[0]?.end();
    await turns();
    assert.equal(stage.rounds.length, 1);
    resolve();
    await turns();
    assert.deepEqual(stage.carried(), [['insert a'], ['insert b']]);
    stage.rounds[1]?.end();
    await Promise.all(calls);
    await stage.scheduler.stop();
  });

  it('answers within five seconds, by what has been sent', async () => {
    const stage = new Stage();
    const calls = [codeOf(stage.insert(A)), codeOf(stage.take(A))];
    await turns();
    const [sent] = stage.rounds[0]?.round.inserts ?? [];
    assert.ok(sent !== undefined);
    sent.begin();
    calls.push(codeOf(stage.insert(A)));
    stage.clock.advance(5000);
    assert.deepEqual(await Promise.all(calls), [
      'outcome-unknown',
      'storage-unavailable',
      'storage-unavailable',
    ]);
    stage.rounds[0]?.end();
    await stage.scheduler.stop();
  });

  it('gives a long call more time as long as it shows that it goes on', async () => {
    const stage = new Stage();
    const { promise, resolve } = Promise.withResolvers<void>();
    let goOn = (): void => {};
    const call = stage.scheduler.call({
      kind: 'alone',
      queues: [A],
      run: (sending) => {
        goOn = () => sending.goOn();
        return promise;
      },
    });
    await turns();
    for (let second = 0; second < 20; second += 4) {
      stage.clock.advance(4000);
      goOn();
    }
    resolve();
    assert.equal(await codeOf(call), 'done');
    await stage.scheduler.stop();
  });

  it('lets calls wait for a new primary, and refuses them at once where none comes', async () => {
    const stage = new Stage();
    stage.store.isUp = false;
    const waiting = stage.insert(A);
    await turns();
    assert.equal(stage.rounds.length, 0);
    stage.store.isUp = true;
    stage.scheduler.resume();
    await turns();
    stage.rounds[0]?.end();
    await waiting;
    stage.store.isUp = false;
    const late = codeOf(stage.insert(A));
    stage.store.awayMs = 2001;
    stage.clock.advance(250);
    assert.equal(await late, 'storage-unavailable');
    assert.equal(await codeOf(stage.insert(A)), 'storage-unavailable');
    await stage.scheduler.stop();
  });

  it('is not given more than fits in memory', async () => {
    const stage = new Stage();
    const element = newElement({ body: Buffer.alloc(10) });
    const insert = (): Promise<string> =>
      codeOf(stage.scheduler.call({ kind: 'insert', queue: A, elements: [element] }, 10 * 1024 * 1024));
    const calls = Array.from({ length: 8 }, insert);
    await turns();
    for (let round = 0; round < stage.rounds.length; round++) {
      stage.rounds[round]?.end();
      await turns();
    }
    const codes = await Promise.all(calls);
    assert.deepEqual(
      codes.slice(0, 6),
      Array.from({ length: 6 }, () => 'done'),
    );
    assert.deepEqual(codes.slice(6), ['storage-unavailable', 'storage-unavailable']);
    await stage.scheduler.stop();
  });

  it('says of a call that fails what became of it', async () => {
    const stage = new Stage();
    const failing = (isSent: boolean): Promise<string> =>
      codeOf(
        stage.scheduler.call({
          kind: 'alone',
          queues: [A],
          run: (call) => {
            if (isSent) call.begin();
            return Promise.reject(new Lost('away'));
          },
        }),
      );
    assert.equal(await failing(false), 'storage-unavailable');
    assert.equal(await failing(true), 'outcome-unknown');
    await stage.scheduler.stop();
    assert.equal(stage.clock.pending, 0);
    assert.equal(await codeOf(stage.insert(A)), 'storage-unavailable');
  });
});
