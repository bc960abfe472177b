import type { Arg, Command } from '../client/connection.ts';
import type { Executor, Progress } from '../client/executor.ts';
import type { Master } from '../client/master.ts';
import type { Library } from '../library.ts';
import type { GivenTime } from '../settings.ts';
import { type LibraryReply, readReply } from './reply.ts';

/** One call of the library, but for what is told at each try. */
export interface Flight {
  readonly slot: number;
  /** The keys of the queues, the flight's own first. */
  readonly keys: readonly string[];
  /** 0: may be done again. */
  readonly number: number;
  readonly received: number;
  readonly inserts: boolean;
  readonly writes: boolean;
  /** From the retentions on: see `library/call.lua`. */
  readonly args: readonly Arg[];
  /** Sent behind it, at each try. */
  readonly behind: readonly Command[];
  readonly progress: Progress;
  /** By the monotonic clock. */
  readonly deadlineAt: number;
}

export interface FlightReply extends LibraryReply {
  /** The call was sent more than once: the first one may still be on its way. */
  readonly repeated: boolean;
  /** It waited for replicas, where changes do. */
  readonly writes: boolean;
  /** By when it had to be there, by the monotonic clock. */
  readonly deadlineAt: number;
}

interface FlightParts {
  readonly executor: Executor;
  readonly library: Library;
  readonly givenTime: GivenTime | null;
  /** 8 random bytes, which name this engine object to the server. */
  readonly client: Buffer;
}

const CLIENT_BYTES = 8;
const HEAD_BYTES = CLIENT_BYTES + 6 * 6;

/**
 * Calls of the library. A try that may have arrived is repeated under the same number, so it is done once,
 * and answered again.
 */
export class Flights {
  readonly #parts: FlightParts;

  constructor(parts: FlightParts) {
    this.#parts = parts;
  }

  /** @throws ExecutionError */
  async fly(flight: Flight): Promise<FlightReply> {
    const { slot, keys, inserts, writes, args, behind, progress, deadlineAt } = flight;
    const { executor, library, givenTime } = this.#parts;
    const { reply, master, repeated } = await executor.execute({
      slot,
      name: 'FCALL',
      args: (to, mayBeDone) => [
        inserts && !mayBeDone ? library.run : library.runWhenFull,
        keys.length,
        ...keys,
        this.#head(flight, to),
        ...args,
      ],
      writes,
      repeatable: true,
      followers: behind,
      progress,
      deadlineAt,
    });
    const read = readReply(reply);
    if (givenTime === null) master.noteServerTime(read.now);
    return { ...read, repeated, writes, deadlineAt };
  }

  #head({ number, received }: Flight, master: Master): Buffer {
    const { client, givenTime } = this.#parts;
    const head = Buffer.alloc(HEAD_BYTES);
    head.set(client);
    head.writeUIntBE(number, CLIENT_BYTES, 6);
    head.writeUIntBE(received, CLIENT_BYTES + 6, 6);
    head.writeUIntBE(givenTime?.now() ?? Math.max(0, master.serverTime), CLIENT_BYTES + 12, 6);
    head.writeUIntBE(givenTime?.now() ?? 0, CLIENT_BYTES + 18, 6);
    const { since, excusedUntil } = master.contact;
    head.writeUIntBE(since, CLIENT_BYTES + 24, 6);
    head.writeUIntBE(excusedUntil, CLIENT_BYTES + 30, 6);
    return head;
  }
}
