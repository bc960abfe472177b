import assert from 'node:assert/strict';
import { describe, it, type TestContext } from 'node:test';
import { QuaysideError } from '../../src/model/errors.ts';
import { Dispatcher } from '../../src/sandbox/dispatcher.ts';
import type { SandboxLimits } from '../../src/sandbox/limits.ts';
import type { SelectorAnswer, SelectorProgram, SelectorSandbox } from '../../src/sandbox/sandbox.ts';
import { WorkerSandbox } from '../../src/sandbox/sandbox.ts';
import { until } from '../support/until.ts';
import { element, json, verdictsOf } from './elements.ts';

const FOREVER = 3_600_000;

function makeOne(context: TestContext, limits: Partial<SandboxLimits> = {}): SelectorSandbox {
  const sandbox = new WorkerSandbox({ limits });
  context.after(() => sandbox.stop());
  return sandbox;
}

/** The outcome of an element in one word. */
const end = (answer: SelectorAnswer): string =>
  answer.outcome === 'overrun'
    ? answer.cause
    : answer.outcome === 'evaluated'
      ? String(answer.verdicts[0]?.accepted)
      : answer.outcome;
const ends = (answers: readonly SelectorAnswer[]): string => answers.map(end).join(' ');

/** Loops for an element with the header `evil`, accepts any other. */
const LOOPS = 'env => { if (env.msg.hdrs.evil) while (1); return true }';
/** Like `LOOPS`, but in a built-in of the VM that cannot be interrupted. */
const STICKS = 'env => { if (env.msg.hdrs.evil) new Array(1e9) + ""; return true }';
/** Takes about 30 ms. */
const SLOW = 'env => { for (let i = 0; i < 5e5; i += 1); return true }';
const FILLS =
  'env => { if (env.msg.hdrs.evil) for (const a = []; ; ) a.push(new Uint8Array(1e6)); return true }';
const good = element();
const evil = element({ headers: ['evil', '1'] });

/** The first call creates the VM, so the time that a program needs is known only from the second one on. */
async function warm(program: SelectorProgram): Promise<void> {
  await program.select([good]);
  await program.select([good]);
}

const threads = (): number =>
  process.getActiveResourcesInfo().filter((name) => name === 'MessagePort').length;

describe('a selector that only compares headers', () => {
  /** Every call of a VM overruns, and nothing else does. */
  const NO_VM = { callMs: 0, compileMs: FOREVER, watchdogMs: FOREVER };

  it('needs no VM', async (context) => {
    const sandbox = makeOne(context, NO_VM);
    const selectors = [
      'env => env.msg.hdrs.evil === "1"',
      'env.msg.hdrs["evil"] !== "1"',
      'function (env) { return !env.msg.hdrs.evil }',
      null,
    ];
    const select = async (...more: string[]) => sandbox.open([...selectors, ...more]).select([evil, good]);
    const accepted = (await select()).map(
      (answer) => answer.outcome === 'evaluated' && answer.verdicts.map((verdict) => verdict.accepted),
    );
    assert.deepEqual(accepted, [
      [true, false, false, true],
      [false, true, true, true],
    ]);
    assert.equal(ends(await select('env => String(env)')), 'deadline deadline');
  });

  it('needs a VM if it makes more than 16 comparisons', async (context) => {
    const sandbox = makeOne(context, NO_VM);
    const select = (comparisons: number) =>
      sandbox.open([Array(comparisons).fill('env.msg.hdrs.evil === "0"').join(' || ')]).select([evil]);
    assert.equal(ends(await select(16)), 'false');
    assert.equal(ends(await select(17)), 'deadline');
  });
});

