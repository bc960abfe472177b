/**
 * `npm run test:crash -- [--kills N] [--seed S]`: kills the server under load and prints a one-line summary. If there
 * is a violation, it also prints the history of the affected values and of their queues at that time, and exits with 1.
 */
import { parseArgs } from 'node:util';
import { violationsOf } from '../support/history-check.ts';
import { storiesOf } from '../support/history-story.ts';
import { freshSeed } from '../support/random.ts';
import { type CrashReport, runCrash, summaryOf } from './crash-run.ts';

const FAULTS_SHOWN = 20;

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
  for (const line of storiesOf(violationsOf(verdict), operations)) console.log(line);
}

function wholeNumber(name: string, text: string): number {
  if (!/^\d+$/.test(text)) throw new Error(`${name} must be a whole number, not "${text}".`);
  return Number(text);
}
