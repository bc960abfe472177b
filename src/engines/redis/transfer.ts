import { limitedGroups } from '../../engine/group-limit.ts';
import type { Move, SettleOutcome } from '../../engine/old-port.ts';
import type { GroupName } from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import {
  dedupText,
  encodeTiming,
  groupsText,
  noLaneLeft,
  ROOM,
  type Room,
  refusedGroups,
} from './calls/insert.ts';
import type { Lanes } from './calls/lanes.ts';
import { outcomeAt } from './calls/settle.ts';
import type { TaskTraits, Verb } from './calls/task.ts';
import type { Arg } from './client/connection.ts';
import { encodeContent } from './content.ts';
import { REFERENCE_BYTES, writeReference } from './ids.ts';
import { queueText } from './keys.ts';
import type { Policies } from './policies.ts';

export interface TransferParts {
  readonly lanes: Lanes;
  readonly policies: Policies;
  readonly dedupWindowMs: number;
}

interface MoveCall {
  readonly windowMs: number;
  readonly from: QueueKey;
  readonly group: GroupName;
  readonly reference: Buffer;
  readonly inserts: readonly { readonly queue: QueueKey; readonly args: readonly Arg[] }[];
}

/** One move: see `library/transfer.lua`. */
const MOVE: Verb<MoveCall, SettleOutcome> = {
  name: 'move',
  encode([call], numberOf) {
    if (call === undefined) return [];
    const { windowMs, from, group, reference, inserts } = call;
    const args: Arg[] = [windowMs, numberOf(from), group, reference, inserts.length];
    for (const { queue, args: own } of inserts) {
      const number = numberOf(queue);
      args.push(number > 0 ? number : queueText(queue), ...own);
    }
    return args;
  },
  decode: ({ text }) => [text[0] === 0x21 ? noLaneLeft() : (outcomeAt(text, 0) as SettleOutcome)],
};

/**
 * Finishes elements and inserts others. Each move is one step, and a call of the queue that it finishes in. On one
 * server the step inserts as well. On a cluster it writes outbox entries for queues of other slots, and the call is
 * answered when they have arrived, or at its deadline.
 * @throws QuaysideError
 */
export async function transfer(parts: TransferParts, moves: readonly Move[]): Promise<SettleOutcome[]> {
  const room = makeRoom(parts, moves);
  // Without a reason to wait the moves are called at once, in their place among other calls.
  return room === null
    ? callMoves(parts, moves)
    : parts.lanes.inTime(room.then(() => callMoves(parts, moves)));
}

async function callMoves(parts: TransferParts, moves: readonly Move[]): Promise<SettleOutcome[]> {
  const results = await Promise.allSettled(moves.map((move) => callMove(parts, move)));
  const failed = results.filter((result) => result.status === 'rejected');
  if (failed.length === 0)
    return results.flatMap((result) => (result.status === 'fulfilled' ? result.value : []));
  const done = results.filter((result) => result.status === 'fulfilled' && result.value === 'done').length;
  const unknown = failed.find(({ reason }) => (reason as QuaysideError).code === 'outcome-unknown');
  const cause: unknown = (unknown ?? failed[0])?.reason;
  if (done === 0) throw cause;
  throw new QuaysideError('outcome-unknown', `Only ${done} of ${moves.length} moves are done for sure.`, {
    cause,
  });
}

function callMove(
  { lanes, dedupWindowMs }: TransferParts,
  { from, finish, inserts }: Move,
): Promise<SettleOutcome> {
  const reference = Buffer.alloc(REFERENCE_BYTES + 2);
  writeReference(finish, reference, 0);
  reference.writeUInt16BE(1, REFERENCE_BYTES);
  let bytes = 0;
  const encoded = inserts.map(({ queue, element }) => {
    const content = encodeContent(element);
    bytes += content.length;
    return { queue, args: [encodeTiming(element), content, groupsText(element), dedupText(element)] };
  });
  const call = { windowMs: dedupWindowMs, from, group: finish.group, reference, inserts: encoded };
  const traits: TaskTraits = {
    inserts: inserts.length > 0,
    targets: inserts.map(({ queue }) => queue),
    moves: true,
    bytes,
  };
  return lanes.call(from, MOVE, call, traits);
}

/**
 * Groups that are not the default ones must fit before anything is finished: an entry that arrived somewhere cannot be
 * refused there. Exchanges name none, and so ask for nothing here.
 * @throws QuaysideError `too-many-groups`
 */
function makeRoom({ lanes, policies }: TransferParts, moves: readonly Move[]): Promise<unknown> | null {
  const targets = new Map<string, { readonly room: Room; readonly groups: Set<GroupName> }>();
  for (const { inserts } of moves) {
    for (const { queue, element } of inserts) {
      const room = policies.room(queue);
      const named = room.limit === null ? [] : [...limitedGroups(room.limit, [element])];
      if (named.length === 0) continue;
      const groups = targets.get(queueText(queue))?.groups ?? new Set();
      for (const group of named) groups.add(group);
      targets.set(queueText(queue), { room, groups });
    }
  }
  if (targets.size === 0) return null;
  const needed = [...targets.values()];
  for (const { room, groups } of needed) {
    if (room.limit !== null && groups.size > room.limit.most) throw refusedGroups(room);
  }
  return Promise.all(
    needed.map(({ room, groups }) => {
      const call = { room, groups: [...groups].join(',') };
      return lanes.call(room.queue, ROOM, call, { inserts: true, makes: true });
    }),
  );
}
