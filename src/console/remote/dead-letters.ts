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

export interface DeadLetterQueues {
  readonly queues: readonly DeadLetterQueue[];
  /** Namespaces whose queues are missing, because their engine is unavailable. */
  readonly unavailable: readonly string[];
}

/** The dead-letter queues of all namespaces in which the user may browse. */
export function deadLetters(signal: AbortSignal): Promise<DeadLetterQueues> {
  return get<DeadLetterQueues>('dead-letters', { signal });
}
