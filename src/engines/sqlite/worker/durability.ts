import type { DatabaseSync } from 'node:sqlite';
import type { Durability } from '../settings.ts';

/** Whether a commit waits for its fsync. Takes effect outside a transaction only. */
export function setDurability(db: DatabaseSync, durability: Durability): void {
  db.exec(`PRAGMA synchronous = ${durability === 'full' ? 'FULL' : 'NORMAL'}`);
}
