import { eventually, Nodes } from '../cluster/nodes.ts';
import { drain } from '../support/drain.ts';
import { History, type Operation } from '../support/history.ts';
import { checkHistory, describeViolations, type Verdict, violationsOf } from '../support/history-check.ts';
import { storiesOf } from '../support/history-story.ts';
import { freshSeed, seededRandom } from '../support/random.ts';
import { Gate, Load } from '../support/recorded-load.ts';

const NODES = 2;
/**
 * Pause between the calls of a client. Load must last through a fault and its recovery, which takes seconds; more load
 * only costs processor time. `npm run test:faults` uses as much as the machine can process.
 */
const PAUSE_MS = Number(process.env.FAULT_PAUSE_MS ?? 100);
/** Calls that succeed before a fault, between its parts and after it; `npm run test:faults` waits for 300. */
const ANSWERED = Number(process.env.FAULT_ANSWERED ?? 100);

export interface FaultReport {
  readonly verdict: Verdict;
  /** All violations, one line each; empty if the run passed. */
  readonly faults: readonly string[];
  readonly summary: string;
  /** The history of the first values with violations, one line per operation; empty if the run passed. */
  readonly stories: readonly string[];
}

export interface FaultPlan {
  /** URL of the engine that both nodes share. */
  readonly url: string;
  /** URL of the engine for the second node, if it differs, for example through a proxy. */
  readonly secondUrl?: string;
  /**
   * Breaks and repairs the engine. `answered` resolves once some hundred more calls have succeeded. `outage` runs a
   * function that breaks and repairs, and records its duration in the history, because replies of the engine may be
   * lost during it.
   */
  readonly fault: (
    answered: () => Promise<void>,
    outage: (broken: () => Promise<void>) => Promise<void>,
  ) => Promise<void>;
}

/**
 * Runs 8 producers and 8 consumers over two nodes on one engine, with a fault in the middle; then drains everything and
 * checks the history.
 */
export async function runFault({ url, secondUrl, fault }: FaultPlan): Promise<FaultReport> {
  const seed = freshSeed();
  const nodes = await Nodes.start(url, NODES - 1);
  try {
    await nodes.add(secondUrl);
    const history = new History();
    const gate = new Gate();
    gate.open();
    const urls = Array.from({ length: NODES }, (_, at) => () => nodes.server(at).url);
    const load = new Load({
      urls,
      gate,
      history,
      random: seededRandom(seed),
      name: `${seed}-`,
      pauseMs: PAUSE_MS,
    });
    load.start();
    const answered = (): Promise<void> => answeredOf(history.operations);
    await answered();
    await fault(answered, (broken) => noteOutage(history, broken));
    await answered();
    await load.stop();
    const left = await drain(nodes.server(0).url, history);
    const verdict = checkHistory(history.operations, { fifo: true });
    return {
      verdict,
      faults: [...left, ...describeViolations(verdict)],
      summary: summaryOf(verdict, seed),
      stories: storiesOf(violationsOf(verdict), history.operations),
    };
  } finally {
    await nodes.stop();
  }
}

async function noteOutage(history: History, broken: () => Promise<void>): Promise<void> {
  const [client, queue] = ['chaos', ''];
  const start = { client, queue, seq: history.nextSeq(client), invokedAt: performance.now() };
  const invokedWallAt = Date.now();
  await broken();
  const end = { endedAt: performance.now(), endedWallAt: Date.now(), outcome: 'ok' as const };
  history.record({ kind: 'outage', ...start, invokedWallAt, ...end });
}

async function answeredOf(operations: readonly Operation[]): Promise<void> {
  const from = operations.length;
  const count = (): number => operations.slice(from).filter(({ outcome }) => outcome === 'ok').length;
  await eventually(`${ANSWERED} more calls succeed`, async () => count() >= ANSWERED);
}

function summaryOf(verdict: Verdict, seed: number): string {
  const { inserts, takes, settles, deliveries } = verdict.counts;
  const facts = [
    `acked=${inserts.ok} delivered=${deliveries}`,
    `lost=${verdict.lost.length} duplicated=${verdict.duplicated.length} changed=${verdict.unexpected.length}`,
    `early=${verdict.early.length} tries=${verdict.wrongTries.length} order=${verdict.outOfOrder.length}`,
    `recovered=${verdict.recovered.length} maybePopped=${verdict.maybePopped.length} overtaken=${verdict.overtaken.length}`,
    `refused=${inserts.fail}+${takes.fail}+${settles.fail}`,
    `unknown=${inserts.unknown}+${takes.unknown}+${settles.unknown} (insert+take+settle)`,
    `seed=${seed}`,
  ];
  return facts.join(', ');
}
