import type { ElementContent, GroupName } from '../model/element.ts';

/** What one line or one part of an insert of many says of its element. Null: it does not say. */
export interface GivenElement extends ElementContent {
  /** A moment, in ms since 1970. */
  readonly matureAt: number | null;
  readonly delayMs: number | null;
  readonly ttlMs: number | null;
  readonly tries: number | null;
  readonly groups: readonly GroupName[] | null;
  /** The idempotency key, as the user gave it. */
  readonly key: string | null;
}
