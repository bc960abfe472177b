import {
  MAX_REASON_BYTES,
  type PurgeStep,
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
import { truncateUtf8 } from '../../../util/truncate-utf8.ts';
import { single, type Verb } from '../batcher.ts';
import type { Arg } from '../client/connection.ts';
import { encodeContent, encodeHead, ID_BYTES, writeId } from '../encoding.ts';
import { queueText } from '../keys.ts';
import { extrasOf, groupsText, NO_CAPACITY, noNumberLeft } from './insert.ts';
import { STATE_CODES } from './read.ts';

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
const LATER = 0x37;

const ITEM_BYTES = ID_BYTES + 1 + TOKEN_BYTES + OWNER_BYTES + 2 + 1 + 6;
const [HAS_TOKEN, FROM_WAITING, COUNTS_TRY, IS_MOMENT, HAS_REASON, IS_DEFAULT] = [1, 2, 4, 8, 16, 32];
const ACTIONS = { finish: 'f', release: 'r', extend: 'e', 'dead-letter': 'd', move: 'm' } as const;
const WITH_INSERTS = 't';

/**
 * Settles of one batch, in their order: see `library/settle.lua`. Once the batch has copied as many bytes as it may,
 * there are no results for its other items.
 */
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
        endsLeases ||= item.from === 'waiting';
        writeItem(item, groups, target, at);
        writeDetails(item, call, details);
        at += ITEM_BYTES;
      }
    }
    const names = [...groups.keys()].map((group) => `${group},`).join('');
    return [names, target, endsLeases ? '1' : '', ...details];
  },
  decode({ text }, calls) {
    let at = 0;
    let momentAt = calls.reduce((sum, { items }) => sum + items.length, 0);
    return calls.map(({ items }) => {
      let isRejected = false;
      let isChanged = false;
      const results: SettleResult[] = [];
      for (const [place, { action }] of items.entries()) {
        const digit = text[at + place] ?? 0;
        if (digit === LATER) break;
        const outcome = OUTCOMES[digit - 0x30] ?? 'not-found';
        isRejected ||= digit === NO_CAPACITY;
        isChanged ||= outcome === 'done' || outcome === 'dead-lettered';
        if (outcome !== 'done' || action.kind !== 'extend') results.push(SETTLED[outcome]);
        else {
          results.push({ outcome, until: text.readUIntBE(momentAt, 6) });
          momentAt += 6;
        }
      }
      at += items.length;
      if (!isRejected) return results;
      if (!isChanged) return noNumberLeft();
      const message =
        'Some items were settled; others were not, because their queues have no number left for a consumer group.';
      return new QuaysideError('outcome-unknown', message);
    });
  },
};

function writeItem(item: SettleItem, groups: Map<string, number>, target: Buffer, from: number): void {
  const { action, group, token } = item;
  const number = groups.get(group) ?? groups.size + 1;
  groups.set(group, number);
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

/** Adds the arguments that some items need in addition. */
function writeDetails({ action }: SettleItem, { windowMs, retentionMs }: SettleCall, details: Arg[]): void {
  if (action.kind === 'finish' && action.inserts !== undefined) {
    details.push(windowMs, action.inserts.length);
    for (const { queue, element } of action.inserts) {
      const { timing, groups, dedupKey } = extrasOf(element);
      details.push(queueText(queue), retentionMs(queue), timing, encodeContent(element), groups, dedupKey);
    }
  } else if (action.kind === 'release' || action.kind === 'dead-letter') {
    if (action.reason != null) details.push(truncateUtf8(action.reason, MAX_REASON_BYTES));
  } else if (action.kind === 'move') {
    const { to, groups, tries, head } = action;
    const copyHead = head === null ? '' : encodeHead(head);
    details.push(queueText(to), retentionMs(to), groupsText(groups), tries ?? '', copyHead);
  }
}

/** Deliveries removed per step. Redis serves nobody else while a function runs. */
export const PURGE_STEP = 2_000;

/** One step of a purge: how many deliveries were removed, and whether there may be more. */
export const PURGE = single<readonly DeliveryState[], PurgeStep>(
  'purge',
  (states) => [states.map((state) => STATE_CODES[state]).join(''), PURGE_STEP],
  ({ text }) => ({ removed: text.readUIntBE(0, 6), isDone: text.readUInt8(6) === 0 }),
);

/** The last digit has only two bits of the token: any other digit would make a second string for the same token. */
const TOKEN = /^[A-Za-z0-9_-]{21}[AQgw]$/;

/** Writes a token(16). A malformed one is written as zeros, which match no reservation (`library/settle.lua`). */
function writeToken(token: string | null, target: Buffer, at: number): void {
  if (token !== null && TOKEN.test(token)) target.write(token, at, TOKEN_BYTES, 'base64url');
  else target.fill(0, at, at + TOKEN_BYTES);
}
