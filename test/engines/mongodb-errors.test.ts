import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { inspect } from 'node:util';
import { type BulkWriteResult, MongoBulkWriteError, MongoNetworkError, MongoServerError } from 'mongodb';
import {
  duplicatesOf,
  fromDriver,
  isConflict,
  Lost,
  Refused,
  refusedError,
} from '../../src/engines/mongodb/errors.ts';

const SECRET = 'a stored body';

function server(code: number, labels: string[] = []): MongoServerError {
  const message = `command { insert: "${SECRET}" } failed`;
  return new MongoServerError({ message, code, codeName: 'Name', errorLabels: labels });
}

function resultOf(writeErrors: object[]): BulkWriteResult {
  const result = { getWriteErrors: () => writeErrors, getWriteConcernError: () => undefined };
  return result as unknown as BulkWriteResult;
}

/** As the driver throws it for a batch in which some writes were refused. */
function batch(errors: { index: number; code: number }[]): MongoBulkWriteError {
  const writeErrors = errors.map(({ index, code }) => ({ index, code, errmsg: SECRET }));
  const first = { message: SECRET, code: errors[0]?.code ?? 0, writeErrors: [] };
  return new MongoBulkWriteError(first, resultOf(writeErrors));
}

describe('Errors of MongoDB', () => {
  it('are refusals where the server said no and nothing happened', () => {
    for (const code of [13, 14031, 11000, 121]) {
      const fault = fromDriver(server(code));
      assert.ok(fault instanceof Refused);
      assert.equal(fault.code, code);
    }
  });

  it('leave it open what happened where no answer came, time ran out, or the primary changed', () => {
    assert.ok(fromDriver(new MongoNetworkError('gone')) instanceof Lost);
    for (const code of [50, 91, 189, 10107, 11600, 11602, 13435]) {
      assert.ok(fromDriver(server(code)) instanceof Lost, String(code));
    }
    assert.ok(fromDriver(server(6, ['RetryableWriteError'])) instanceof Lost);
  });

  it('leave it open in a batch, too, that a lost connection has ended', () => {
    const wrapped = (inner: Error) => new MongoBulkWriteError(inner as never, resultOf([]));
    assert.ok(fromDriver(wrapped(new MongoNetworkError('gone'))) instanceof Lost);
    assert.ok(fromDriver(wrapped(server(10107))) instanceof Lost);
    assert.ok(fromDriver(wrapped(server(13))) instanceof Refused);
    assert.equal(duplicatesOf(wrapped(new MongoNetworkError('gone'))), null);
  });

  it('never show what a command carried', () => {
    for (const error of [server(13), server(50), batch([{ index: 0, code: 121 }])]) {
      const fault = fromDriver(error);
      const shown = inspect([fault, refusedError(fault as Refused, true)], { depth: 9, showHidden: true });
      assert.ok(!shown.includes(SECRET), shown);
    }
  });

  it('say of a full disk that it is full, to those who insert', () => {
    const full = fromDriver(server(14031)) as Refused;
    assert.equal(refusedError(full, true).code, 'storage-full');
    assert.equal(refusedError(full, false).code, 'storage-unavailable');
  });

  it('name what is there already, where nothing else is wrong', () => {
    const twice = [
      { index: 1, code: 11000 },
      { index: 4, code: 11000 },
    ];
    assert.deepEqual(duplicatesOf(batch(twice)), [1, 4]);
    assert.equal(duplicatesOf(batch([...twice, { index: 5, code: 121 }])), null);
    assert.equal(duplicatesOf(server(11000)), null);
  });

  it('are conflicts where a transaction met another one', () => {
    assert.ok(isConflict(server(112, ['TransientTransactionError'])));
    assert.ok(isConflict(server(11000)));
    assert.ok(!isConflict(server(13)));
    assert.ok(!isConflict(new Error('a fault of ours')));
  });
});
