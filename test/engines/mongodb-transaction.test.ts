import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { MongoNetworkError, MongoServerError } from 'mongodb';
import { Lost, Refused } from '../../src/engines/mongodb/errors.ts';
import type { Store } from '../../src/engines/mongodb/store.ts';
import { CommitUnknown, transact } from '../../src/engines/mongodb/transaction.ts';
import { systemClock } from '../../src/model/clock.ts';

function conflict(): MongoServerError {
  return new MongoServerError({
    message: 'm',
    code: 112,
    errorLabels: ['TransientTransactionError'],
  });
}

function unknown(): MongoNetworkError {
  const error = new MongoNetworkError('gone');
  error.addErrorLabel('UnknownTransactionCommitResult');
  return error;
}

/** A session that answers commits with these errors, one after the other, and then well. */
function stage(commits: Error[] = []) {
  const steps: string[] = [];
  const session = {
    startTransaction: () => steps.push('start'),
    abortTransaction: async () => steps.push('abort'),
    endSession: async () => steps.push('end'),
    commitTransaction: async () => {
      steps.push('commit');
      const error = commits.shift();
      if (error !== undefined) throw error;
    },
  };
  const store = {
    isUp: true,
    settings: { writeConcern: { w: 'majority' } },
    client: { startSession: () => session },
    assertUp(): void {
      if (!this.isUp) throw new Lost('away');
    },
  };
  const run = (operations: () => Promise<unknown>, begin = (): void => {}): Promise<unknown> =>
    transact(store as unknown as Store, systemClock, operations, {
      begin,
      undone: () => steps.push('undone'),
    });
  return { steps, store, run };
}

const OK = async (): Promise<string> => 'done';

describe('A transaction on MongoDB', () => {
  it('is committed once its operations are done', async () => {
    const { steps, run } = stage();
    assert.equal(await run(OK), 'done');
    assert.deepEqual(steps, ['start', 'commit', 'end']);
  });

  it('is made again where another one came in between, in an operation or at the commit', async () => {
    const { steps, run } = stage([conflict()]);
    const errors = [conflict(), new MongoServerError({ message: 'm', code: 11000 })];
    const answer = await run(async () => {
      const error = errors.shift();
      if (error !== undefined) throw error;
      return 'done';
    });
    assert.equal(answer, 'done');
    assert.deepEqual(steps, [
      'start',
      'abort',
      'undone',
      'start',
      'abort',
      'undone',
      'start',
      'commit',
      'undone',
      'start',
      'commit',
      'end',
    ]);
  });

  it('is refused where others come in between again and again, with nothing done', async () => {
    const { steps, run } = stage();
    await assert.rejects(
      run(() => Promise.reject(conflict())),
      Refused,
    );
    assert.equal(steps.filter((step) => step === 'start').length, 8);
    assert.ok(!steps.includes('commit'));
  });

  it('is not done where an operation fails', async () => {
    const { steps, run } = stage();
    await assert.rejects(
      run(() => Promise.reject(new MongoServerError({ message: 'm', code: 13 }))),
      Refused,
    );
    await assert.rejects(
      run(() => Promise.reject(new MongoNetworkError('gone'))),
      (error) => error instanceof Lost && !(error instanceof CommitUnknown),
    );
    assert.ok(!steps.includes('commit'));
  });

  it('is asked for its commit again, not made again, where the answer was lost', async () => {
    const { steps, run } = stage([unknown(), unknown()]);
    let made = 0;
    await run(async () => {
      made += 1;
    });
    assert.equal(made, 1);
    assert.deepEqual(steps, ['start', 'commit', 'commit', 'commit', 'end']);
  });

  it('is unknown where no commit is answered', async () => {
    const lost = stage([unknown(), unknown(), unknown()]);
    await assert.rejects(lost.run(OK), CommitUnknown);
    const away = stage([new MongoNetworkError('no member was found')]);
    await assert.rejects(away.run(OK), CommitUnknown);
    assert.ok(![...lost.steps, ...away.steps].includes('undone'));
  });

  it('is not done where whoever wants it gives up before the commit', async () => {
    const { steps, run } = stage();
    await assert.rejects(
      run(OK, () => {
        throw new Lost('told already');
      }),
      /told already/,
    );
    assert.deepEqual(steps, ['start', 'abort', 'undone', 'end']);
  });

  it('does not begin without a primary', async () => {
    const { steps, store, run } = stage();
    store.isUp = false;
    await assert.rejects(run(OK), Lost);
    assert.deepEqual(steps, []);
  });
});
