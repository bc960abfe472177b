import { compareThroughput } from '../compare.ts';
import { type HttpLoad, runLoad } from '../load/http-load.ts';
import { AUTHORIZATION, benchPath, createServer, fillStopped } from '../quayside.ts';
import { startTakeReference } from '../reference/reference.ts';
import { sampleAnswers } from '../sample-answers.ts';
import { grouped, type Scenario } from '../scenario.ts';

/** `GET` of stored elements over 64 connections, compared with a server that repeats one such answer. */
export const pop: Scenario = {
  name: 'pop',
  async run(context) {
    const answers = await sampleAnswers(context);
    await using reference = await startTakeReference(answers.pop);
    await using server = await createServer(context);
    const [warmUp, seconds, rounds] = context.quick ? [1, 1, 1] : [3, 5, 7];
    const load = (target: { url: string; pid: number }, queue: string, length: number): HttpLoad => ({
      url: target.url,
      pid: target.pid,
      method: 'GET',
      path: `${benchPath(queue)}?to=0`,
      headers: { authorization: AUTHORIZATION },
      body: '',
      connections: 64,
      seconds: length,
    });
    const { perSecond } = await runLoad(load(reference, 'warm-up', warmUp));
    // Enough for a round at the current speed of the machine; a round that takes all of them ends early.
    const atMost = Math.ceil(perSecond * Math.max(warmUp, seconds));
    const queues = ['warm-up', ...Array.from({ length: rounds }, (_, round) => `pop-${round}`)];
    context.note(`filling ${queues.length} queues with ${grouped(atMost)} elements each`);
    await fillStopped(server, queues, atMost);
    await server.start();
    if (!context.quick) await runLoad({ ...load(server, 'warm-up', warmUp), atMost });
    const finding = await compareThroughput(context, {
      what: 'GET pop of stored elements, 64 connections',
      target: { kind: 'at least', ratio: 0.65 },
      rounds,
      measure: (round) => runLoad({ ...load(server, `pop-${round}`, seconds), atMost }),
      reference: (round) => runLoad({ ...load(reference, `pop-${round}`, seconds), atMost }),
    });
    await server.stop();
    return [finding];
  },
};
