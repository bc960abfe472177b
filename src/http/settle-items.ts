import {
  FINISH,
  type Queue,
  RELEASE,
  type SettleAction,
  type SettleItem,
  type SettleOutcome,
} from '../broker/queue.ts';
import { needs, needsExpiry } from '../broker/queue-options.ts';
import { LIMITS } from '../model/limits.ts';
import { type Members, membersOf, wrongMember } from '../model/members.ts';
import { isGroup } from '../model/names.ts';
import { tooMany } from './batch.ts';
import { isOpaque } from './parameters.ts';

/** What a settlement of many can do with an element; the members of its body. */
export const BATCH_ACTIONS = ['commit', 'rollback', 'release', 'extend', 'bury'] as const;
export type BatchAction = (typeof BATCH_ACTIONS)[number];

/** One settlement of many. */
export interface BatchItem {
  readonly id: string;
  readonly action: BatchAction;
  /** What is sent to the engine; or how it ended, if no element can be meant. */
  readonly settle: SettleItem | SettleOutcome;
}

const RECEIPT = ['id', 'token', 'group'];
const MEMBERS: Readonly<Record<BatchAction, readonly string[]>> = {
  commit: RECEIPT,
  rollback: [...RECEIPT, 'delay', 'reason'],
  release: RECEIPT,
  extend: [...RECEIPT, 'lease'],
  bury: [...RECEIPT, 'reason'],
};

/**
 * Reads the body of a settlement of many, in its order: `{"commit": […], "rollback": […], "release": […], "extend": […],
 * "bury": […]}`, of items `{"id", "token", "group", "delay", "lease", "reason"}`, or ids. What is not of this shape is an error. What is, but names nothing
 * that can be there, such as an id with a space, is one item's outcome.
 * @param owner who settles
 * @throws QuaysideError `invalid-parameter` with the path; `body-too-large`; `not-supported`
 */
export function readSettleItems(
  payload: unknown,
  queue: Queue,
  owner: string,
  maxCount: number,
): BatchItem[] {
  const body = membersOf(payload, '', BATCH_ACTIONS);
  const items: BatchItem[] = [];
  for (const action of Object.keys(body) as BatchAction[]) {
    const list = body[action];
    if (!Array.isArray(list)) throw wrongMember(action, list, 'an array');
    if (items.length + list.length > maxCount) throw tooMany('items', maxCount);
    for (let index = 0; index < list.length; index += 1) {
      items.push(readItem(action, list[index], index, queue, owner));
    }
  }
  return items;
}

function readItem(
  action: BatchAction,
  value: unknown,
  index: number,
  queue: Queue,
  owner: string,
): BatchItem {
  const path = `${action}[${index}]`;
  const members: Members =
    typeof value === 'string' ? { id: value } : membersOf(value, path, MEMBERS[action]);
  const id = text(members, 'id', path);
  if (id === null) throw wrongMember(`${path}.id`, undefined, 'a string');
  const token = text(members, 'token', path);
  const group = text(members, 'group', path);
  const settleAction = actionOf(action, members, path, queue);
  let settle: SettleItem | SettleOutcome;
  if (!isOpaque(id) || (group !== null && !isGroup(group))) settle = 'not-found';
  else if (token !== null && !isOpaque(token)) settle = 'lease-lost';
  else settle = queue.item({ id, group, token, owner }, settleAction);
  return { id, action, settle };
}

function actionOf(action: BatchAction, members: Members, path: string, queue: Queue): SettleAction {
  if (action === 'commit') return FINISH;
  if (action === 'release') return RELEASE;
  if (action === 'extend') {
    return { kind: 'extend', leaseMs: milliseconds(members, 'lease', path, 1) ?? queue.settings.leaseMs };
  }
  const { namespace } = queue;
  // Longer ones are cut by the engine: an error message of any length must not keep the others reserved.
  const reason = text(members, 'reason', path) || null;
  if (reason !== null) needsExpiry(namespace, 'reasons');
  if (action === 'bury') return { kind: 'dead-letter', countTry: true, reason };
  const delayMs = milliseconds(members, 'delay', path, 0);
  if (delayMs !== null && delayMs > 0) needs(namespace, 'sched');
  return { kind: 'release', delayMs: delayMs ?? 0, isDefaultDelay: delayMs === null, countTry: true, reason };
}

/** A string, or null if the member is null or not given. */
function text(members: Members, name: string, path: string): string | null {
  const value = members[name] ?? null;
  if (value === null || typeof value === 'string') return value;
  throw wrongMember(`${path}.${name}`, value, 'a string');
}

function milliseconds(members: Members, name: string, path: string, from: number): number | null {
  const value = members[name] ?? null;
  if (value === null) return null;
  if (Number.isInteger(value) && (value as number) >= from && (value as number) <= LIMITS.delayMs)
    return value as number;
  throw wrongMember(
    `${path}.${name}`,
    value,
    `milliseconds, a whole number from ${from} to ${LIMITS.delayMs}`,
  );
}
