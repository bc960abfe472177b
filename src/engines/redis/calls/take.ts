import type { BrowsePage, TakeResult } from '../../../engine/old-port.ts';
import type {
  Delivery,
  DeliveryState,
  ElementContent,
  ElementId,
  GroupName,
} from '../../../model/element.ts';
import { QuaysideError } from '../../../model/errors.ts';
import { LeaseTokens, TOKEN_BYTES } from '../../../model/lease-token.ts';
import { OWNER_BYTES } from '../../../model/owner.ts';
import { decodeContent } from '../content.ts';
import { elementId, tokenText } from '../ids.ts';
import type { Answer, Verb } from './task.ts';

export interface TakeCall {
  readonly group: GroupName;
  readonly count: number;
  readonly leaseMs: number | null;
  readonly owner: number;
}

/** Bytes before the content in a stored element: see `library/values.lua`. */
export const ELEMENT_HEAD = 10;
const TAKE_HEAD = 22;
/** The members that the deliveries had: `w`, lane(2), maturity(6), seq(6), tries and touched(4). */
const TAKE_STEP = 19;
const RESERVED = 0x52;

const tokens = new LeaseTokens();

/** The first token(16) and the owner(6) of reservations. */
function holderOf(owner: number): Buffer {
  const holder = Buffer.allocUnsafe(TOKEN_BYTES + OWNER_BYTES);
  holder.set(tokens.bytes());
  holder.writeUIntBE(owner, TOKEN_BYTES, OWNER_BYTES);
  return holder;
}

/** Calls of the same group, lease and owner, one after the other: the first gets the first. */
export const TAKE: Verb<TakeCall, TakeResult> = {
  name: 'take',
  encode(calls) {
    const [first] = calls;
    const count = calls.reduce((sum, call) => sum + call.count, 0);
    const leaseMs = first?.leaseMs ?? 0;
    return [first?.group ?? '', count, leaseMs, leaseMs === 0 ? '' : holderOf(first?.owner ?? 0)];
  },
  decode(answer, calls) {
    const { deliveries, goneFrom } = readTaken(answer, calls[0]?.group ?? '');
    const due = goneFrom ?? (answer.text.readUInt8(15) === 1 ? answer.text.readUIntBE(16, 6) : null);
    let next = 0;
    return calls.map(({ count }) => {
      const own = deliveries.slice(next, next + count);
      next += own.length;
      return { deliveries: own, nextDueAt: own.length < count ? due : null };
    });
  },
};

/** A delivery of a take whose content cannot be decoded. */
export interface Undecodable {
  readonly id: ElementId;
  /** The member of the sorted set that it had. */
  readonly member: Buffer;
  readonly cause: unknown;
}

const POSTPONE_MS = 60_000;

/** Why a take failed that contains elements which this version cannot decode. */
export class UndecodableElements extends QuaysideError {
  readonly elements: readonly Undecodable[];

  constructor(first: Undecodable, elements: readonly Undecodable[]) {
    const message = `The content of element ${first.id} cannot be decoded; it was returned to its queue and is ready again in ${POSTPONE_MS / 1_000} s.`;
    super('storage-unavailable', message, { retryAfterMs: 1_000, cause: first.cause });
    this.elements = elements;
  }
}

/** Delays waiting deliveries, so that those behind them can be taken. */
export const POSTPONE: Verb<readonly Buffer[], undefined> = {
  name: 'postpone',
  encode: (calls) => [POSTPONE_MS, Buffer.concat(calls.flat())],
  decode: (_, calls) => calls.map(() => undefined),
};

interface Taken {
  readonly deliveries: Delivery[];
  /**
   * The maturity of the first that was gone when the answer was given again; null: none was. It may wait again, and
   * what waited behind it was perhaps not looked up: whoever has too few asks again.
   */
  readonly goneFrom: number | null;
}

/** See `library/repeats.lua`. @throws UndecodableElements */
function readTaken({ tag, text, elements }: Answer, group: GroupName): Taken {
  const reserved = text[0] === RESERVED;
  const until = text.readUIntBE(3, 6);
  const token = text.subarray(text.length - TOKEN_BYTES);
  const deliveries: Delivery[] = [];
  const undecodable: Undecodable[] = [];
  let goneFrom: number | null = null;
  for (const [i, value] of elements.entries()) {
    const at = TAKE_HEAD + TAKE_STEP * i + 3;
    const matureAt = text.readUIntBE(at, 6);
    if (value === null) {
      goneFrom ??= matureAt;
      continue;
    }
    const id = elementId(tag, text.readUIntBE(at + 6, 6));
    try {
      deliveries.push({
        id,
        group,
        tries: text.readUInt32BE(at + 12) >>> 1,
        matureAt,
        lease: reserved ? { token: tokenText(token, i), until } : null,
        ...decodeContent(value, ELEMENT_HEAD),
      });
    } catch (cause) {
      undecodable.push({ id, member: text.subarray(at - 3, at - 3 + TAKE_STEP), cause });
    }
  }
  const [first] = undecodable;
  if (first !== undefined) throw new UndecodableElements(first, undecodable);
  return { deliveries, goneFrom };
}

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

/** Null: a listing continues behind what cannot be decoded; a take logs it. */
function decodable(value: Buffer): ElementContent | null {
  try {
    return decodeContent(value, ELEMENT_HEAD);
  } catch {
    return null;
  }
}

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
    const deliveries: Delivery[] = [];
    for (const [i, value] of elements.entries()) {
      const at = 1 + step * i;
      const shownAt = at + memberLength;
      last = text.toString('base64url', at, shownAt);
      if (value === null) continue;
      const content = decodable(value);
      if (content === null) continue;
      deliveries.push({
        id: elementId(tag, text.readUIntBE(at + 9, 6)),
        group: call?.group ?? '',
        matureAt: text.readUIntBE(shownAt, 6),
        tries: text.readUInt32BE(shownAt + 6),
        lease: reserved ? { token: '', until: text.readUIntBE(at + 3, 6) } : null,
        ...content,
      });
    }
    return [{ deliveries, next: text[0] === MORE ? last : null }];
  },
};
