import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { it } from 'node:test';
import { zeroCounts } from '../../src/session/counts.ts';
import { Outbox } from '../../src/stomp/outbox.ts';
import { FakeClock } from '../support/clock.ts';

/** A connection whose kernel never says that it took what was written. */
class StuckSocket {
  readonly destroyed = false;
  readonly errored = null;
  readonly writableLength = 1;
  text = '';

  write(part: string | Buffer): void {
    this.text += part.toString('latin1');
  }
}

it('a connection that is lost during a write gives back its last MESSAGE and all behind it', async () => {
  const socket = new StuckSocket();
  const outbox = new Outbox(
    socket as unknown as Socket,
    {
      clock: new FakeClock(),
      counts: zeroCounts(),
      stallTimeoutMs: 1000,
      onRoom: () => {},
      onStall: () => {},
    },
    true,
  );
  const lost: number[] = [];
  const numbers = Array.from({ length: 40 }, (_, i) => i);
  for (const number of numbers) {
    const cargo = { written: () => assert.fail(), lost: () => lost.push(number) };
    outbox.addMessage('MESSAGE\n\n', Buffer.alloc(1024), cargo);
  }
  await new Promise(setImmediate);
  const underWay = socket.text.split('MESSAGE').length - 1;
  assert.ok(underWay > 1 && underWay < numbers.length, `${underWay} are in the write under way`);
  outbox.abandon();
  assert.deepEqual(
    lost.sort((a, b) => a - b),
    numbers.slice(underWay - 1),
  );
});
