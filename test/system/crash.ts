/**
 * `npm run test:crash -- [--kills N] [--seed S]`: kills the server under load and says in one line what came
 * of it. Exit code 1 on any violation, with the history of the values concerned and of their queues around them.
 */
import { parseArgs } from 'node:util';
import type { Operation } from '../support/history.ts';
import { freshSeed } from '../support/random.ts';
import { type CrashReport, runCrash, summaryOf } from './crash-run.ts';

const FAULTS_SHOWN = 20;
const STORIES_SHOWN = 3;
/** How long before and after a value's own operations those of its queue are shown. */
const AROUND_MS = 3000;

const { values } = parseArgs({
  options: { kills: { type: 'string', default: '50' }, seed: { type: 'string' } },
});
const kills = wholeNumber('--kills', values.kills);
const seed = values.seed === undefined ? freshSeed() : wholeNumber('--seed', values.seed);

console.log(`seed ${seed}`);
const report = await runCrash({
  kills,
  seed,
  onKill: (done) => {
    if (done % 10 === 0) console.log(`${done} of ${kills} kills`);
  },
});
explain(report);
console.log(summaryOf(report, seed));
process.exitCode = report.faults.length === 0 ? 0 : 1;

function explain({ faults, operations, verdict }: CrashReport): void {
  for (const fault of faults.slice(0, FAULTS_SHOWN)) console.log(fault);
  const { lost, unexpected, duplicated, early, wrongTries, outOfOrder } = verdict;
  const violations = [...lost, ...unexpected, ...duplicated, ...early, ...wrongTries, ...outOfOrder];
  for (const { value, group } of violations.slice(0, STORIES_SHOWN)) {
    console.log(
      `history of ${value}${group === '' ? '' : ` in group ${group}`}, and of its queue around it:`,
    );
    for (const operation of storyOf(operations, value, group)) console.log(JSON.stringify(operation));
  }
}

/**
 * What happened to a value, and around it in its queue: crashes, and every operation that was not acknowledged, since
 * one of these may have taken it.
 */
function storyOf(operations: readonly Operation[], value: string, group: string): Operation[] {
  const own = operations.filter((operation) => valueIn(operation) === value);
  const from = Math.min(...own.map(({ invokedAt }) => invokedAt)) - AROUND_MS;
  const until = Math.max(...own.map(({ endedAt }) => endedAt)) + AROUND_MS;
  return operations.filter((operation) => {
    if (own.includes(operation)) return true;
    if (operation.endedAt < from || operation.invokedAt > until) return false;
    if (operation.kind === 'crash') return true;
    const isOfGroup = !('group' in operation) || operation.group === group;
    return operation.outcome !== 'ok' && operation.queue === own[0]?.queue && isOfGroup;
  });
}

function valueIn(operation: Operation): string | null {
  if ('value' in operation) return operation.value;
  return 'delivery' in operation ? (operation.delivery?.value ?? null) : null;
}

function wholeNumber(name: string, text: string): number {
  if (!/^\d+$/.test(text)) throw new Error(`${name} is a whole number, not "${text}".`);
  return Number(text);
}
