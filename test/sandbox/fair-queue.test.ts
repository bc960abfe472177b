import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type QueuedRequest, RequestQueue } from '../../src/sandbox/request-queue.ts';

/** `N1a`: request `a` of program 1, paid by user N. */
interface Item extends QueuedRequest {
  readonly name: string;
}

function item(name: string): Item {
  return { name, payer: name.slice(0, 1), program: Number(name.slice(1, 2)) };
}

function queueOf(names: string): RequestQueue<Item> {
  const line = new RequestQueue<Item>();
  for (const name of names.split(' ')) line.push(item(name));
  return line;
}

/** Takes all requests, charges each the ms that `cost` returns, and returns their names in order. */
function taken(
  line: RequestQueue<Item>,
  cost: (name: string) => number = () => 1,
  mayGo?: (request: QueuedRequest) => boolean,
): string {
  const names: string[] = [];
  for (let next = line.next(mayGo); next !== null; next = line.next(mayGo)) {
    line.charge(next, cost(next.name));
    names.push(next.name);
  }
  return names.join(' ');
}

describe('The wait queue of the selector worker', () => {
  it('alternates between users who need the same time, and within a user between programs', () => {
    const line = queueOf('M1a M1b M2a M3a N1a N1b');
    assert.equal(taken(line), 'M1a N1a M2a N1b M3a M1b');
    assert.ok(line.isEmpty);
  });

  it('gives users equal time, not an equal number of requests', () => {
    const line = queueOf(`M1a M1b M1c ${Array.from({ length: 9 }, (_, i) => `N1${i}`).join(' ')}`);
    assert.equal(
      taken(line, (name) => (name.startsWith('M') ? 40 : 10)),
      'M1a N10 N11 N12 N13 N14 N15 N16 M1b N17 N18 M1c',
    );
  });

  it('serves a quick program before the slow ones of the same user', () => {
    const line = queueOf('M1a M1b M2a M2b M3a M3b');
    const order: string[] = [];
    for (let next = line.next(); next !== null && order.length < 12; next = line.next()) {
      order.push(next.name);
      line.charge(next, next.program === 9 ? 1 : 50);
      // The quick program sends its next request as soon as it has an answer.
      if (order.length === 1 || next.program === 9) line.push(item('M9q'));
    }
    // It waits for at most one slow request, however many there are.
    assert.match(order.join(' '), /^M1a (M2a )?(M3a )?M9q M9q/);
    assert.ok(!/M\d[ab] M\d[ab] M\d[ab] M\d[ab]/.test(order.join(' ')), order.join(' '));
  });

  it('does not let users save up time: a returning user starts level with those who wait', () => {
    const line = queueOf('M1a M1b M1c M1d M1e N1z');
    // N was served before and then idle.
    for (let i = 0; i < 4; i += 1) line.charge(line.next() as Item, 100);
    for (const name of ['N1a', 'N1b', 'N1c', 'N1d']) line.push(item(name));
    assert.equal(
      taken(line, () => 100),
      'N1a M1d N1b M1e N1c N1d',
    );
  });

  it('skips users who may not run, without losing their place', () => {
    const line = queueOf('M1a M2a N1a');
    assert.equal(
      taken(
        line,
        () => 1,
        ({ payer }) => payer === 'N',
      ),
      'N1a',
    );
    line.push(item('N1b'));
    assert.equal(taken(line), 'M1a N1b M2a');
  });

  it('starts with requests that were put first', () => {
    const line = queueOf('M1a N1a N2a N2b');
    line.putFirst(item('N2z'));
    line.putFirst(item('O1z'));
    assert.match(taken(line), /^O1z N2z M1a N/);
  });

  it('returns and removes all requests at once', () => {
    const line = queueOf('M1a N1a M2a');
    line.putFirst(item('O1a'));
    assert.deepEqual(
      line
        .clear()
        .map(({ name }) => name)
        .sort(),
      ['M1a', 'M2a', 'N1a', 'O1a'],
    );
    assert.ok(line.isEmpty);
    line.push(item('M1b'));
    assert.equal(taken(line), 'M1b');
  });
});
