import type { GroupSizes, QueueSizes } from '../../../engine/old-port.ts';
import type { DeliveryState, GroupName } from '../../../model/element.ts';
import type { Verb } from './task.ts';

const SIZES_BYTES = 25;

/** A group, or null for the whole queue. */
export const SIZES: Verb<GroupName | null, QueueSizes> = {
  name: 'sizes',
  encode: ([group]) => [typeof group === 'string' ? `=${group}` : '*'],
  decode({ text }) {
    const groups = new Map<GroupName, GroupSizes>();
    for (let at = SIZES_BYTES; at < text.length; ) {
      const nameAt = at + 2;
      const sizesAt = nameAt + text.readUInt16BE(at);
      groups.set(text.toString('utf8', nameAt, sizesAt), readSizes(text, sizesAt));
      at = sizesAt + SIZES_BYTES;
    }
    return [{ ...readSizes(text, 0), groups }];
  },
};

function readSizes(text: Buffer, at: number): GroupSizes {
  return {
    ready: text.readUIntBE(at, 6),
    scheduled: text.readUIntBE(at + 6, 6),
    reserved: text.readUIntBE(at + 12, 6),
    nextMatureAt: readMoment(text, at + 18),
  };
}

/** A moment(6) behind whether there is one(1). */
function readMoment(text: Buffer, at: number): number | null {
  return text.readUInt8(at) === 1 ? text.readUIntBE(at + 1, 6) : null;
}

export const DUE: Verb<GroupName, number | null> = {
  name: 'due',
  encode: ([group]) => [group ?? ''],
  decode: ({ text }) => [readMoment(text, 0)],
};

export interface PurgeCall {
  readonly states: readonly DeliveryState[];
  readonly limit: number;
}

const STATE_LETTERS = { ready: 'w', scheduled: 's', reserved: 'r' } as const satisfies Record<
  DeliveryState,
  string
>;

/** One step: how many went, and whether there may be more. */
export const PURGE: Verb<PurgeCall, { readonly gone: number; readonly more: boolean }> = {
  name: 'purge',
  encode: ([call]) => [(call?.states ?? []).map((state) => STATE_LETTERS[state]).join(''), call?.limit ?? 0],
  decode: ({ text }) => [{ gone: text.readUIntBE(0, 6), more: text.readUInt8(6) === 1 }],
};

/** What sweeping one queue found. Moments are by the server's clock; null: never. */
export interface Swept {
  /** Leases ended, and what they held waits again. */
  readonly released: boolean;
  /** Something can be handed out now. */
  readonly ready: boolean;
  readonly more: boolean;
  /** When the next lease ends, or retention begins. */
  readonly nextAt: number | null;
  readonly nextTidyAt: number | null;
}

export const SWEEP: Verb<number, Swept> = {
  name: 'sweep',
  encode: ([windowMs]) => [windowMs ?? 0],
  decode: ({ text }) => [
    {
      released: text.readUInt8(0) === 1,
      ready: text.readUInt8(1) === 1,
      more: text.readUInt8(2) === 1,
      nextAt: text.readUIntBE(3, 6) || null,
      nextTidyAt: text.readUIntBE(9, 6) || null,
    },
  ],
};
