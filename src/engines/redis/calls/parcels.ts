import type { Arg } from '../client/connection.ts';
import type { Verb } from './task.ts';

/** Elements on their way to a queue in another slot: see `library/parcels.lua`. */
export interface Parcel {
  readonly id: Buffer;
  /** The text of the queue that it is for. */
  readonly to: string;
  readonly packed: Buffer;
}

export interface AcceptCall {
  readonly parcel: Parcel;
  readonly windowMs: number;
}

/** Answers whether the queue took it in, now or before. */
export const ACCEPT: Verb<AcceptCall, boolean> = {
  name: 'accept',
  encode([call]): readonly Arg[] {
    return call === undefined ? [] : [call.parcel.id, call.parcel.packed, call.windowMs];
  },
  decode: ({ text }) => [text.length === 0],
};

export const KEEP = parcelVerb('keep');
export const DELIVERED = parcelVerb('delivered');
export const STRUCK = parcelVerb('struck');

function parcelVerb(name: string): Verb<Buffer, undefined> {
  return {
    name,
    encode: (ids) => [Buffer.concat(ids)],
    decode: (_answer, calls) => calls.map(() => undefined),
  };
}

/**
 * Settles the client's last answer. Not counted where the queue has been idle; counted, so that an earlier call which
 * is still on its way comes to nothing, where an outcome is unknown.
 */
export const BYE: Verb<undefined, undefined> = {
  name: 'bye',
  encode: () => [],
  decode: () => [undefined],
};
