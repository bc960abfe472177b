import { cpuTimeOf } from '../process.ts';
import { cpuPer, type LoadResult } from './http-load.ts';
import { type WireAnswer, WireConnection, wireRequest, wireTail } from './wire.ts';

/** Pairs of requests on every connection; the second one needs the answer to the first. */
export interface PairLoad {
  readonly url: string;
  readonly pid: number;
  readonly queuePath: string;
  readonly authorization: string;
  readonly connections: number;
  readonly seconds: number;
  /** Ends the load early after this many pairs, which is the number of elements to take. */
  readonly atMost?: number;
}

/** Runs one pair, then calls back. */
type Pair = (connection: WireConnection, done: () => void, fail: (error: Error) => void) => void;

const ID = /\r\nx-ks-id: *([^\r]+)/i;
const TOKEN = /\r\nx-ks-lease: *([^\r]+)/i;

/** Reserves, then commits with the token. Counts pairs. @throws Error if any request failed */
export function runReserveCommit(load: PairLoad): Promise<LoadResult> {
  const { queuePath, authorization } = load;
  const reserve = wireRequest('GET', `${queuePath}?reserve=1&to=0`, authorization);
  const [beforeId, afterId] = [`PATCH ${queuePath}/commit/`, wireTail(authorization)];
  return runPairs(load, (connection, done, fail) => {
    const reserved = ({ status, head }: WireAnswer): void => {
      const [id, token] = [ID.exec(head)?.[1], TOKEN.exec(head)?.[1]];
      if (status !== 200 || id === undefined || token === undefined) fail(refusal(head));
      else
        connection.send(
          `${beforeId}${id}?token=${token}${afterId}`,
          (answer) => end(answer, done, fail),
          fail,
        );
    };
    connection.send(reserve, reserved, fail);
  });
}

const RECEIPT = /"id":"([^"]+)".*?"lease":"([^"]+)"/g;

/**
 * Takes `count` elements with reserve, then commits all of them with their tokens. Counts elements; `atMost` is in
 * elements, too.
 * @throws Error if any request failed
 */
export async function runTakeSettle(load: PairLoad, count: number): Promise<LoadResult> {
  const { queuePath, authorization, atMost = Number.POSITIVE_INFINITY } = load;
  const options = JSON.stringify({ count, reserve: true, to: 0 });
  const take = wireRequest('POST', `${queuePath}/take`, authorization, options);
  const result = await runPairs({ ...load, atMost: Math.floor(atMost / count) }, (connection, done, fail) => {
    const taken = ({ status, head, body }: WireAnswer): void => {
      const commit = Array.from(body.toString('latin1').matchAll(RECEIPT), ([, id, token]) => ({
        id,
        token,
      }));
      if (status !== 200 || commit.length !== count) {
        fail(refusal(`${head}, ${commit.length} elements`));
        return;
      }
      const settle = wireRequest('POST', `${queuePath}/settle`, authorization, JSON.stringify({ commit }));
      connection.send(
        settle,
        (answer) => {
          const isDone = answer.body.toString('latin1').split('"done"').length === count + 1;
          if (answer.status === 200 && !isDone) fail(refusal(answer.body.toString('latin1')));
          else end(answer, done, fail);
        },
        fail,
      );
    };
    connection.send(take, taken, fail);
  });
  const { requests, perSecond, cpu } = result;
  return {
    requests: requests * count,
    perSecond: perSecond * count,
    cpu: { total: cpu.total / count, mainThread: cpu.mainThread / count },
  };
}

/** Inserts, then pops, so that the queue keeps its depth. Counts pairs. @throws Error if any request failed */
export function runInsertPop(load: PairLoad, body: string): Promise<LoadResult> {
  const { queuePath, authorization } = load;
  const insert = wireRequest('PUT', queuePath, authorization, body);
  const pop = wireRequest('GET', `${queuePath}?to=0`, authorization);
  return runPairs(load, (connection, done, fail) => {
    const inserted = ({ status, head }: WireAnswer): void => {
      if (status !== 200) fail(refusal(head));
      else connection.send(pop, (answer) => end(answer, done, fail), fail);
    };
    connection.send(insert, inserted, fail);
  });
}

async function runPairs(load: PairLoad, pair: Pair): Promise<LoadResult> {
  const { url, pid, connections, seconds, atMost = Number.POSITIVE_INFINITY } = load;
  const opened = await Promise.all(Array.from({ length: connections }, () => WireConnection.open(url)));
  const before = cpuTimeOf(pid);
  const from = performance.now();
  try {
    const until = from + seconds * 1000;
    let started = 0;
    const mayStart = (): boolean => performance.now() < until && started++ < atMost;
    const counts = await Promise.all(opened.map((connection) => repeat(pair, connection, mayStart)));
    const elapsed = (performance.now() - from) / 1000;
    const requests = counts.reduce((sum, count) => sum + count, 0);
    return { requests, perSecond: requests / elapsed, cpu: cpuPer(requests, before, cpuTimeOf(pid)) };
  } finally {
    for (const connection of opened) connection.close();
  }
}

/** Resolves with the number of completed pairs. */
function repeat(pair: Pair, connection: WireConnection, mayStart: () => boolean): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  let pairs = 0;
  const next = (): void => {
    if (mayStart()) pair(connection, done, reject);
    else resolve(pairs);
  };
  const done = (): void => {
    pairs++;
    next();
  };
  next();
  return promise;
}

function end({ status, head }: WireAnswer, done: () => void, fail: (error: Error) => void): void {
  if (status === 200) done();
  else fail(refusal(head));
}

function refusal(head: string): Error {
  return new Error(`A request was answered with: ${head}`);
}
