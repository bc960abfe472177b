import type { OnRepeat, ScanPage, TakeResult } from '../../../engine/storage.ts';
import { type Delivery, type ElementContent, type ElementId, PLAIN_GROUP } from '../../../model/element.ts';
import { isSameContent } from '../../../model/fingerprint.ts';
import type { Arg } from '../client/connection.ts';
import { decodeContent, encodeContent } from '../content.ts';
import type { Verb } from './verb.ts';

/** The verbs of lists: see `library/list.lua`. */

export interface ListItem {
  readonly id: ElementId;
  /** The Redis key of its dedup key. */
  readonly key: string | null;
  readonly fingerprint: string;
  readonly item: Buffer;
}

export interface PushCall {
  readonly items: readonly ListItem[];
  readonly windowMs: number;
  readonly onRepeat: OnRepeat | null;
}

export const LPUSH: Verb<PushCall, ElementId[]> = {
  name: 'lpush',
  keys: (calls) => calls.flatMap(({ items }) => items.flatMap(({ key }) => key ?? [])),
  encode(calls) {
    const items = calls.flatMap((call) => call.items);
    const sizes = calls.map((call) => call.items.length).join(',');
    const args: Arg[] = [calls[0]?.windowMs ?? 0, items.length, sizes];
    for (const { id, key, fingerprint, item } of items)
      args.push(key === null ? '' : 1, id + fingerprint, item);
    return args;
  },
  decode({ elements }, calls) {
    let next = 0;
    return calls.map(({ items, onRepeat }) => {
      let isMismatched = false;
      const ids = items.map(({ id, fingerprint }, index) => {
        const kept = elements[next++]?.toString('latin1') ?? '';
        const first = kept.slice(0, ID_LENGTH);
        if (kept === '') return id;
        const isSame = isSameContent(kept.slice(ID_LENGTH), fingerprint);
        if (isSame && first === id) return id;
        isMismatched ||= !isSame;
        onRepeat?.(index, isSame);
        return first;
      });
      return isMismatched ? [] : ids;
    });
  },
};

export interface PopCall {
  readonly count: number;
  readonly maxBytes: number | null;
}

const CUT = 0x31;

/** Pops of several calls are one: the first call gets the first elements. Those with `maxBytes` are alone. */
export const RPOP: Verb<PopCall, TakeResult> = {
  name: 'rpop',
  encode: (calls) => [calls.reduce((sum, { count }) => sum + count, 0), calls[0]?.maxBytes ?? ''],
  decode({ text, elements }, calls) {
    const popped = elements.map(decodeItem);
    const nextDueAt = text.length === 0 ? null : text.readUIntBE(0, 6);
    return calls.map(({ count }) => {
      const deliveries = popped.splice(0, count);
      return {
        deliveries,
        nextDueAt: deliveries.length < count ? nextDueAt : null,
        isCut: text[6] === CUT,
      };
    });
  },
};

export const RPUSH: Verb<readonly Buffer[], undefined> = {
  name: 'rpush',
  encode: ([items]) => [items?.length ?? 0, ...(items ?? [])],
  decode: () => [undefined],
};

export interface RangeCall {
  readonly skip: number;
  readonly limit: number;
  readonly bodies: boolean;
}

export const LRANGE: Verb<RangeCall, ScanPage> = {
  name: 'lrange',
  encode: ([call]) => [call?.skip ?? 0, call?.limit ?? 0],
  decode({ text, elements }, [call]) {
    const skip = call?.skip ?? 0;
    const deliveries = elements.map((item, index) => {
      const delivery = decodeItem(item);
      return {
        ...delivery,
        body: call?.bodies === true ? delivery.body : NO_BODY,
        bytes: delivery.body.byteLength,
        state: 'ready' as const,
        insertedAt: delivery.matureAt,
        expiresAt: null,
        reason: null,
        holder: null,
        cursor: String(skip + index + 1),
      };
    });
    const isLast = text.toString() === '0';
    return [{ deliveries, next: isLast ? null : String(skip + deliveries.length) }];
  },
};

export const LLEN: Verb<undefined, { readonly count: number; readonly nextMatureAt: number | null }> = {
  name: 'llen',
  encode: () => [],
  decode: ({ text }) => [
    { count: text.readUIntBE(0, 6), nextMatureAt: text.length === 6 ? null : text.readUIntBE(6, 6) },
  ],
};

/** Returns how many elements it had. */
export const DROP: Verb<undefined, number> = {
  name: 'drop',
  encode: () => [],
  decode: ({ text }) => [text.readUIntBE(0, 6)],
};

const ITEM_HEAD = 32;
const ID_LENGTH = 22;
const NO_BODY = Buffer.alloc(0);

export function encodeItem(fields: ElementContent & Pick<Delivery, 'id' | 'matureAt' | 'tries'>): Buffer {
  const head = Buffer.alloc(ITEM_HEAD);
  head.writeUIntBE(fields.matureAt, 0, 6);
  head.writeUInt32BE(fields.tries, 6);
  head.write(fields.id, 10, ID_LENGTH, 'latin1');
  return Buffer.concat([head, encodeContent(fields)]);
}

function decodeItem(item: Buffer | null): Delivery {
  if (item === null) throw new Error('a list holds something else than items');
  return {
    id: item.toString('latin1', 10, ITEM_HEAD),
    group: PLAIN_GROUP,
    matureAt: item.readUIntBE(0, 6),
    tries: item.readUInt32BE(6),
    lease: null,
    ...decodeContent(item, ITEM_HEAD),
  };
}
