import { type Answer, headerOf, QueueClient } from '../test/support/http-client.ts';
import { createServer, ELEMENT, NAMESPACE } from './quayside.ts';
import type { BenchContext } from './scenario.ts';

/** One real answer of each kind, which references repeat. */
export interface SampleAnswers {
  readonly pop: Answer;
  readonly reserve: Answer;
  readonly commit: Answer;
}

/** Collects answers from a separate server, so that the one under test starts with its data untouched. */
export async function sampleAnswers(context: BenchContext): Promise<SampleAnswers> {
  await using server = await createServer({ ...context, profileDir: null });
  await server.start();
  const client = new QueueClient({ url: server.url });
  try {
    for (let count = 0; count < 2; count++) {
      await client.insert(NAMESPACE, 'sample', ELEMENT, { contentType: 'application/json' });
    }
    const pop = await client.get(NAMESPACE, 'sample', { to: 0 });
    const reserve = await client.reserve(NAMESPACE, 'sample', { to: 0 });
    const token = headerOf(reserve, 'x-ks-lease');
    const commit = await client.commit(NAMESPACE, 'sample', headerOf(reserve, 'x-ks-id'), { token });
    for (const { status, body } of [pop, reserve, commit]) {
      if (status !== 200) throw new Error(`A sample request was answered with ${status}: ${body}`);
    }
    return { pop, reserve, commit };
  } finally {
    client.close();
  }
}
