import {
  MAX_REASON_BYTES,
  SETTLED,
  type SettleItem,
  type SettleOutcome,
  type SettleResult,
} from '../../../engine/storage.ts';
import type { DeliveryState } from '../../../model/element.ts';
import { QuaysideError } from '../../../model/errors.ts';
import { TOKEN_BYTES } from '../../../model/lease-token.ts';
import type { QueueKey } from '../../../model/names.ts';
import { OWNER_BYTES, ownerNumber } from '../../../model/owner.ts';
import type { Arg } from '../client/connection.ts';
import { ID_BYTES, writeId, writeToken } from '../encoding.ts';
import { queueText } from '../keys.ts';
import { noNumberLeft } from '../policies.ts';
import { encodeElement, groupsText } from './insert.ts';
import type { Verb } from './verb.ts';

/** Items of one queue. */
interface SettleCall {
  readonly items: readonly SettleItem[];
  readonly windowMs: number;
  /** By the policy of the queue's namespace; 0: none. */
  readonly retentionMs: (queue: QueueKey) => number;
}

/** The outcomes by the digits that `library/queue.lua` gives them. */
const OUTCOMES: readonly SettleOutcome[] = [
  'done',
  'dead-lettered',
  'not-found',
  'not-reserved',
  'lease-lost',
  'reserved',
  'token-required',
];
const NO_ROOM = 0x21;

const ITEM_BYTES = ID_BYTES + 1 + TOKEN_BYTES + OWNER_BYTES + 2 + 1 + 6;
const [HAS_TOKEN, FROM_WAITING, COUNTS_TRY, IS_MOMENT, HAS_REASON, IS_DEFAULT] = [1, 2, 4, 8, 16, 32];
const ACTIONS = { finish: 'f', release: 'r', extend: 'e', 'dead-letter': 'd', move: 'm' } as const;
const WITH_INSERTS = 't';

/** Settles of one batch, in their order: see `library/settle.lua`. */
export const SETTLE: Verb<SettleCall, SettleResult[]> = {
  name: 'settle',
  encode(calls) {
    const count = calls.reduce((sum, { items }) => sum + items.length, 0);
    const target = Buffer.allocUnsafe(count * ITEM_BYTES);
    const groups = new Map<string, number>();
    const details: Arg[] = [];
    let endsLeases = false;
    let at = 0;
    for (const call of calls) {
      for (const item of call.items) {
        endsLeases ||= item.from === 'waiting' || item.action.kind !== 'finish';
        writeItem(item, groups, target, at);
        writeDetails(item, call, details);
        at += ITEM_BYTES;
      }
    }
    const names = [...groups.keys()].map((group) => `${group},`).join('');
    return [names, target, endsLeases ? '1' : '', ...details];
  },
  decode({ text }, calls) {
    let index = 0;
    let momentAt = calls.reduce((sum, { items }) => sum + items.length, 0);
    return calls.map(({ items }) => {
      let isRejected = false;
      let isChanged = false;
      const results = items.map(({ action }): SettleResult => {
        const digit = text[index++] ?? 0;
        const outcome = OUTCOMES[digit - 0x30] ?? 'not-found';
        isRejected ||= digit === NO_ROOM;
        isChanged ||= outcome === 'done' || outcome === 'dead-lettered';
        if (outcome !== 'done' || action.kind !== 'extend') return SETTLED[outcome];
        momentAt += 6;
        return { outcome, until: text.readUIntBE(momentAt - 6, 6) };
      });
      if (!isRejected) return results;
      if (!isChanged) return noNumberLeft();
      const message = 'Some were settled; the groups of others do not fit into their queues.';
      return new QuaysideError('outcome-unknown', message);
    });
  },
};

function writeItem(item: SettleItem, groups: Map<string, number>, target: Buffer, from: number): void {
  const { action, group, token } = item;
  let number = 0;
  if (group !== null) {
    number = groups.get(group) ?? groups.size + 1;
    groups.set(group, number);
  }
  let flags = token === null ? 0 : HAS_TOKEN;
  let value = 0;
  if (item.from === 'waiting') flags |= FROM_WAITING;
  if (action.kind === 'extend') value = action.leaseMs;
  if (action.kind === 'release') {
    if (action.dueAt == null) value = action.delayMs;
    else [value, flags] = [action.dueAt, flags | IS_MOMENT];
    if (action.isDefaultDelay) flags |= IS_DEFAULT;
  }
  if (action.kind === 'release' || action.kind === 'dead-letter') {
    if (action.countTry) flags |= COUNTS_TRY;
    if (action.reason != null) flags |= HAS_REASON;
  }
  const hasInserts = action.kind === 'finish' && action.inserts !== undefined;
  let at = from;
  writeId(item.id, target, at);
  at += ID_BYTES;
  target[at] = flags;
  writeToken(token, target, at + 1);
  at += 1 + TOKEN_BYTES;
  target.writeUIntBE(token === null ? ownerNumber(item.owner) : 0, at, OWNER_BYTES);
  at += OWNER_BYTES;
  target.writeUInt16BE(number, at);
  target.write(hasInserts ? WITH_INSERTS : ACTIONS[action.kind], at + 2, 'latin1');
  target.writeUIntBE(Math.max(0, Math.ceil(value)), at + 3, 6);
}

/** What follows the items, for those that need it. */
function writeDetails({ action }: SettleItem, { windowMs, retentionMs }: SettleCall, details: Arg[]): void {
  if (action.kind === 'finish' && action.inserts !== undefined) {
    details.push(windowMs, action.inserts.length);
    for (const { queue, element } of action.inserts) {
      const { timing, content, groups, dedupKey } = encodeElement(element);
      details.push(queueText(queue), retentionMs(queue), timing, content, groups, dedupKey);
    }
  } else if (action.kind === 'release' || action.kind === 'dead-letter') {
    if (action.reason != null) details.push(cutReason(action.reason));
  } else if (action.kind === 'move') {
    const { to, groups, tries, headers } = action;
    details.push(queueText(to), retentionMs(to), groupsText(groups), tries ?? '', JSON.stringify(headers));
  }
}

/** At most as many bytes of UTF-8 as are kept, cut at a character. */
function cutReason(reason: string): Buffer {
  const bytes = Buffer.from(reason);
  let end = Math.min(bytes.length, MAX_REASON_BYTES);
  while (end < bytes.length && ((bytes[end] ?? 0) & 0xc0) === 0x80) end--;
  return bytes.subarray(0, end);
}

interface PurgeCall {
  readonly states: readonly DeliveryState[];
  readonly limit: number;
}

export const STATE_CODES: Readonly<Record<DeliveryState, string>> = {
  ready: 'w',
  scheduled: 's',
  reserved: 'r',
};

/** One step: how many went, and whether there may be more. */
export const PURGE: Verb<PurgeCall, { readonly removed: number; readonly isDone: boolean }> = {
  name: 'purge',
  encode: ([call]) => [(call?.states ?? []).map((state) => STATE_CODES[state]).join(''), call?.limit ?? 0],
  decode: ({ text }) => [{ removed: text.readUIntBE(0, 6), isDone: text.readUInt8(6) === 0 }],
};