describe('a selector that takes too long', () => {
  it('is interrupted at its deadline', async (context) => {
    const program = makeOne(context, { watchdogMs: FOREVER }).open([LOOPS]);
    assert.equal(ends(await program.select([evil])), 'deadline');
    assert.equal(ends(await program.select([good])), 'true');
  });

  it('is killed with its thread by the watchdog if it cannot be interrupted', async (context) => {
    const sandbox = makeOne(context, { callMs: FOREVER, watchdogMs: 100 });
    const program = sandbox.open([LOOPS]);
    assert.equal(ends(await program.select([evil])), 'watchdog');
    assert.equal(ends(await program.select([good])), 'true');
    assert.equal(ends(await sandbox.open([STICKS]).select([evil])), 'watchdog');
    assert.equal(ends(await program.select([good])), 'true');
  });

  it('does not prevent the other elements of its batch from being evaluated', async (context) => {
    const program = makeOne(context, { watchdogMs: FOREVER }).open([LOOPS]);
    assert.equal(
      ends(await program.select([good, good, evil, good, evil, evil, good])),
      'true true deadline true deadline deadline true',
    );
  });

  it('does not affect the elements of calls that were sent before its answer came', async (context) => {
    const program = makeOne(context, { watchdogMs: FOREVER, batch: 2 }).open([LOOPS]);
    await warm(program);
    assert.equal(
      ends(await program.select([good, good, good, evil, good, good, evil, good])),
      'true true true deadline true true deadline true',
    );
  });

  it('overruns once with its batch, and once alone', async (context) => {
    const program = makeOne(context, { watchdogMs: FOREVER }).open([LOOPS]);
    await warm(program);
    const requests = context.mock.method(Dispatcher.prototype, 'request');
    await program.select([good, good, good, good, good, good, good, evil]);
    const answers = await Promise.all(requests.mock.calls.map(({ result }) => result));
    assert.equal(answers.filter((answer) => answer?.outcome === 'overrun').length, 2);
  });

  it('leaves the rest of its batch unevaluated after three overruns in a row', async (context) => {
    const program = makeOne(context, { watchdogMs: FOREVER }).open([LOOPS]);
    assert.equal(
      ends(await program.select([good, evil, evil, evil, good, evil, good])),
      'true deadline deadline deadline not-evaluated not-evaluated not-evaluated',
    );
    assert.equal(ends(await program.select([good])), 'true');
  });

  it('overruns even if the uninterruptible built-in returns by itself', async (context) => {
    const slow =
      'env => { const a = new Array(3e5).fill("x"); for (let i = 0; i < 40; i += 1) a.join(""); return true }';
    const program = makeOne(context, { callMs: 5, watchdogMs: FOREVER }).open([slow]);
    assert.equal(ends(await program.select([good])), 'deadline');
  });

  it('is distinguished from a payload that takes too long to parse or serialize', async (context) => {
    const program = makeOne(context, { bodyMsPerMiB: 1 }).open([
      'env => { if (env.msg.hdrs.evil) while (1); return env.msg.payload.n > 1 }',
      // The payload is serialized because this selector may change it.
      'env => { const change = (o) => o; change(env.msg.payload); return true }',
    ]);
    const numbers = element({ body: `[${'1e308,'.repeat(40_000)}1]`, contentType: 'application/json' });
    const deep = `${'{"a":'.repeat(15_000)}1${'}'.repeat(15_000)}`;
    const nested = element({ body: deep, contentType: 'application/json' });
    const both = { ...numbers, headers: ['evil', '1'] };
    for (const [input, inPayload] of [
      [numbers, true],
      [nested, true],
      [both, false],
      [json({ n: 1 }, ['evil', '1']), false],
    ] as const) {
      const [answer] = await program.select([input]);
      assert.equal(answer?.outcome, 'overrun', input.body.subarray(0, 20).toString());
      assert.equal(answer.outcome === 'overrun' && answer.inPayload, inPayload);
    }
  });

  it('is also limited while it is compiled', async (context) => {
    const sandbox = makeOne(context, { compileMs: -1, watchdogMs: FOREVER });
    await assert.rejects(
      sandbox.check([{ source: 'env => true', path: 'dst[0].selector' }], 'user'),
      (error) =>
        error instanceof QuaysideError && error.code === 'invalid-body' && /too long/.test(error.message),
    );
    assert.equal(ends(await sandbox.open(['env => true']).select([good])), 'deadline');
  });

  it('does not lose the requests of other programs when it is killed', async (context) => {
    const sandbox = makeOne(context, { watchdogMs: 100, callMs: FOREVER });
    const [bad, neighbour] = [sandbox.open([STICKS]), sandbox.open(['env => env.msg.hdrs.a === "1"', null])];
    const inputs = [element({ headers: ['a', '1'] }), good];
    const [stuck, ...answers] = await Promise.all([
      bad.select([evil]),
      ...Array.from({ length: 20 }, () => neighbour.select(inputs)),
    ]);
    assert.equal(ends(stuck), 'watchdog');
    for (const answer of answers) assert.equal(ends(answer), 'true false');
  });
});

