import type { DeadLetters } from '../../model/records.ts';
import { get } from '../api.ts';

/** The dead-letter queues of all namespaces in which the user may browse. */
export function deadLetters(signal: AbortSignal): Promise<DeadLetters> {
  return get<DeadLetters>('dead-letters', { signal });
}
