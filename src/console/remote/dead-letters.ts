import { get } from '../api.ts';
import type { QueueNamed } from './live.ts';

export interface DeadLetterQueue extends QueueNamed {
  readonly count: number;
  readonly oldest: string | null;
  readonly reasons: readonly { readonly reason: string | null; readonly count: number }[];
  readonly sources: readonly { readonly queue: string | null; readonly count: number }[];
  readonly looked: number;
  readonly complete: boolean;
}

/** The dead-letter queues of all namespaces in which the user may browse. */
export async function deadLetters(signal: AbortSignal): Promise<readonly DeadLetterQueue[]> {
  const { queues } = await get<{ queues: readonly DeadLetterQueue[] }>('dead-letters', { signal });
  return queues;
}