describe('time that is not charged to a selector', () => {
  it('includes parsing and serializing a large payload', async (context) => {
    const rows = Array.from({ length: 12_000 }, (_, n) => ({ n, text: 'some text', list: [1, 2, 3] }));
    const large = json(rows);
    assert.ok(large.body.length > 500_000);
    const program = makeOne(context).open([
      'env => { env.msg.payload[0].n = "x"; return env.msg.payload.length === 12000 }',
    ]);
    assert.equal(ends(await program.select([large, large])), 'true true');
  });

  it('includes time that the main thread spends elsewhere', async (context) => {
    const sandbox = makeOne(context, { watchdogMs: 100 });
    const program = sandbox.open(['env => true']);
    await program.select([good]);
    const answers = [program.select([good]), program.select([good])];
    const until = performance.now() + 600;
    while (performance.now() < until);
    assert.equal(ends((await Promise.all(answers)).flat()), 'true true');
  });
});

describe('a selector that fills the memory', () => {
  it('overruns for its own element only', async (context) => {
    const program = makeOne(context, { callMs: FOREVER, watchdogMs: FOREVER }).open([FILLS]);
    assert.equal(ends(await program.select([good, evil, good])), 'true memory true');
  });

  it('gets an error instead if the payload alone exceeds the memory', async (context) => {
    const program = makeOne(context, { memoryBytes: 2 ** 21 }).open([
      'env => env.msg.payload.length',
      'env => true',
    ]);
    const verdicts = await verdictsOf(program, json(Array.from({ length: 20_000 }, () => ({}))));
    assert.match(verdicts[0]?.error ?? '', /too large or too deep/);
    assert.equal(verdicts[1]?.accepted, true);
  });
});

describe('selectors that write much', () => {
  /** Writes 1,000 bytes per destination. */
  const WRITES = 'env => { env.msg.payload = new Uint8Array(1000); return true }';

  it('end a batch after the element in progress; the rest can be evaluated in another batch', async (context) => {
    const program = makeOne(context, { writtenBytes: 5000 }).open([WRITES, null]);
    const elements = Array.from({ length: 10 }, () => good);
    const answers = await program.select(elements);
    assert.equal(ends(answers), 'true true true');
    assert.equal(ends(await program.select(elements.slice(answers.length))), 'true true true');
    assert.equal(ends(await makeOne(context, { writtenBytes: 1 }).open([WRITES]).select(elements)), 'true');
  });

  it('have a limit per element, beyond which a destination rejects', async (context) => {
    const writes = (byte: number) =>
      `env => { env.msg.payload = new Uint8Array(1000).fill(${byte}); return true }`;
    const program = makeOne(context, { elementBytes: 2500 }).open([
      writes(1),
      writes(2),
      writes(3),
      'env => env.msg.payload[0] === 2',
    ]);
    for (const verdicts of [await verdictsOf(program, good), await verdictsOf(program, good)]) {
      assert.deepEqual(
        verdicts.map(({ accepted, body }) => [accepted, body?.[0]]),
        [
          [true, 1],
          [true, 2],
          [false, 2],
          [true, 2],
        ],
      );
      assert.match(verdicts[2]?.error ?? '', /wrote more than 2500 bytes for this element/);
    }
  });

  it('end no batch if only decisions are requested, which are returned without the written bytes', async (context) => {
    const program = makeOne(context, { writtenBytes: 5000 }).open([WRITES], { decidesOnly: true });
    const answers = await program.select(Array.from({ length: 10 }, () => good));
    assert.equal(answers.length, 10);
    for (const answer of answers) {
      const [verdict] = answer.outcome === 'evaluated' ? answer.verdicts : [];
      assert.deepEqual([verdict?.accepted, verdict?.body, verdict?.headers], [true, null, null]);
    }
  });
});

