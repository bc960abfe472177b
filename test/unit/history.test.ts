import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { sampleBodies } from '../support/bodies.ts';
import {
  contentOf,
  type Handed,
  type InsertOperation,
  type Operation,
  type SettleOperation,
  type TakeOperation,
} from '../support/history.ts';
import {
  type CheckOptions,
  checkHistory,
  describeViolations,
  type Verdict,
} from '../support/history-check.ts';
import { seededRandom } from '../support/random.ts';

/** The wall time of monotonic zero: histories are written in milliseconds from then on. */
const WALL = 1_800_000_000_000;
const LEASE_MS = 1000;

/** The fields that all operations of a planted history have. `from` and `until` are milliseconds from zero. */
function span(
  client: string,
  seq: number,
  from: number,
  until: number,
): Omit<TakeOperation, 'kind' | 'group' | 'delivery'> {
  const times = { invokedAt: from, endedAt: until, invokedWallAt: WALL + from, endedWallAt: WALL + until };
  return { client, seq, queue: 'N/q', ...times, outcome: 'ok' };
}

const contentFor = (value: string) =>
  contentOf(Buffer.from(`body of ${value}`), 'text/plain', null, [['value', value]]);

function insert(
  value: string,
  from: number,
  until: number,
  more: Partial<InsertOperation> = {},
): InsertOperation {
  return {
    ...span('producer', from, from, until),
    kind: 'insert',
    value,
    id: `id-${value}`,
    eligibleWallAt: WALL + from,
    tries: 0,
    groups: [''],
    content: contentFor(value),
    ...more,
  };
}

function pop(value: string, from: number, until: number, delivery: Partial<Handed> = {}): TakeOperation {
  return {
    ...span('consumer', from, from, until),
    kind: 'pop',
    group: '',
    delivery: {
      value,
      id: `id-${value}`,
      tries: 0,
      content: contentFor(value),
      token: null,
      leaseUntilWallAt: null,
      ...delivery,
    },
  };
}

function reserve(value: string, from: number, until: number, handed: Partial<Handed> = {}): TakeOperation {
  const lease = { token: `token-${from}`, leaseUntilWallAt: WALL + until + LEASE_MS, ...handed };
  return { ...pop(value, from, until, lease), kind: 'reserve' };
}

function settle(
  kind: 'commit' | 'rollback',
  take: TakeOperation,
  from: number,
  until: number,
  more: Partial<SettleOperation> = {},
): SettleOperation {
  return {
    ...span('consumer', from, from, until),
    kind,
    group: take.group,
    value: take.delivery?.value ?? '',
    token: take.delivery?.token ?? null,
    eligibleWallAt: WALL + from,
    ...more,
  };
}

const crash = (from: number, until: number): Operation => ({
  ...span('chaos', from, from, until),
  kind: 'crash',
});
const outage = (from: number, until: number): Operation => ({ ...crash(from, until), kind: 'outage' });
const unknown = (kind: 'pop' | 'reserve', from: number, until: number): TakeOperation => ({
  ...span('consumer', from, from, until),
  kind,
  group: '',
  outcome: 'unknown',
  delivery: null,
});

/** A history without violations that has each kind of operation. */
function cleanHistory(): Operation[] {
  const rolledBack = reserve('b', 20, 21);
  const again = reserve('b', 30, 31, { tries: 1 });
  const expired = reserve('c', 22, 23);
  const crashed = reserve('d', 40, 41);
  return [
    insert('a', 0, 1),
    pop('a', 10, 11),
    insert('b', 2, 3),
    rolledBack,
    settle('rollback', rolledBack, 22, 23),
    again,
    settle('commit', again, 32, 33),
    insert('c', 4, 5),
    expired,
    pop('c', 1000, 1024, { tries: 1 }),
    insert('d', 34, 35),
    crashed,
    crash(50, 51),
    settle('commit', crashed, 50, 52, { outcome: 'unknown' }),
    reserve('d', 60, 61),
    insert('e', 49, 52, { outcome: 'unknown', id: null }),
    pop('e', 62, 63),
    insert('f', 48, 52, { outcome: 'unknown', id: null }),
    insert('g', 53, 54, { outcome: 'fail', id: null }),
    insert('h', 44, 45),
    unknown('pop', 46, 51),
    { ...unknown('pop', 70, 80), outcome: 'fail' },
  ];
}

