import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { SelectorAnswer, SelectorProgram } from '../../src/sandbox/sandbox.ts';
import { WorkerSandbox } from '../../src/sandbox/sandbox.ts';
import { ATTACKS } from './attacks.ts';
import { element, json } from './elements.ts';

const sandbox = new WorkerSandbox();
const neighbour = sandbox.open(['env => env.msg.hdrs.a === "1"', 'env => ({ tries: env.msg.payload.n })']);
const input = json({ n: 7 }, ['a', '1']);

/** How an attack ended, as in `Attack.ends`. */
function endOf(answer: SelectorAnswer | undefined): string {
  if (answer?.outcome === 'overrun') return answer.cause;
  if (answer?.outcome !== 'evaluated') return 'not-evaluated';
  const [verdict] = answer.verdicts;
  return verdict?.error === null ? `said ${verdict.accepted ? 'yes' : 'no'}` : 'error';
}

/**
 * Some hypervisors count time taken from a thread as its processor time, so an honest program exceeds its limit now and
 * then. It is evaluated again, as an exchange does with requeued elements.
 */
async function assertRight(program: SelectorProgram): Promise<void> {
  let [answer] = await program.select([input]);
  for (let again = 0; answer?.outcome === 'overrun' && again < 5; again += 1) {
    [answer] = await program.select([input]);
  }
  assert.equal(answer?.outcome, 'evaluated');
  const [first, second] = answer.verdicts;
  assert.equal(first?.accepted, true);
  assert.equal(second?.tries, 7);
}

describe('attacks on the selector sandbox', () => {
  let longestMs = 0;
  let longest = '';
  before(() => assertRight(neighbour));
  after(() => sandbox.stop());

  for (const { name, selector, ends } of ATTACKS) {
    it(`contains: ${name}`, async () => {
      const program = sandbox.open([
        `env => env.msg.hdrs.evil ? (${selector})(env) : true`,
        'env => ({ tries: env.msg.payload.n })',
      ]);
      const startedAt = performance.now();
      const [[answer]] = await Promise.all([
        program.select([element({ ...input, headers: ['evil', '1'] })]).finally(() => {
          const ms = performance.now() - startedAt;
          if (ms > longestMs) [longestMs, longest] = [ms, name];
        }),
        assertRight(neighbour),
      ]);
      const how = endOf(answer);
      assert.ok((ends as readonly string[]).includes(how), `ended by ${how}`);
      await assertRight(program);
      await assertRight(neighbour);
      program.close();
    });
  }

  it('contains a program that attacks while it is compiled', async (context) => {
    for (const source of [
      `env => ${'['.repeat(4000)}${']'.repeat(4000)}`,
      `env => /${'('.repeat(2000)}a${')+'.repeat(2000)}$/.test("a")`,
      `env => /${'(?:a{9999}){9999}'.repeat(400)}/.test("a")`,
      `env => /${'[\\p{L}--\\p{Lu}]'.repeat(500)}/v.test("a")`,
      `env => ${'a=>'.repeat(2500)}1`,
      `env => \`${'${`'.repeat(1500)}${'`}'.repeat(1500)}\``,
      `env => {${'{'.repeat(4000)}${'}'.repeat(4000)}}`,
      `env => ${'-'.repeat(4000).replaceAll('--', '- -').slice(0, 8000)} 1`,
      `env => "${'\\u{1F600}'.repeat(800)}"`,
      `env => class { ${'static { '.repeat(800)}${'} '.repeat(800)} }`,
    ]) {
      const startedAt = performance.now();
      const outcome = await sandbox.check([{ source, path: 'dst[0].selector' }], 'user').then(
        () => 'compiles',
        (error: Error) => error.message.slice(0, 100),
      );
      const ms = performance.now() - startedAt;
      context.diagnostic(`${source.slice(0, 30)}… ${ms.toFixed(0)} ms: ${outcome}`);
      await assertRight(neighbour);
    }
  });

  it('reports the longest containment', (context) => {
    assert.ok(longestMs > 0);
    context.diagnostic(`longest containment: ${longestMs.toFixed(0)} ms, ${longest}`);
  });
});
