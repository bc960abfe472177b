import assert from 'node:assert/strict';
import { codeOf, conditionOf, KIND, RawClient, type ServerFrame } from '../amqp/raw-client.ts';
import { TURNS_TO_ANSWER, turns } from './mutations.ts';

/** Time from the client's end of input to the server's close; reported, not tested. */
export const ends = { all: 0, late: 0, longestMs: 0 };
/** Above this, an end counts as late. A busy machine has a few. */
export const LATE_MS = 100;

/** Whether these bytes may cause an answer on which the next frame depends. */
function isAnswered(bytes: Buffer): boolean {
  return [0x12, 0x13, 0x41, 0x43].some((code) => bytes.includes(Buffer.from([0, 0x53, code])));
}

/**
 * Sends these writes as one client, and reads until the server has closed. Returns and checks the frames of the server,
 * which must follow the rules of AMQP.
 */
export async function talk(port: number, writes: readonly Buffer[]): Promise<ServerFrame[]> {
  const client = await RawClient.open(port);
  for (const bytes of writes) {
    client.write(bytes);
    await turns(isAnswered(bytes) ? TURNS_TO_ANSWER : 1);
  }
  client.socket.end();
  const endedAt = performance.now();
  const frames = await client.readToEnd();
  count(performance.now() - endedAt);
  client.socket.destroy();
  check(frames);
  return frames;
}

function count(ms: number): void {
  ends.all += 1;
  if (ms > LATE_MS) ends.late += 1;
  ends.longestMs = Math.max(ends.longestMs, ms);
}

function check(frames: readonly ServerFrame[]): void {
  const kinds = frames.map(({ kind }) => kind);
  const close = frames.find(({ kind }) => kind === KIND.close);
  if (close !== undefined) {
    assert.equal(kinds.indexOf(KIND.close), frames.length - 1, 'a close is the last frame');
    assert.ok(kinds.includes(KIND.open), 'a close follows an open');
    assert.notEqual(conditionOf(close.bytes), 'amqp:internal-error');
  }
  const outcome = frames.find(({ kind }) => kind === KIND.outcome);
  if (outcome !== undefined && codeOf(outcome.bytes) !== 0) {
    assert.equal(
      kinds.indexOf(KIND.outcome),
      frames.length - 1,
      'the outcome of a failed login is the last frame',
    );
  }
  if (kinds.includes('AMQP')) assert.equal(codeOf(outcome?.bytes ?? Buffer.alloc(0)), 0);
}

/** Collects everything written to the console. */
export class ConsoleWatch {
  readonly written: string[] = [];
  readonly #before = { error: console.error, warn: console.warn, log: console.log, trace: console.trace };

  constructor() {
    const keep = (...what: unknown[]): void => {
      this.written.push(what.map(String).join(' ').slice(0, 200));
    };
    Object.assign(console, { error: keep, warn: keep, log: keep, trace: keep });
  }

  stop(): void {
    Object.assign(console, this.#before);
  }
}
