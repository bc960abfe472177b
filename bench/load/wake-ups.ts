import { setTimeout as delay } from 'node:timers/promises';
import { type WireAnswer, WireConnection, wireRequest } from './wire.ts';

/** A pause before every sample, so that each meets a server at rest. */
export const REST_MS = 2;

export interface WakeUps {
  /** Milliseconds from the insert's answer to the get's; one that is answered before the insert counts as 0. */
  readonly wakes: number[];
  /** Milliseconds from sending the insert to the get's answer. */
  readonly whole: number[];
}

export interface WakeUpLoad {
  /** Where the get waits. */
  readonly waitingUrl: string;
  /** Where the insert goes. */
  readonly insertingUrl: string;
  readonly path: string;
  readonly authorization: string;
  readonly body: string;
}

/** Two connections: on one a get waits, on the other an insert comes. */
export class WakeUpPair {
  readonly #waiting: WireConnection;
  readonly #inserting: WireConnection;
  readonly #get: string;
  readonly #put: string;

  private constructor(waiting: WireConnection, inserting: WireConnection, load: WakeUpLoad) {
    this.#waiting = waiting;
    this.#inserting = inserting;
    this.#get = wireRequest('GET', `${load.path}?to=10000`, load.authorization);
    this.#put = wireRequest('PUT', load.path, load.authorization, load.body);
  }

  static async open(load: WakeUpLoad): Promise<WakeUpPair> {
    const [waiting, inserting] = await Promise.all([
      WireConnection.open(load.waitingUrl),
      WireConnection.open(load.insertingUrl),
    ]);
    return new WakeUpPair(waiting, inserting, load);
  }

  /** @throws Error where any request failed */
  async run(samples: number): Promise<WakeUps> {
    const result: WakeUps = { wakes: [], whole: [] };
    for (let sample = 0; sample < samples; sample++) {
      const got = answeredAt(this.#waiting, this.#get);
      await delay(REST_MS);
      const sentAt = performance.now();
      const insertedAt = await answeredAt(this.#inserting, this.#put);
      const gotAt = await got;
      result.wakes.push(Math.max(0, gotAt - insertedAt));
      result.whole.push(gotAt - sentAt);
    }
    return result;
  }

  close(): void {
    this.#waiting.close();
    this.#inserting.close();
  }
}

/** The moment is taken in the callback: a promise would add its own turn of the loop. */
export function answeredAt(connection: WireConnection, request: string): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const onAnswer = ({ status, head }: WireAnswer): void => {
    const now = performance.now();
    if (status === 200) resolve(now);
    else reject(new Error(`A request was answered with: ${head}`));
  };
  connection.send(request, onAnswer, reject);
  return promise;
}
