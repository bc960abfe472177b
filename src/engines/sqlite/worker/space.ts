import {
  closeSync,
  existsSync,
  fsyncSync,
  lstatSync,
  rmSync,
  statfsSync,
  statSync,
  writeSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { openPrivateFile } from '../../../util/files.ts';
import { BALLAST, type Settings, type Warn } from '../settings.ts';
import { StoreLost } from './errors.ts';

type SpaceSettings = Pick<Settings, 'file' | 'ballastBytes' | 'minFreeBytes'>;

const TRANSACTIONS_PER_CHECK = 5;
const CHECK_INTERVAL_MS = 1000;
/** Share of the margin that may be stored before the next check. */
const SHARE_PER_CHECK = 1 / 8;

/**
 * Lets consumers continue on a full disk, and detects files that are deleted or replaced while they are in use: the
 * kernel lets the engine continue on a file that cannot be opened again.
 *
 * SQLite needs space even to delete. So inserts are rejected while the disk has less free space than a margin, and a
 * ballast file next to the database is deleted if takes and commits nevertheless run out of space. Both are reverted
 * once there is space for both: the ballast is written again, and inserts are accepted.
 */
export class Space {
  /** Whether calls that need space, inserts and transfers, are rejected now. */
  isNearlyFull = false;
  readonly #options: SpaceSettings;
  readonly #warn: Warn;
  readonly #ballast: string;
  /** Identity of the file at each path when the database was opened. */
  readonly #identities = new Map<string, string | null>();
  #checkedAt = Number.NEGATIVE_INFINITY;
  #transactionsUntilCheck = 0;
  #bytesSinceCheck = 0;

  constructor(options: SpaceSettings, warn: Warn) {
    this.#options = options;
    this.#warn = warn;
    this.#ballast = `${options.file}${BALLAST}`;
  }

  /** Called once the database and its log exist: any other file at their paths is detected from now on. */
  opened(): void {
    for (const path of [this.#options.file, `${this.#options.file}-wal`]) {
      this.#identities.set(path, identityOf(path));
    }
  }

  /**
   * Checks the free space of the disk now and then; called before each transaction. A check costs about 10 µs, a sixth
   * of a small transaction. So only each {@link TRANSACTIONS_PER_CHECK}th transaction makes one, the first after {@link
   * CHECK_INTERVAL_MS}, and each that stores much: what is stored between checks is at most a part of the margin, or
   * one transaction. Inserts stop below the margin and continue a quarter above it, so that they do not oscillate.
   * @param bytes of the bodies that the transaction may store
   * @throws StoreLost if the file or its log was deleted or replaced
   */
  check(bytes: number, now: number): void {
    this.#transactionsUntilCheck -= 1;
    this.#bytesSinceCheck += bytes;
    const isMuch = this.#bytesSinceCheck > this.#options.minFreeBytes * SHARE_PER_CHECK;
    const isLate = Math.abs(now - this.#checkedAt) >= CHECK_INTERVAL_MS;
    if (!this.isNearlyFull && !isMuch && !isLate && this.#transactionsUntilCheck > 0) return;
    this.#checkedAt = now;
    this.#checkFiles();
    this.#transactionsUntilCheck = TRANSACTIONS_PER_CHECK;
    this.#bytesSinceCheck = bytes;
    const { minFreeBytes, ballastBytes } = this.#options;
    const free = this.#free();
    const hadBallast = this.#isBallastComplete();
    const missingBallastBytes = hadBallast ? 0 : ballastBytes;
    const requiredBytes = (this.isNearlyFull ? minFreeBytes * 1.25 : minFreeBytes) + missingBallastBytes;
    const hasSpace = free >= requiredBytes && (hadBallast || this.#writeBallast());
    if (hasSpace !== this.isNearlyFull) return;
    this.isNearlyFull = !hasSpace;
    const fields = { file: this.#options.file, freeBytes: free, ballast: hadBallast || hasSpace };
    if (hasSpace) this.#warn(fields, 'the disk has space again: inserts are accepted');
    else
      this.#warn(
        fields,
        'the disk is nearly full: inserts, copies and moves are rejected, everything else continues',
      );
  }

  /** Deletes the ballast when SQLite ran out of space. Returns whether there was one, so that a retry may succeed. */
  releaseBallast(): boolean {
    this.isNearlyFull = true;
    if (!existsSync(this.#ballast)) return false;
    rmSync(this.#ballast);
    this.#warn(
      { file: this.#options.file },
      'the disk is full: the ballast file was deleted so that elements can still be consumed',
    );
    return true;
  }

  #checkFiles(): void {
    for (const [path, identity] of this.#identities) {
      if (identityOf(path) === identity) continue;
      // The data would not survive the end of the process.
      throw new StoreLost(`${path} was deleted or replaced while it was in use`);
    }
  }

  /** Whether the ballast exists in full: an operator may have deleted it. */
  #isBallastComplete(): boolean {
    const { ballastBytes } = this.#options;
    return ballastBytes === 0 || ballastSize(this.#ballast) >= ballastBytes;
  }

  #free(): number {
    const { bavail, bsize } = statfsSync(dirname(this.#options.file));
    return bavail * bsize;
  }

  /**
   * Writes all blocks of the ballast, since a sparse file would reserve nothing. Returns false if there is no space.
   */
  #writeBallast(): boolean {
    const { ballastBytes } = this.#options;
    const block = Buffer.alloc(1024 * 1024, 'quayside ballast ');
    try {
      // Never write into a symbolic link, or a file that other users may read.
      rmSync(this.#ballast, { force: true });
      const descriptor = openPrivateFile(this.#ballast);
      try {
        for (let left = ballastBytes; left > 0; left -= block.length) {
          writeSync(descriptor, block, 0, Math.min(left, block.length));
        }
        fsyncSync(descriptor);
      } finally {
        closeSync(descriptor);
      }
    } catch {
      rmSync(this.#ballast, { force: true });
      return false;
    }
    return true;
  }
}

/** The size of a regular file; -1 for anything else, such as a link, which reserves nothing on this disk. */
function ballastSize(file: string): number {
  const found = lstatSync(file, { throwIfNoEntry: false });
  return found?.isFile() === true ? found.size : -1;
}

/** Device and inode of a file; null if it does not exist. */
function identityOf(path: string): string | null {
  const found = statSync(path, { throwIfNoEntry: false });
  return found === undefined ? null : `${found.dev}:${found.ino}`;
}
