import { setTimeout as delay } from 'node:timers/promises';
import { type WireAnswer, WireConnection, wireRequest } from './wire.ts';

/** A pause before every sample, so that each finds an idle server. */
export const REST_MS = 2;

export interface WakeUps {
  /** Times from the insert's answer to the get's answer, ms; 0 if the get is answered first. */
  readonly wakes: number[];
  /** Times from sending the insert to the get's answer, ms. */
  readonly whole: number[];
}

export interface WakeUpLoad {
  /** The server of the blocked get. */
  readonly waitingUrl: string;
  /** The server of the insert. */
  readonly insertingUrl: string;
  readonly path: string;
  readonly authorization: string;
  readonly body: string;
}

/** Two connections: one for the blocked get, one for the insert. */
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

  /** @throws Error if any request failed */
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

/** Takes the time in the callback, because a promise would add a turn of the event loop. */
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
