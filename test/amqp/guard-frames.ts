import assert from 'node:assert/strict';
import { it } from 'node:test';
import { Inbound, VERDICT } from '../../src/amqp/guard/inbound.ts';
import { Outbound } from '../../src/amqp/guard/outbound.ts';
import { Breach } from '../../src/amqp/guard/refusal.ts';
import { ConnectionState } from '../../src/amqp/guard/state.ts';
import type { WriteObserver } from '../../src/session/outstanding.ts';
import {
  AMQP,
  attachReceiver,
  begin,
  FALSE,
  frame,
  type Performative,
  str,
  TRUE,
  uint,
  ushort,
  type Wire,
} from './guard-wire.ts';

/** The frame checks alone, with a peer's frames on one side and rhea's on the other. */
export class FrameChecks {
  readonly state = new ConnectionState();
  readonly #inbound: Inbound;
  readonly #outbound = new Outbound(this.state);

  constructor(messageBytes = 65_536) {
    this.#inbound = new Inbound(this.state, messageBytes);
    this.#outbound.observe(AMQP);
  }

  /** What the peer's frames cost. */
  get effort(): number {
    return this.#inbound.effort;
  }

  /** What rhea gets of a peer's frame; null: nothing. @throws Breach */
  hear(bytes: Buffer): Buffer | null {
    // Not at the beginning of its buffer, and not to its end.
    const chunk = Buffer.concat([Buffer.alloc(3, 0xee), bytes, Buffer.alloc(5, 0xee)]);
    return this.hearIn(chunk, 3, 3 + bytes.length);
  }

  /** As `hear`, of a frame somewhere in what was read. */
  hearIn(chunk: Buffer, start: number, end: number): Buffer | null {
    const verdict = this.#inbound.check(chunk, start, end);
    if (verdict === VERDICT.drop) return null;
    return verdict === VERDICT.replace ? this.#inbound.replacement : chunk.subarray(start, end);
  }

  /** The condition for which a frame ends the connection. */
  refusal(bytes: Buffer): string {
    try {
      this.hear(bytes);
    } catch (error) {
      assert.ok(error instanceof Breach, String(error));
      return error.condition;
    }
    return 'passed';
  }

  /** As if rhea wrote this. Answers what the peer gets. */
  say(bytes: Buffer): Buffer {
    return this.#outbound.observe(bytes);
  }

  /** Puts cargo on a delivery. Answers what becomes of it: who rides on the frame that was said last. */
  carry(channel: number, deliveryId: number): () => boolean {
    const cargo: WriteObserver = { written: () => {}, lost: () => {} };
    this.#outbound.carry(channel, deliveryId, cargo);
    return () => this.#outbound.cargo === cargo;
  }

  /** As if rhea answered a `begin` on that channel with one on its own. */
  sayBegin(channel: number, ownChannel = channel, window = 2048): void {
    const fields = [ushort(channel), uint(0), uint(window), uint(2048)];
    this.say(frame('begin', fields, { channel: ownChannel }));
  }

  /** As if rhea answered an `attach`. @param name with its prefix */
  sayAttach(name: string, ownHandle: number, isPeerSender: boolean, ownChannel = 0): Buffer {
    const fields = [str(name), uint(ownHandle), isPeerSender ? TRUE : FALSE];
    return this.say(frame('attach', fields, { channel: ownChannel }));
  }

  /** As if rhea gave credit. */
  sayCredit(ownHandle: number, credit: number, window = 2048, ownChannel = 0): void {
    const fields = [uint(0), uint(window), uint(0), uint(2048), uint(ownHandle), uint(0), uint(credit)];
    this.say(frame('flow', fields, { channel: ownChannel }));
  }

  /** Has a session on channel 0. */
  begun(): this {
    this.hear(frame('open', [str('client')]));
    this.hear(begin());
    this.sayBegin(0);
    return this;
  }
}

/** How a connection with a session answers frames that have these fields. */
export function answers(
  name: Performative,
  cases: Readonly<Record<string, [(Wire | undefined)[], string]>>,
): void {
  for (const [what, [fields, expected]] of Object.entries(cases)) {
    it(`answers ${what} with ${expected}`, () => {
      const checks = new FrameChecks();
      if (name !== 'open') checks.begun();
      if (!['open', 'begin', 'attach'].includes(name)) checks.hear(attachReceiver());
      assert.equal(checks.refusal(frame(name, fields)), expected);
    });
  }
}
