import type { BrowsePage, TakeResult } from '../../../engine/storage.ts';
import type { Delivery, DeliveryState, GroupName } from '../../../model/element.ts';
import { decodeContent } from '../content.ts';
import { elementId, tokenText } from '../ids.ts';
import type { Answer, Verb } from './task.ts';

export interface TakeCall {
  readonly group: GroupName;
  readonly count: number;
  readonly leaseMs: number | null;
}

/** Bytes before the content in a stored element: see `library/values.lua`. */
export const ELEMENT_HEAD = 10;
const TAKE_HEAD = 22;
/** The members that the deliveries had: `w`, lane(2), maturity(6), seq(6), tries and touched(4). */
const TAKE_STEP = 19;
const RESERVED = 0x52;

/** Calls of the same group and lease, one after the other: the first gets the first. */
export const TAKE: Verb<TakeCall, TakeResult> = {
  name: 'take',
  encode(calls) {
    const [first] = calls;
    const count = calls.reduce((sum, call) => sum + call.count, 0);
    return [first?.group ?? '', count, first?.leaseMs ?? 0];
  },
  decode(answer, calls) {
    const deliveries = readTaken(answer, calls[0]?.group ?? '');
    const due = answer.text.readUInt8(15) === 1 ? answer.text.readUIntBE(16, 6) : null;
    let next = 0;
    return calls.map(({ count }) => {
      const own = deliveries.slice(next, next + count);
      next += own.length;
      return { deliveries: own, nextDueAt: own.length < count ? due : null };
    });
  },
};

/** See `library/repeats.lua`. */
function readTaken({ tag, text, elements }: Answer, group: GroupName): Delivery[] {
  const reserved = text[0] === RESERVED;
  const until = text.readUIntBE(3, 6);
  const token = text.readUIntBE(9, 6);
  return elements.map((value, i) => {
    const at = TAKE_HEAD + TAKE_STEP * i + 3;
    const { body, contentType, contentEncoding, headers } = decodeContent(value ?? DAMAGED, ELEMENT_HEAD);
    return {
      id: elementId(tag, text.readUIntBE(at + 6, 6)),
      group,
      tries: text.readUInt32BE(at + 12) >>> 1,
      matureAt: text.readUIntBE(at, 6),
      lease: reserved ? { token: tokenText(token + i), until } : null,
      body,
      contentType,
      contentEncoding,
      headers,
    };
  });
}

/** Stands in for an element whose field is not there, which no verb of ours leaves behind. */
const DAMAGED = Buffer.concat([Buffer.alloc(ELEMENT_HEAD), Buffer.from('P'), Buffer.alloc(6)]);

export interface BrowseCall {
  readonly group: GroupName;
  readonly state: DeliveryState;
  readonly after: string | null;
  readonly limit: number;
}

const STATE_LETTERS = { ready: 'w', scheduled: 's', reserved: 'r' } as const satisfies Record<
  DeliveryState,
  string
>;
const MORE = 0x2b;

/** One page: see `library/look.lua`. */
export const BROWSE: Verb<BrowseCall, BrowsePage> = {
  name: 'browse',
  encode([call]) {
    const { group = '', state = 'ready', after = null, limit = 1 } = call ?? {};
    return [group, STATE_LETTERS[state], Buffer.from(after ?? '', 'base64url'), limit];
  },
  decode({ tag, text, elements }, [call]) {
    const reserved = call?.state === 'reserved';
    const memberLength = reserved ? 15 : 19;
    const step = memberLength + ELEMENT_HEAD;
    let last = '';
    const deliveries = elements.map((value, i): Delivery => {
      const at = 1 + step * i;
      const shownAt = at + memberLength;
      last = text.toString('base64url', at, shownAt);
      return {
        id: elementId(tag, text.readUIntBE(at + 9, 6)),
        group: call?.group ?? '',
        matureAt: text.readUIntBE(shownAt, 6),
        tries: text.readUInt32BE(shownAt + 6),
        lease: reserved ? { token: '', until: text.readUIntBE(at + 3, 6) } : null,
        ...decodeContent(value ?? DAMAGED, ELEMENT_HEAD),
      };
    });
    return [{ deliveries, next: text[0] === MORE ? last : null }];
  },
};
