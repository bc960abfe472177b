import type {
  FinishAction,
  ReleaseAction,
  SettleAction,
  SettleItem,
  SettleOutcome,
  SettleResult,
  Storage,
} from '../../src/engine/storage.ts';
import type { DeliveryState, ElementId, GroupName } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';

/** A reserved delivery. */
export type DeliveryRef = Pick<SettleItem, 'id' | 'group' | 'token' | 'owner'>;

/** A commit of a reserved delivery, with inserts. */
export interface Transfer {
  readonly from: QueueKey;
  readonly finish: DeliveryRef;
  readonly inserts: NonNullable<FinishAction['inserts']>;
}

/** Applies one action to reserved deliveries of one queue. */
export async function settle(
  storage: Storage,
  queue: QueueKey,
  refs: readonly DeliveryRef[],
  action: SettleAction,
): Promise<SettleOutcome[]> {
  return outcomes(storage.settle(refs.map((ref) => ({ ...receipt(ref), queue, from: 'reserved', action }))));
}

export function commit(
  storage: Storage,
  queue: QueueKey,
  refs: readonly DeliveryRef[],
): Promise<SettleOutcome[]> {
  return settle(storage, queue, refs, { kind: 'finish' });
}

export function rollback(
  storage: Storage,
  queue: QueueKey,
  items: readonly (DeliveryRef & Omit<ReleaseAction, 'kind'>)[],
): Promise<SettleOutcome[]> {
  return outcomes(
    storage.settle(
      items.map(({ id, group, token, owner = null, ...terms }) => {
        return { queue, id, group, token, owner, from: 'reserved', action: { kind: 'release', ...terms } };
      }),
    ),
  );
}

export function extend(
  storage: Storage,
  queue: QueueKey,
  items: readonly (DeliveryRef & { readonly leaseMs: number })[],
): Promise<SettleResult[]> {
  return storage.settle(
    items.map(({ leaseMs, ...ref }) => {
      return { ...receipt(ref), queue, from: 'reserved', action: { kind: 'extend', leaseMs } };
    }),
  );
}

/** Removes waiting elements of a plain queue. */
export function remove(
  storage: Storage,
  queue: QueueKey,
  ids: readonly ElementId[],
): Promise<SettleOutcome[]> {
  const action = { kind: 'finish' } as const;
  return outcomes(
    storage.settle(ids.map((id) => ({ queue, id, group: '', token: null, from: 'waiting', action }))),
  );
}

export function transfer(storage: Storage, transfers: readonly Transfer[]): Promise<SettleOutcome[]> {
  return outcomes(
    storage.settle(
      transfers.map(({ from, finish, inserts }) => {
        return { ...receipt(finish), queue: from, from: 'reserved', action: { kind: 'finish', inserts } };
      }),
    ),
  );
}

/** Purges until nothing is left. Returns how many deliveries were removed. */
export async function purge(
  storage: Storage,
  queue: QueueKey,
  states?: readonly DeliveryState[],
): Promise<number> {
  let removed = 0;
  for (let isDone = false; !isDone; ) {
    const step = await storage.purge(queue, states);
    removed += step.removed;
    isDone = step.isDone;
  }
  return removed;
}

/** Returns the earliest maturity of the waiting deliveries of a group. */
export async function nextDueAt(storage: Storage, queue: QueueKey, group: GroupName): Promise<number | null> {
  return (await storage.counts(queue, group)).nextMatureAt;
}

async function outcomes(settling: Promise<readonly SettleResult[]>): Promise<SettleOutcome[]> {
  return (await settling).map(({ outcome }) => outcome);
}

function receipt({ id, group, token, owner = null }: DeliveryRef): Required<DeliveryRef> {
  return { id, group, token, owner };
}
