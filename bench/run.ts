/**
 * `npm run bench -- [scenario…] [--quick] [--profile DIR]`: runs scenarios and prints a line per figure, with a
 * reference measured in the same run. `--quick` only shows that every scenario works, and judges no figure: run it
 * before a change lands. Exit code 1 if a scenario fails or, without `--quick`, a figure misses its target.
 */
import { parseArgs } from 'node:util';
import { diskNow } from './disk.ts';
import { loadGenerator } from './load/http-load.ts';
import { isReached, lineOf, type Scenario } from './scenario.ts';
import { amqp } from './scenarios/amqp.ts';
import { amqpIdle } from './scenarios/amqp-idle.ts';
import { blocked } from './scenarios/blocked.ts';
import { browse } from './scenarios/browse.ts';
import { bulkMove } from './scenarios/bulk-move.ts';
import { consolePages } from './scenarios/console.ts';
import { consoleCost } from './scenarios/console-cost.ts';
import { consoleMemory } from './scenarios/console-memory.ts';
import { consoleNodes } from './scenarios/console-nodes.ts';
import { depth } from './scenarios/depth.ts';
import { engine } from './scenarios/engine.ts';
import { events } from './scenarios/events.ts';
import { exchange } from './scenarios/exchange.ts';
import { exchangeAttack } from './scenarios/exchange-attack.ts';
import { exchangeHttp } from './scenarios/exchange-http.ts';
import { firstInsert } from './scenarios/first-insert.ts';
import { frontEnds } from './scenarios/front-ends.ts';
import { insert } from './scenarios/insert.ts';
import { insertMany } from './scenarios/insert-many.ts';
import { pop } from './scenarios/pop.ts';
import { postgres } from './scenarios/postgres.ts';
import { postgresDepth } from './scenarios/postgres-depth.ts';
import { redis } from './scenarios/redis.ts';
import { redisDepth } from './scenarios/redis-depth.ts';
import { redisEngine } from './scenarios/redis-engine.ts';
import { reserveCommit } from './scenarios/reserve-commit.ts';
import { sdk } from './scenarios/sdk.ts';
import { stomp } from './scenarios/stomp.ts';
import { stompIdle } from './scenarios/stomp-idle.ts';
import { takeMany } from './scenarios/take-many.ts';
import { twoNodes } from './scenarios/two-nodes.ts';
import { wakeUp } from './scenarios/wake-up.ts';
import { wakeUpNodes } from './scenarios/wake-up-nodes.ts';

const SCENARIOS: readonly Scenario[] = [
  insert,
  insertMany,
  pop,
  reserveCommit,
  engine,
  wakeUp,
  depth,
  blocked,
  exchange,
  exchangeHttp,
  exchangeAttack,
  bulkMove,
  browse,
  postgres,
  postgresDepth,
  redis,
  redisEngine,
  redisDepth,
  wakeUpNodes,
  twoNodes,
  stomp,
  stompIdle,
  amqpIdle,
  amqp,
  frontEnds,
  events,
  takeMany,
  sdk,
  firstInsert,
  consolePages,
  consoleMemory,
  consoleCost,
  consoleNodes,
];

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { quick: { type: 'boolean', default: false }, profile: { type: 'string' } },
});
const names = SCENARIOS.map(({ name }) => name);
for (const name of positionals) {
  if (!names.includes(name)) throw new Error(`Unknown scenario "${name}". Allowed: ${names.join(', ')}.`);
}
const context = {
  quick: values.quick,
  profileDir: values.profile ?? null,
  note: (line: string) => console.log(`  ${line}`),
};

console.log(`load from ${loadGenerator()}${values.quick ? ', quick: no figure is judged' : ''}`);
const lines: string[] = [];
let short = 0;
let failed = 0;
for (const scenario of SCENARIOS) {
  if (positionals.length > 0 && !positionals.includes(scenario.name)) continue;
  try {
    await runOne(scenario);
  } catch (error) {
    // Later scenarios start servers of their own, so a failure does not affect them.
    failed++;
    console.error(error);
    lines.push(`${scenario.name}: failed: ${error instanceof Error ? error.message : String(error)}`);
  }
}
console.log(['', ...lines].join('\n'));
process.exitCode = failed > 0 || (short > 0 && !values.quick) ? 1 : 0;

async function runOne(scenario: Scenario): Promise<void> {
  console.log(scenario.name);
  context.note(diskNow());
  for (const finding of await scenario.run(context)) {
    if (!Number.isFinite(finding.ratio)) throw new Error(`${scenario.name}: ${finding.what} has no figure.`);
    if (!isReached(finding)) short++;
    lines.push(lineOf(scenario.name, finding, context.quick));
  }
}
