import assert from 'node:assert/strict';
import { Socket } from 'node:net';
import { describe, it } from 'node:test';
import { HttpRequest } from '../../src/http/request.ts';

function requestOn(socket = new Socket()): HttpRequest {
  return new HttpRequest(socket);
}

const piece = (length: number): Buffer => Buffer.alloc(length, 'x');

describe('The body of a request', () => {
  it('reaches its reader once and complete, whether it arrives before or after it is claimed', () => {
    for (const claimAt of [0, 1, 2, 3]) {
      const request = requestOn();
      const received: (Buffer | null)[] = [];
      const steps = [
        () => request.push(Buffer.from('ab')),
        () => request.push(Buffer.from('cd')),
        () => request.push(null),
      ];
      steps.splice(claimAt, 0, () => {
        request.claim(10, (body) => received.push(body));
        return true;
      });
      for (const step of steps) assert.equal(step(), true);
      assert.deepEqual(received, [Buffer.from('abcd')]);
    }
  });

  it('of one chunk is passed on without a copy, and of none is an empty buffer', () => {
    const one = Buffer.from('abc');
    const request = requestOn();
    const received: (Buffer | null)[] = [];
    request.claim(3, (body) => received.push(body));
    request.push(one);
    request.push(null);
    assert.equal(received[0], one);
    const empty = requestOn();
    empty.claim(0, (body) => received.push(body));
    empty.push(null);
    assert.deepEqual(received[1], Buffer.alloc(0));
  });

  it('over the limit is reported once, as soon as it is known, and discarded', () => {
    const late = requestOn();
    const received: (Buffer | null)[] = [];
    late.claim(3, (body) => received.push(body));
    late.push(piece(3));
    assert.deepEqual(received, []);
    late.push(piece(1));
    late.push(piece(1));
    late.push(null);
    assert.deepEqual(received, [null]);
    const early = requestOn();
    const ofEarly: (Buffer | null)[] = [];
    early.push(piece(4));
    early.push(null);
    early.claim(3, (body) => ofEarly.push(body));
    assert.deepEqual(ofEarly, [null]);
  });

  it('that is not claimed yet pauses the socket after 64 KiB, until it is claimed or discarded', () => {
    for (const giveUp of [false, true]) {
      const socket = new Socket();
      let resumed = 0;
      socket.resume = () => {
        resumed += 1;
        return socket;
      };
      const request = requestOn(socket);
      assert.equal(request.push(piece(65_536)), true);
      assert.equal(request.push(piece(1)), false);
      assert.equal(resumed, 0);
      if (giveUp) request.discard();
      else request.claim(1_000_000, () => {});
      assert.equal(resumed, 1);
      assert.equal(request.push(piece(1_000_000)), true);
    }
  });

  it('that was discarded is read and dropped, and ends the connection after 8 MiB', () => {
    const socket = new Socket();
    const request = requestOn(socket);
    const received: (Buffer | null)[] = [];
    request.claim(10, (body) => received.push(body));
    request.discard();
    for (let mib = 0; mib < 8; mib++) assert.equal(request.push(piece(1_048_576)), true);
    assert.equal(socket.destroyed, false);
    request.push(piece(1));
    assert.equal(socket.destroyed, true);
    request.push(null);
    assert.deepEqual(received, []);
  });
});