/** The verdict on the clean history with additional operations. */
function verdictWith(extra: readonly Operation[], options: CheckOptions = {}): Verdict {
  return checkHistory([...cleanHistory(), ...extra], options);
}

function assertFault(verdict: Verdict, pattern: RegExp): void {
  const faults = describeViolations(verdict);
  assert.equal(faults.length, 1, `one fault was planted, found: ${JSON.stringify(faults)}`);
  assert.match(faults[0] ?? '', pattern);
}

describe('the history checker', () => {
  it('finds nothing in a clean history and counts it', () => {
    const verdict = checkHistory(cleanHistory(), { fifo: true });
    assert.deepEqual(describeViolations(verdict), []);
    assert.deepEqual(verdict.recovered, ['e']);
    assert.deepEqual(
      verdict.maybePopped.map(({ value }) => value),
      ['h'],
    );
    assert.deepEqual(verdict.counts, {
      inserts: { ok: 5, fail: 1, unknown: 2 },
      takes: { ok: 8, fail: 1, unknown: 1 },
      settles: { ok: 2, fail: 0, unknown: 1 },
      deliveries: 8,
      crashes: 1,
    });
  });

  it('reports an acknowledged insert that was never delivered as lost', () => {
    assertFault(verdictWith([insert('x', 100, 101)]), /^lost: x: acknowledged as id-x/);
  });

  it('attributes at most one missing element to each unknown pop', () => {
    assertFault(verdictWith([insert('x', 43, 44)]), /^lost: x/);
    assert.deepEqual(describeViolations(verdictWith([insert('x', 43, 44), unknown('pop', 45, 46)])), []);
  });

  it('does not attribute a missing element to an unknown pop before its insert, or to an unknown reserve', () => {
    assertFault(verdictWith([insert('x', 100, 101), unknown('pop', 90, 99)]), /^lost: x/);
    assertFault(verdictWith([insert('x', 100, 101), unknown('reserve', 90, 120)]), /^lost: x/);
  });

  it('attributes a missing element to an unknown pop between an insert without a reply and its acknowledged repeat', () => {
    const first = insert('x', 100, 110, { outcome: 'unknown', id: null });
    const repeat = insert('x', 200, 201);
    const verdict = verdictWith([first, unknown('pop', 90, 110), crash(109, 112), repeat]);
    assert.deepEqual(verdict.lost, []);
    assert.ok(verdict.maybePopped.some(({ value }) => value === 'x'));
    assertFault(verdictWith([first, unknown('pop', 90, 99), repeat]), /^lost: x/);
  });

  it('does not attribute a missing element to an unknown pop of another queue or group', () => {
    assertFault(
      verdictWith([insert('x', 100, 101), { ...unknown('pop', 90, 120), queue: 'N/other' }]),
      /^lost: x/,
    );
    assertFault(verdictWith([insert('x', 100, 101), { ...unknown('pop', 90, 120), group: 'g' }]), /^lost: x/);
  });

  it('finds a value that was never inserted', () => {
    assertFault(verdictWith([pop('stranger', 100, 101)]), /^unexpected: stranger: nobody tried/);
    assertFault(
      verdictWith([pop('', 100, 101, { value: null })]),
      /^unexpected: .no value, id id-.: nobody tried/,
    );
  });

  it('finds an element whose insert was rejected', () => {
    assertFault(verdictWith([pop('g', 100, 101)]), /^unexpected: g: its insert was rejected/);
  });

  it('finds one changed byte of a body', () => {
    for (const sample of sampleBodies().filter(({ bytes }) => bytes.length > 0)) {
      const changed = Buffer.from(sample.bytes);
      const at = changed.length >> 1;
      changed[at] = (changed[at] ?? 0) ^ 1;
      const content = contentOf(sample.bytes, sample.contentType, sample.contentEncoding, []);
      const other = contentOf(changed, sample.contentType, sample.contentEncoding, []);
      const planted = [insert('x', 100, 101, { content }), pop('x', 110, 111, { content: other })];
      assertFault(verdictWith(planted), /^unexpected: x: bytes of the body changed/);
    }
  });

  it('finds a truncated body, and a changed content type, encoding or header', () => {
    const body = Buffer.from('body of x');
    const headers: [string, string][] = [['value', 'x']];
    const cases: [ReturnType<typeof contentOf>, RegExp][] = [
      [contentOf(body.subarray(1), 'text/plain', null, headers), /the body has 8 bytes instead of 9/],
      [contentOf(body, 'text/html', null, headers), /the content type is text\/html instead of text\/plain/],
      [contentOf(body, 'text/plain', 'gzip', headers), /the content encoding is gzip instead of null/],
      [
        contentOf(body, 'text/plain', null, [['value', 'y']]),
        /the headers are \[value: y\] instead of \[value: x\]/,
      ],
      [contentOf(body, 'text/plain', null, []), /the headers are \[\] instead of/],
    ];
    for (const [content, pattern] of cases) {
      assertFault(verdictWith([insert('x', 100, 101), pop('x', 110, 111, { content })]), pattern);
    }
  });

  it('finds an element that is delivered with another id', () => {
    const planted = [insert('x', 100, 101), pop('x', 110, 111, { id: 'other' })];
    assertFault(verdictWith(planted), /^unexpected: x: it came with id other, inserted as id-x/);
  });

  it('finds a second delivery after a pop', () => {
    assertFault(verdictWith([pop('a', 100, 101)]), /^duplicated: a: it was handed out again after a pop/);
  });

  it('finds a second delivery after an acknowledged commit, whatever happens in between', () => {
    const again = reserve('b', 5000, 5001, { tries: 1 });
    assertFault(verdictWith([again]), /^duplicated: b: it was handed out again after an acknowledged commit/);
    assertFault(verdictWith([crash(40, 41), crash(900, 901), again]), /^duplicated: b/);
  });

  it('finds a second reserve without a rollback, lease expiry or crash in between', () => {
    const first = reserve('x', 100, 101);
    const second = reserve('x', 200, 201, { tries: 0 });
    const planted = [insert('x', 90, 91), first, second];
    assertFault(verdictWith(planted), /^duplicated: x: .* with no rollback, lease end or crash between/);
    assertFault(
      verdictWith([...planted, settle('rollback', first, 150, 151, { outcome: 'fail' })]),
      /^duplicated/,
    );
    assert.deepEqual(describeViolations(verdictWith([...planted, crash(150, 151)])), []);
    const maybe = settle('rollback', first, 150, 151, { outcome: 'unknown' });
    assert.deepEqual(describeViolations(verdictWith([...planted, maybe])), []);
  });

  it('finds two acknowledged commits, and a commit of a popped element', () => {
    const first = reserve('x', 100, 101);
    const second = reserve('x', 1200, 1201, { tries: 1 });
    const commits = [
      settle('commit', first, 1190, 1202, { token: null }),
      settle('commit', second, 1203, 1204),
    ];
    const planted = [insert('x', 90, 91), first, second, ...commits];
    assertFault(verdictWith(planted), /^duplicated: x: 2 commits of it were acknowledged/);
    const popped = [insert('x', 90, 91), first, pop('x', 1200, 1203, { tries: 1 }), commits[0] as Operation];
    assertFault(verdictWith(popped), /^duplicated: x: it was popped, and a commit/);
  });

  it('finds a repeated insert under one idempotency key that was stored twice', () => {
    const first = insert('x', 100, 101, { outcome: 'unknown', id: null });
    const planted = [first, insert('x', 102, 103), pop('x', 110, 111)];
    assert.deepEqual(describeViolations(verdictWith(planted)), []);
    assertFault(verdictWith([...planted, pop('x', 120, 121)]), /^duplicated: x: .* after a pop/);
    const twoIds = [insert('x', 100, 101, { id: 'id-y' }), insert('x', 102, 103), pop('x', 110, 111)];
    assertFault(verdictWith(twoIds), /^duplicated: x: its repeated insert answered 2 ids/);
  });

  it('finds a delivery before the maturity of its insert', () => {
    const later = { eligibleWallAt: WALL + 150 };
    assertFault(
      verdictWith([insert('x', 100, 101, later), pop('x', 110, 140)]),
      /^early: x: .* 10 ms before/,
    );
    assert.deepEqual(describeViolations(verdictWith([insert('x', 100, 101, later), pop('x', 110, 149)])), []);
  });

  it('finds a delivery before the delay of its rollback is over', () => {
    const first = reserve('x', 100, 101);
    const back = settle('rollback', first, 110, 111, { eligibleWallAt: WALL + 200 });
    const planted = (until: number) => [insert('x', 90, 91), first, back, pop('x', 105, until, { tries: 1 })];
    assertFault(verdictWith(planted(180)), /^early: x: it was handed out 20 ms before its maturity/);
    assert.deepEqual(describeViolations(verdictWith(planted(200))), []);
  });

  it('finds a delivery that ended before its insert was invoked', () => {
    const planted = [insert('x', 100, 101, { eligibleWallAt: WALL }), pop('x', 80, 90)];
    assertFault(verdictWith(planted), /^early: x: it was handed out before its insert was invoked/);
  });

  it('finds tries that do not count an acknowledged rollback, or that are too high', () => {
    const first = reserve('x', 100, 101);
    const planted = (tries: number) => [
      insert('x', 90, 91),
      first,
      settle('rollback', first, 110, 111),
      pop('x', 120, 121, { tries }),
    ];
    assertFault(verdictWith(planted(0)), /^tries: x: tries are 0 instead of 1/);
    assertFault(verdictWith(planted(2)), /^tries: x: tries are 2 instead of 1/);
    assertFault(verdictWith([insert('x', 90, 91), pop('x', 100, 101, { tries: 1 })]), /^tries: x/);
    assertFault(
      verdictWith([insert('x', 90, 91, { tries: 4 }), pop('x', 100, 101)]),
      /^tries: x: tries are 0 instead of 4/,
    );
  });

  it('allows a try for a reserve whose reply was lost', () => {
    const planted = [insert('x', 90, 91), unknown('reserve', 92, 95), pop('x', 1100, 1101, { tries: 1 })];
    assert.deepEqual(describeViolations(verdictWith(planted)), []);
  });

  it('allows a try for each reserve during an outage, and only then', () => {
    const failed: TakeOperation = { ...unknown('reserve', 92, 95), outcome: 'fail' };
    const planted = [insert('x', 90, 91), failed, pop('x', 1100, 1101, { tries: 1 })];
    const served = reserve('x', 92, 1101, { tries: 1 });
    assert.deepEqual(describeViolations(verdictWith([...planted, outage(80, 93)])), []);
    assert.deepEqual(describeViolations(verdictWith([...planted, outage(94, 200)])), []);
    assertFault(verdictWith([...planted, outage(96, 200)]), /^tries: x: tries are 1 instead of 0/);
    assertFault(verdictWith([...planted, outage(0, 91)]), /^tries: x: tries are 1 instead of 0/);
    assert.deepEqual(describeViolations(verdictWith([insert('x', 90, 91), served, outage(94, 200)])), []);
    assertFault(verdictWith([insert('x', 90, 91), failed, outage(80, 93)]), /^lost: x/);
  });

  it('checks each group of a stream separately', () => {
    const groups = ['g1', 'g2'];
    const take = (value: string, group: string, from: number): TakeOperation => ({
      ...pop(value, from, from + 1),
      group,
    });
    const stored = insert('x', 100, 101, { groups });
    assert.deepEqual(
      describeViolations(verdictWith([stored, take('x', 'g1', 110), take('x', 'g2', 112)])),
      [],
    );
    assertFault(verdictWith([stored, take('x', 'g1', 110)]), /^lost: x \(group g2\)/);
    const twice = [stored, take('x', 'g1', 110), take('x', 'g2', 112), take('x', 'g2', 114)];
    assertFault(verdictWith(twice), /^duplicated: x \(group g2\): .* after a pop/);
    const foreign = [stored, take('x', 'g1', 110), take('x', 'g2', 112), take('x', 'g3', 114)];
    assertFault(verdictWith(foreign), /^unexpected: x \(group g3\): .* group outside its set/);
  });

  it('finds a later element of a producer that was delivered first, only if order is checked', () => {
    const planted = [insert('x', 100, 101), insert('y', 102, 103), pop('y', 110, 111), pop('x', 112, 113)];
    assertFault(checkHistory(planted, { fifo: true }), /^order: x: y, inserted later, came first/);
    assert.deepEqual(describeViolations(checkHistory(planted)), []);
    const overlapping = [...planted.slice(0, 3), pop('x', 110, 113)];
    assert.deepEqual(describeViolations(checkHistory(overlapping, { fifo: true })), []);
    const delayed = [insert('x', 100, 101, { eligibleWallAt: WALL + 105 }), ...planted.slice(1)];
    assert.deepEqual(describeViolations(checkHistory(delayed, { fifo: true })), []);
  });

  it('attributes each overtaken element to a different take whose reply may be lost', () => {
    const overtaken = [insert('x', 100, 101), insert('y', 102, 103), pop('y', 110, 111), pop('x', 112, 113)];
    const failed: TakeOperation = { ...unknown('pop', 104, 108), outcome: 'fail' };
    for (const takes of [[failed, outage(0, 105)], [unknown('reserve', 104, 108)]]) {
      const verdict = checkHistory([...overtaken, ...takes], { fifo: true });
      assert.deepEqual(describeViolations(verdict), []);
      assert.deepEqual(
        verdict.overtaken.map(({ value }) => value),
        ['x'],
      );
    }
    const others = [
      { ...failed, queue: 'N/other' },
      { ...failed, group: 'g' },
      unknown('pop', 111.5, 120),
      { ...failed, invokedAt: -40_000, endedAt: -30_000 },
    ];
    for (const other of others) {
      assertFault(checkHistory([...overtaken, other, outage(-50_000, 109)], { fifo: true }), /^order: x: y/);
    }
    assertFault(checkHistory([...overtaken, failed, outage(108.5, 109)], { fifo: true }), /^order: x: y/);
    const two = [
      insert('w', 90, 91),
      ...overtaken.slice(0, 3),
      pop('w', 112, 113),
      pop('x', 114, 115),
      unknown('pop', 104, 108),
    ];
    assertFault(checkHistory(two, { fifo: true }), /^order: w: y/);
  });

  it('measures how soon a waiting get receives an inserted element', () => {
    const planted = [insert('x', 100, 101), pop('x', 90, 108), insert('y', 200, 201), pop('y', 210, 240)];
    assert.deepEqual(checkHistory(planted).wakeUp, { count: 1, p50: 7, p99: 7 });
  });

  it('finds every planted violation in a long random history, and nothing else', () => {
    const random = seededRandom(7);
    const operations: Operation[] = [];
    const planted = new Set<string>();
    for (let at = 0; at < 20_000; at++) {
      const [value, from] = [`v${at}`, at * 10];
      const kind = random.chance(0.001) ? random.pick(['lost', 'twice', 'changed'] as const) : 'clean';
      if (kind !== 'clean') planted.add(value);
      operations.push(insert(value, from, from + 1));
      if (kind !== 'lost') {
        const content = kind === 'changed' ? { content: contentFor('else') } : {};
        operations.push(pop(value, from + 2, from + 3, content));
      }
      if (kind === 'twice') operations.push(pop(value, from + 4, from + 5));
    }
    const verdict = checkHistory(operations, { fifo: true });
    const { lost, duplicated, unexpected } = verdict;
    assert.deepEqual(new Set([...lost, ...duplicated, ...unexpected].map(({ value }) => value)), planted);
    assert.ok(planted.size >= 10, `only ${planted.size} violations were planted`);
  });
});
