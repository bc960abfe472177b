import { get, path } from '../api.ts';
import { after } from '../timers.ts';
import type { OperationPicture, QueueNamed } from './live.ts';

export const ACTION_NAMES = {
  redrive: 'Redrive',
  move: 'Move',
  copy: 'Copy',
  delay: 'Delay',
  release: 'Release',
  delete: 'Delete',
} as const;

export type BulkAction = keyof typeof ACTION_NAMES;

/** What has become of the elements, in the past tense. */
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

export interface ElementChoice {
  readonly state?: string;
  readonly group?: string;
  readonly ids?: readonly string[];
  readonly selector?: string;
}

export interface BulkRequest {
  readonly action: BulkAction;
  readonly source: QueueNamed;
  readonly where: ElementChoice;
  readonly to?: QueueNamed;
  readonly delay?: number;
  readonly limit?: number | undefined;
  readonly dryRun?: boolean;
}

export interface OperationDetails extends OperationPicture {
  readonly where: ElementChoice;
  readonly samples: readonly {
    readonly id: string;
    readonly state: string;
    readonly mature: string;
    readonly insertedAt: string;
    readonly tries: number;
    readonly reason: string | null;
    readonly bytes: number;
  }[];
}

const POLL_MS = 250;

export function startOperation(request: BulkRequest, signal?: AbortSignal): Promise<OperationDetails> {
  return get<OperationDetails>('operations', {
    method: 'POST',
    // A picture of a queue has more members than its name.
    json: { ...request, source: { ns: request.source.ns, queue: request.source.queue } },
    ...(signal !== undefined && { signal }),
  });
}

/** Reads an operation until it has ended. */
export async function watchOperation(
  id: string,
  onProgress: (operation: OperationDetails) => void,
  signal: AbortSignal,
): Promise<OperationDetails> {
  for (;;) {
    const operation = await get<OperationDetails>(path('operations', id), { signal });
    onProgress(operation);
    if (operation.state !== 'running') return operation;
    await new Promise<void>((resolve) => after(POLL_MS, resolve));
  }
}
