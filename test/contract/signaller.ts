import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { JsonValue } from '../../src/engine/definitions.ts';
import type { Signaller } from '../../src/engine/signaller.ts';
import type { EngineUnderTest } from '../engines.ts';
import { Fixture } from './fixture.ts';

/** Every promise that the comments of `src/engine/signaller.ts` make, on a healthy network. */
export function signallerContract(name: string, open: EngineUnderTest['open']): void {
  describe(`Signaller port: ${name}`, () => {
    const on = new Fixture(open);
    const signaller = (): Signaller => on.opened.engine.signaller;

    /** Subscribes, and returns a promise of the first `count` messages. */
    function collect(topic: string, count: number): { messages: Promise<JsonValue[]>; stop: () => void } {
      const received: JsonValue[] = [];
      const { promise, resolve } = Promise.withResolvers<JsonValue[]>();
      const stop = signaller().subscribe(topic, (message) => {
        received.push(message);
        if (received.length === count) resolve(received);
      });
      return { messages: promise, stop };
    }

    it('delivers each message once to every subscriber of its topic, also on the publishing node', async () => {
      const subscriptions = [collect('topic', 3), collect('topic', 3)];
      for (const message of ['one', { two: 2 }, 'three']) signaller().publish('topic', message);
      for (const { messages, stop } of subscriptions) {
        assert.deepEqual(await messages, ['one', { two: 2 }, 'three']);
        stop();
      }
    });

    it('delivers a message only to its own topic, whatever characters the names have', async () => {
      const names = ['a', 'a.b', 'a*', '*', 'queue:{x}', "it's"];
      const subscriptions = names.map((topic) => collect(topic, 1));
      for (const topic of names) signaller().publish(topic, `to ${topic}`);
      for (const [index, { messages, stop }] of subscriptions.entries()) {
        assert.deepEqual(await messages, [`to ${names[index]}`]);
        stop();
      }
    });

    it('delivers nothing to an ended subscription, but still delivers to the others', async () => {
      const ended = collect('ending', 1);
      let count = 0;
      void ended.messages.then(() => count++);
      ended.stop();
      ended.stop();
      const other = collect('ending', 1);
      signaller().publish('ending', 'x');
      assert.deepEqual(await other.messages, ['x']);
      assert.equal(count, 0);
      other.stop();
    });

    it('delivers to the other subscribers although a listener throws', async () => {
      const stop = signaller().subscribe('throwing', () => {
        throw new Error('thrown by the listener');
      });
      const other = collect('throwing', 1);
      signaller().publish('throwing', 'x');
      assert.deepEqual(await other.messages, ['x']);
      stop();
      other.stop();
    });

    it('accepts a message without subscribers', () => {
      signaller().publish('silence', 'x');
    });

    it('has a type of lowercase letters', () => {
      assert.match(signaller().type, /^[a-z]+$/);
    });
  });
}
