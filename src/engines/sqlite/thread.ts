import type { ErrorCode } from '../../model/errors.ts';
import type { Packed } from './message.ts';

/** What the main side tells the worker. */
export type ToWorker =
  | {
      readonly kind: 'batch';
      /** By the main side's `SteadyTime`. */
      readonly now: number;
      /** Namespace and name of each queue that is named for the first time, in the order of their handles. */
      readonly names: readonly string[];
      /** Handles below this one are named neither by this batch nor by a later one. */
      readonly firstHandle: number;
      /** Four numbers a call: operation, and where its values, bytes and large bodies begin. */
      readonly calls: readonly number[];
      readonly batch: Packed;
    }
  /** The file does not exist yet. */
  | { readonly kind: 'backup'; readonly file: string }
  | { readonly kind: 'close' };

/** What the worker tells the main side. Batches are answered in their order. */
export type FromWorker =
  | { readonly kind: 'opened' }
  | { readonly kind: 'refused'; readonly message: string }
  | { readonly kind: 'answers'; readonly batches: readonly Packed[] }
  | { readonly kind: 'backedUp'; readonly bytes: number }
  | { readonly kind: 'backupFailed'; readonly code: ErrorCode; readonly message: string }
  | { readonly kind: 'warn'; readonly fields: object; readonly message: string }
  | {
      readonly kind: 'failed';
      readonly message: string;
      /** How many batches, from the first that is not answered, may have become durable. */
      readonly uncertain: number;
    };
