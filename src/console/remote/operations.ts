import type { DeliveryState } from '../../model/element.ts';
import type { OperationDeclaration, OperationRecord } from '../../model/records.ts';
import { call, get, isTemporary, path, type QueueNamed } from '../api.ts';
import { targetNamespaces } from '../session.ts';
import { after } from '../timers.ts';

export const ACTION_NAMES = {
  redrive: 'Redrive',
  move: 'Move',
  copy: 'Copy',
  delay: 'Delay',
  release: 'Release',
  delete: 'Delete',
} as const;

export type BulkAction = keyof typeof ACTION_NAMES;

/** The actions that elements in a state allow, except redrive; null: in any state. */
export function actionsOn(ns: string, state: DeliveryState | null): readonly BulkAction[] {
  if (state === 'reserved') return ['release'];
  return [
    ...(targetNamespaces(ns).length > 0 ? (['move', 'copy'] as const) : []),
    'delay',
    ...(state === null ? ['release' as const] : []),
    'delete',
  ];
}

/** What an action has done to elements, for sentences. */
export const ACTION_RESULTS: Readonly<Record<string, string>> = {
  redrive: 'redriven',
  move: 'moved',
  copy: 'copied',
  delay: 'delayed',
  release: 'released',
  delete: 'deleted',
  count: 'counted',
  set: 'changed',
};

export type BulkRequest = OperationDeclaration & {
  readonly action: BulkAction;
  readonly source: QueueNamed;
};

const POLL_MS = 250;
const RETRY_MS = 2_000;

export interface OperationWatcher {
  readonly onProgress: (operation: OperationRecord) => void;
  /** Called when the operation cannot be read for the moment. */
  readonly onTrouble: (error: unknown) => void;
}

/** Starts an operation. Takes no signal: an abort could not tell whether the operation has started. */
export function startOperation(request: BulkRequest): Promise<OperationRecord> {
  return get<OperationRecord>('operations', {
    method: 'POST',
    // `source` may have more members, which the server would reject.
    json: { ...request, source: { ns: request.source.ns, queue: request.source.queue } },
  });
}

export async function cancelOperation(id: string): Promise<void> {
  await call(path('operations', id), { method: 'DELETE' });
}

/**
 * Counts what an operation would change. If `signal` is aborted, the count is cancelled on the server, too: otherwise
 * it would read the whole queue for nothing, and count toward the limit of operations.
 */
export async function countMatching(
  request: BulkRequest,
  watcher: OperationWatcher,
  signal: AbortSignal,
): Promise<void> {
  const { id } = await startOperation({ ...request, dryRun: true });
  const cancel = (): void => {
    cancelOperation(id).catch(() => {});
  };
  if (signal.aborted) return cancel();
  signal.addEventListener('abort', cancel);
  try {
    await watchOperation(id, watcher, signal);
  } finally {
    signal.removeEventListener('abort', cancel);
  }
}

/** Polls an operation until it has ended. It runs without this page, so errors of an outage are only reported. */
export async function watchOperation(
  id: string,
  { onProgress, onTrouble }: OperationWatcher,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    const operation = await get<OperationRecord>(path('operations', id), { signal }).catch(
      (error: unknown) => {
        if (!isTemporary(error)) throw error;
        onTrouble(error);
        return null;
      },
    );
    if (operation !== null) onProgress(operation);
    if (operation !== null && operation.state !== 'running') return;
    await new Promise<void>((resolve) => after(operation === null ? RETRY_MS : POLL_MS, resolve));
  }
}
