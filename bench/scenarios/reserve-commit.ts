import { compareThroughput } from '../compare.ts';
import { type PairLoad, runReserveCommit } from '../load/pairs.ts';
import { AUTHORIZATION, benchPath, createServer, fillStopped } from '../quayside.ts';
import { startTakeReference } from '../reference/reference.ts';
import { sampleAnswers } from '../sample-answers.ts';
import { grouped, type Scenario } from '../scenario.ts';

/** Reserve, then commit with the token, on 64 connections; the reference answers two constant requests. */
export const reserveCommit: Scenario = {
  name: 'reserve-commit',
  async run(context) {
    const answers = await sampleAnswers(context);
    await using reference = await startTakeReference(answers.reserve, answers.commit);
    await using server = await createServer(context);
    const [warmUp, seconds, rounds] = context.quick ? [1, 1, 1] : [3, 5, 7];
    const load = (target: { url: string; pid: number }, queue: string, length: number): PairLoad => ({
      url: target.url,
      pid: target.pid,
      queuePath: benchPath(queue),
      authorization: AUTHORIZATION,
      connections: 64,
      seconds: length,
    });
    const { perSecond } = await runReserveCommit(load(reference, 'warm-up', warmUp));
    // Enough for a round at the current speed of the machine; a round that takes all of them ends early.
    const atMost = Math.ceil(perSecond * Math.max(warmUp, seconds));
    const queues = ['warm-up', ...Array.from({ length: rounds }, (_, round) => `pair-${round}`)];
    context.note(`filling ${queues.length} queues with ${grouped(atMost)} elements each`);
    await fillStopped(server, queues, atMost);
    await server.start();
    if (!context.quick) await runReserveCommit({ ...load(server, 'warm-up', warmUp), atMost });
    const finding = await compareThroughput(context, {
      what: 'reserve and commit, pairs, 64 connections',
      target: { kind: 'at least', ratio: 0.6 },
      rounds,
      measure: (round) => runReserveCommit({ ...load(server, `pair-${round}`, seconds), atMost }),
      reference: (round) => runReserveCommit({ ...load(reference, `pair-${round}`, seconds), atMost }),
    });
    await server.stop();
    return [finding];
  },
};
