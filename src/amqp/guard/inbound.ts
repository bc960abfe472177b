import { checkAttach } from './checks/attach.ts';
import { checkClose, checkOpen } from './checks/connection.ts';
import { checkDisposition } from './checks/outcome.ts';
import { checkBegin, checkDetach, checkEnd, checkFlow } from './checks/session.ts';
import { checkTransfer } from './checks/transfer.ts';
import { FrameInHand } from './frame-in-hand.ts';
import { descriptorNumber, PERFORMATIVE } from './performatives.ts';
import { decodeError, framingError, hex, illegalState } from './refusal.ts';
import type { ConnectionState } from './state.ts';

/** What becomes of a frame that passed. */
export const VERDICT = {
  /** rhea gets it. */
  pass: 0,
  /** rhea gets `replacement` in its place. */
  replace: 1,
  /** rhea gets it, and nothing behind it before the next turn of the event loop. */
  passAndWait: 2,
  /** rhea does not get it. */
  drop: 3,
} as const;

/** What a frame costs rhea at least, in settled deliveries. */
const FRAME_EFFORT = 8;
const AMQP_FRAME = 0;
/** Size, data offset, type, channel. */
const HEADER_BYTES = 8;

/** Checks the frames that come after the AMQP protocol header, one by one. */
export class Inbound {
  readonly #frame: FrameInHand;

  constructor(state: ConnectionState, messageBytes: number) {
    this.#frame = new FrameInHand(state, messageBytes);
  }

  /** For the verdict `replace`. */
  get replacement(): Buffer {
    return this.#frame.replacement ?? this.#frame.bytes.subarray(this.#frame.start, this.#frame.end);
  }

  /** What the frames have cost rhea, about, since it was set to 0 last; one is 20 to 500 ns. */
  get effort(): number {
    return this.#frame.effort;
  }

  set effort(effort: number) {
    this.#frame.effort = effort;
  }

  /** Lets go of the last frame. */
  leave(): void {
    this.#frame.leave();
  }

  /**
   * Checks one whole frame; may change a byte of it in its place.
   * @throws Breach
   */
  check(bytes: Buffer, start: number, end: number): number {
    const frame = this.#frame;
    const { state } = frame;
    frame.effort += FRAME_EFFORT;
    const offset = 4 * (bytes[start + 4] ?? 0);
    if (offset < HEADER_BYTES || start + offset > end)
      throw framingError(`The data offset ${offset} is outside the frame of ${end - start} bytes.`);
    if (bytes[start + 5] !== AMQP_FRAME) {
      throw framingError(`Frame type ${bytes[start + 5]} is not known. Allowed after the login: 0.`);
    }
    if (state.isPeerClosed) return VERDICT.drop;
    // A heart-beat.
    if (start + offset === end) return VERDICT.pass;
    frame.bytes = bytes;
    frame.start = start;
    frame.end = end;
    frame.replacement = null;
    frame.channelNumber = bytes.readUInt16BE(start + 6);
    const type = descriptorNumber(frame.fields.enter(bytes, start + offset, end));
    if (!state.isPeerOpen && type !== PERFORMATIVE.open)
      throw illegalState(`The first performative is ${hex(type)}. Allowed: open (0x10).`);
    if (state.isCloseSent && type !== PERFORMATIVE.close) return VERDICT.drop;
    return this.#performative(frame, type);
  }

  #performative(frame: FrameInHand, type: number): number {
    switch (type) {
      case PERFORMATIVE.transfer:
        checkTransfer(frame);
        break;
      case PERFORMATIVE.disposition:
        checkDisposition(frame);
        break;
      case PERFORMATIVE.flow:
        checkFlow(frame);
        break;
      case PERFORMATIVE.attach:
        checkAttach(frame);
        break;
      case PERFORMATIVE.detach:
        checkDetach(frame);
        return VERDICT.passAndWait;
      case PERFORMATIVE.begin:
        checkBegin(frame);
        break;
      case PERFORMATIVE.end:
        checkEnd(frame);
        return VERDICT.passAndWait;
      case PERFORMATIVE.open:
        checkOpen(frame);
        break;
      case PERFORMATIVE.close:
        checkClose(frame);
        break;
      default:
        throw decodeError(`Performative ${hex(type)} is not known.`);
    }
    return frame.replacement === null ? VERDICT.pass : VERDICT.replace;
  }
}
