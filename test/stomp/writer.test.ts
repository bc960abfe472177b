import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { it } from 'node:test';
import { zeroCounts } from '../../src/session/server.ts';
import { StompWriter } from '../../src/stomp/session.ts';
import { FakeClock } from '../support/clock.ts';

/** A connection whose kernel never reports that it took the written data. */
class StuckSocket {
  readonly destroyed = false;
  readonly errored = null;
  readonly writableLength = 1;
  text = '';

  write(part: string | Buffer): void {
    this.text += part.toString('latin1');
  }
}

it('a connection that is lost during a write reports the last MESSAGE of that write and all later ones as lost', async () => {
  const socket = new StuckSocket();
  const writer = new StompWriter(
    socket as unknown as Socket,
    { clock: new FakeClock(), counts: zeroCounts(), onCapacity: () => {} },
    true,
  );
  const lost: number[] = [];
  const seen: number[] = [];
  const numbers = Array.from({ length: 40 }, (_, i) => i);
  for (const number of numbers) {
    const observer = { written: () => seen.push(number), lost: () => lost.push(number) };
    writer.addMessage('MESSAGE\n\n', Buffer.alloc(1024), observer);
  }
  await new Promise(setImmediate);
  const pending = socket.text.split('MESSAGE').length - 1;
  assert.ok(pending > 1 && pending < numbers.length, `${pending} are in the pending write`);
  writer.close();
  assert.deepEqual(
    lost.sort((a, b) => a - b),
    numbers.slice(pending - 1),
  );
  // The client may have received the earlier ones: a reserved element of them counts a failed try.
  assert.deepEqual(seen, numbers.slice(0, pending - 1));
});
