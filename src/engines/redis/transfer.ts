import { limitedGroups } from '../../engine/group-limit.ts';
import type { Move, SettleOutcome } from '../../engine/storage.ts';
import type { GroupName } from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import { Hold } from './calls/hold.ts';
import {
  dedupText,
  encodeTiming,
  groupsText,
  noLaneLeft,
  ROOM,
  type Room,
  refusedGroups,
} from './calls/insert.ts';
import type { Lane } from './calls/lane.ts';
import type { Lanes } from './calls/lanes.ts';
import { outcomeAt } from './calls/settle.ts';
import type { Verb } from './calls/task.ts';
import { DEADLINE_MS } from './client/commands.ts';
import type { Arg } from './client/connection.ts';
import { encodeContent } from './content.ts';
import { REFERENCE_BYTES, writeReference } from './ids.ts';
import { queueText } from './keys.ts';
import type { Policies } from './policies.ts';

export interface TransferParts {
  readonly lanes: Lanes;
  readonly policies: Policies;
  readonly dedupWindowMs: number;
  /** On a cluster what is inserted in another queue travels as a parcel. */
  readonly router: { readonly isCluster: boolean };
}

/** Arguments of one move: see `library/transfer.lua`. */
const MOVE: Verb<readonly Arg[], SettleOutcome> = {
  name: 'move',
  encode: ([args]) => args ?? [],
  decode: ({ text }) => [text[0] === 0x21 ? noLaneLeft() : (outcomeAt(text, 0) as SettleOutcome)],
};

/**
 * Finishes elements and inserts others. All queues that are named are held meanwhile, so that the order of
 * calls is kept for each. On one server a transfer is one step. On a cluster the finish and the parcels for
 * other queues are one step, and the call answers when the parcels have arrived, or cannot now.
 * @throws CarryError
 */
export async function transfer(parts: TransferParts, moves: readonly Move[]): Promise<SettleOutcome[]> {
  if (moves.length === 0) return [];
  const { lanes } = parts;
  const touched = new Set<Lane>();
  for (const { from, inserts } of moves) {
    touched.add(lanes.get(from));
    for (const { queue } of inserts) touched.add(lanes.get(queue));
  }
  return new Promise((resolve, reject) => {
    for (const lane of touched) {
      const refusal = lanes.refusal(lane);
      if (refusal !== null) return reject(refusal);
    }
    const job = (): Promise<void> => transferHeld(parts, moves, [...touched]).then(resolve, reject);
    const giveUp = (): void =>
      reject(new QuaysideError('storage-unavailable', 'The calls before this one took too long.'));
    new Hold(touched, lanes.clock.monotonic() + DEADLINE_MS, job, giveUp);
  });
}

async function transferHeld(
  parts: TransferParts,
  moves: readonly Move[],
  held: readonly Lane[],
): Promise<SettleOutcome[]> {
  await makeRoom(parts, moves);
  const outcomes: SettleOutcome[] = [];
  try {
    for (const run of runsOf(parts, moves)) outcomes.push(...(await flyRun(parts, run, held)));
  } catch (error) {
    if (!outcomes.includes('done')) throw error;
    throw new QuaysideError(
      'outcome-unknown',
      `Only ${outcomes.length} of ${moves.length} moves are done for sure.`,
      {
        cause: error,
      },
    );
  }
  return outcomes;
}

/**
 * Groups that are not the default ones must fit before anything is finished: a parcel that arrived somewhere cannot be
 * refused there. Exchanges name none, and so ask for nothing here.
 * @throws QuaysideError `too-many-groups`
 */
async function makeRoom({ lanes, policies }: TransferParts, moves: readonly Move[]): Promise<void> {
  const targets = new Map<Lane, { readonly room: Room; readonly groups: Set<GroupName> }>();
  for (const { inserts } of moves) {
    for (const { queue, element } of inserts) {
      const room = policies.room(queue);
      const named = room.limit === null ? [] : [...limitedGroups(room.limit, [element])];
      if (named.length === 0) continue;
      const lane = lanes.get(queue);
      const groups = targets.get(lane)?.groups ?? new Set();
      for (const group of named) groups.add(group);
      targets.set(lane, { room, groups });
    }
  }
  for (const { room, groups } of targets.values()) {
    if (room.limit !== null && groups.size > room.limit.most) throw refusedGroups(room);
  }
  for (const [lane, { room, groups }] of targets) {
    const call = { room, groups: [...groups].join(',') };
    await lanes.flyHeld(lane, ROOM, call, { inserts: true, makes: true });
  }
}

/** Moves that one flight can carry: all of them on one server, those of one source on a cluster. */
function runsOf({ router }: TransferParts, moves: readonly Move[]): Move[][] {
  const runs: Move[][] = [];
  let source: string | null = null;
  for (const move of moves) {
    const from = queueText(move.from);
    if (runs.length > 0 && (!router.isCluster || from === source)) runs.at(-1)?.push(move);
    else runs.push([move]);
    source = from;
  }
  return runs;
}

function flyRun(parts: TransferParts, run: readonly Move[], held: readonly Lane[]): Promise<SettleOutcome[]> {
  const { lanes, router } = parts;
  const [first] = run;
  if (first === undefined) return Promise.resolve([]);
  const home = lanes.get(first.from);
  const others = router.isCluster ? [] : held.filter((lane) => lane !== home);
  const outcomes: Promise<SettleOutcome>[] = [];
  const tasks = run.map((move) => {
    const { promise, resolve, reject } = Promise.withResolvers<SettleOutcome>();
    outcomes.push(promise);
    const args = moveArgs(parts, move, home, others);
    return lanes.task(MOVE, args, { inserts: move.inserts.length > 0 }, resolve, reject);
  });
  const all = Promise.all(outcomes);
  void home.fly(tasks, { others, held });
  return all;
}

function moveArgs(
  { lanes, dedupWindowMs }: TransferParts,
  { from, finish, inserts }: Move,
  home: Lane,
  others: readonly Lane[],
): Arg[] {
  const reference = Buffer.alloc(REFERENCE_BYTES + 2);
  writeReference(finish, reference, 0);
  reference.writeUInt16BE(1, REFERENCE_BYTES);
  const source = lanes.numberOf(lanes.get(from), home, others);
  const args: Arg[] = [dedupWindowMs, source, finish.group, reference, inserts.length];
  for (const { queue, element } of inserts) {
    const number = lanes.numberOf(lanes.get(queue), home, others);
    args.push(number > 0 ? number : queueText(queue), encodeTiming(element), encodeContent(element));
    args.push(groupsText(element), dedupText(element));
  }
  return args;
}
