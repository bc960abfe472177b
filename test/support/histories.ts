import fc from 'fast-check';

interface HistoryOptions {
  readonly runs: number;
  readonly maxCommands: number;
  /** How long one history may take before it counts as hung, ms. */
  readonly timeoutMs?: number;
}

/**
 * Runs random histories of commands, and shrinks the first one that fails. The error starts with the environment
 * variables that replay it: fast-check needs the seed, the path to the history, and which of its commands were run.
 */
export async function checkHistories<Model extends object, Real>(
  commands: fc.Arbitrary<fc.AsyncCommand<Model, Real>>[],
  { runs, maxCommands, timeoutMs }: HistoryOptions,
  run: (history: Iterable<fc.AsyncCommand<Model, Real>>) => Promise<void>,
): Promise<void> {
  const { SEED, MODEL_PATH, MODEL_REPLAY, MODEL_SHRINK } = process.env;
  const replayPath = MODEL_REPLAY === undefined ? {} : { replayPath: MODEL_REPLAY };
  const histories = fc.commands(commands, { maxCommands, size: 'max', ...replayPath });
  const details = await fc.check(fc.asyncProperty(histories, run), {
    numRuns: runs,
    endOnFailure: MODEL_SHRINK === '0',
    ...(SEED !== undefined && { seed: Number(SEED) }),
    ...(MODEL_PATH !== undefined && { path: MODEL_PATH }),
    ...(timeoutMs !== undefined && { timeout: timeoutMs }),
  });
  if (!details.failed) return;
  const [, replay = ''] = /replayPath="([^"]*)"/.exec(String(details.counterexample?.[0])) ?? [];
  const path = details.counterexamplePath ?? '';
  const again = `SEED=${details.seed} MODEL_PATH=${path} MODEL_REPLAY=${replay}`;
  throw new Error(`Replay with ${again}\n${await fc.asyncDefaultReportMessage(details)}`, {
    cause: details.errorInstance,
  });
}