describe('the sandbox as a service', () => {
  it('starts its thread on start, before any selector is evaluated', async (context) => {
    const before = threads();
    const sandbox = makeOne(context);
    await sandbox.start();
    await until(() => threads() !== before);
    await sandbox.stop();
    assert.equal(threads(), before);
  });

  it('has no thread until a selector is evaluated if it was not started', async () => {
    const before = threads();
    const sandbox = new WorkerSandbox();
    const program = sandbox.open([null, null]);
    sandbox.open(['env => true']);
    const [answer] = await program.select([good]);
    assert.equal(answer?.outcome === 'evaluated' && answer.verdicts.every(({ accepted }) => accepted), true);
    assert.deepEqual(await sandbox.open(['env => true']).select([]), []);
    assert.equal(threads(), before);
    await sandbox.stop();
  });

  it('stops immediately, idempotently and before any use, and leaves no thread', async () => {
    const before = threads();
    await new WorkerSandbox().stop();
    const sandbox = new WorkerSandbox({ limits: { callMs: FOREVER, watchdogMs: FOREVER } });
    const program = sandbox.open([LOOPS]);
    await program.select([good]);
    const refused = (error: unknown): boolean =>
      error instanceof QuaysideError && error.code === 'shutting-down';
    const running = assert.rejects(program.select([evil]), refused);
    const waiting = assert.rejects(program.select([good]), refused);
    const first = sandbox.stop();
    assert.equal(sandbox.stop(), first);
    await Promise.all([first, running, waiting]);
    await assert.rejects(program.select([good]), refused);
    await assert.rejects(sandbox.check([{ source: 'env => 1', path: 'p' }], 'user'), refused);
    program.close();
    assert.equal(threads(), before);
  });

  it('stops while its thread is starting', async () => {
    const sandbox = new WorkerSandbox();
    const asked = assert.rejects(sandbox.open(['env => true']).select([good]), /shutting down/);
    await sandbox.stop();
    await asked;
  });

  it('reports that its thread cannot be started, and tries again', async (context) => {
    const program = makeOne(context, { memoryBytes: 1000 }).open(['env => true']);
    const refused = (error: unknown): boolean => error instanceof QuaysideError && error.code === 'internal';
    await assert.rejects(program.select([good]), refused);
    await assert.rejects(program.select([good]), refused);
  });

  it('reopens a closed program, and one whose VM was evicted', async (context) => {
    const sandbox = makeOne(context, { liveVms: 2 });
    const programs = Array.from({ length: 5 }, (_, n) => sandbox.open([`env => ({ tries: ${n} })`]));
    for (let round = 0; round < 3; round += 1) {
      for (const [n, program] of programs.entries()) {
        assert.equal((await verdictsOf(program, good))[0]?.tries, n);
        if (n === round) program.close();
      }
    }
  });

  it('takes turns: a busy exchange does not delay another one', async (context) => {
    const sandbox = makeOne(context, { batch: 1, callMs: FOREVER, watchdogMs: FOREVER });
    // Turns depend on measured time. Only the calls of the busy exchange are long, so noise does not matter.
    const [busy, quiet] = [sandbox.open([SLOW]), sandbox.open(['env => true'])];
    await Promise.all([warm(busy), warm(quiet)]);
    const order: string[] = [];
    await Promise.all([
      ...Array.from({ length: 20 }, () => busy.select([good]).then(() => order.push('busy'))),
      quiet.select([good]).then(() => order.push('quiet')),
    ]);
    assert.ok(order.indexOf('quiet') <= 1, order.join(' '));
  });

  it('divides its time between one user’s checks and dry runs and the exchanges of others', async (context) => {
    const sandbox = makeOne(context);
    const honest = sandbox.open(['env => true'], { payer: 'honest' });
    await warm(honest);
    const order: string[] = [];
    const source = 'env => { while (1); }';
    // A dry run is first, and long. On a slowed-down machine a check may be quicker than the honest call, and then
    // `evil` would rightly be next once more.
    const floods = Array.from({ length: 10 }, () => [
      sandbox
        .open([source], { payer: 'evil' })
        .select([good])
        .then(() => order.push('try')),
      sandbox.check([{ source, path: 'p' }], 'evil').then(() => order.push('check')),
    ]).flat();
    for (let i = 0; i < 3; i += 1) {
      await honest.select([good]);
      order.push('honest');
    }
    // A request in progress is finished first; no other one is served before the honest element.
    assert.equal(order.join(' ').replaceAll(/check|try/g, 'evil'), 'evil honest evil honest evil honest');
    await Promise.all(floods);
  });

  it('delays an element by at most one call of another user, however many slow exchanges that user has', async (context) => {
    const sandbox = makeOne(context, { callMs: FOREVER, watchdogMs: FOREVER });
    const honest = sandbox.open(['env => true'], { payer: 'honest' });
    await warm(honest);
    const order: string[] = [];
    const evil = Array.from({ length: 30 }, () => sandbox.open([SLOW], { payer: 'evil' }));
    const floods = evil.map((program) => program.select([good]).then(() => order.push('evil')));
    for (let i = 0; i < 5; i += 1) {
      await honest.select([good]);
      order.push('honest');
    }
    await Promise.all(floods);
    assert.match(order.join(' '), /^(evil honest ){5}/);
  });

  it('delays a quick exchange by at most one call of slow exchanges of the same user', async (context) => {
    const sandbox = makeOne(context, { callMs: FOREVER, watchdogMs: FOREVER });
    const quick = sandbox.open(['env => true'], { payer: 'user' });
    await warm(quick);
    const order: string[] = [];
    const others = Array.from({ length: 10 }, () => sandbox.open([SLOW], { payer: 'user' }));
    // All of them have used some time before.
    await Promise.all(others.map((program) => program.select([good])));
    const floods = [0, 1, 2].flatMap(() =>
      others.map((program) => program.select([good]).then(() => order.push('slow'))),
    );
    for (let i = 0; i < 5; i += 1) {
      await quick.select([good]);
      order.push('quick');
    }
    await Promise.all(floods);
    assert.match(order.join(' '), /^(slow quick ){5}/);
  });

  it('evaluates again with bodies once a selector reads one, and loses no changes', async (context) => {
    const program = makeOne(context).open([
      'env => { env.msg.hdrs.first = "1"; return env.msg.hdrs.read ? env.msg.payload.n : true }',
      'env => { if (env.msg.hdrs.write) env.msg.payload = { n: 9 }; return true }',
    ]);
    const plain = json({ n: 0 });
    const read = json({ n: 0 }, ['read', '1']);
    const write = json({ n: 0 }, ['write', '1']);
    assert.equal(ends(await program.select([plain, plain])), 'true true');
    assert.equal(ends(await program.select([plain, read, plain])), 'true false true');
    const verdicts = await verdictsOf(program, write);
    assert.equal(Buffer.from(verdicts[1]?.body ?? []).toString(), '{"n":9}');
  });
});
