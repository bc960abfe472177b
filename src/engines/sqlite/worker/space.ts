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
import type { Settings, Warn } from '../settings.ts';
import { StoreLost } from './errors.ts';

type SpaceSettings = Pick<Settings, 'file' | 'ballastBytes' | 'minFreeBytes'>;

const TRANSACTIONS_A_LOOK = 5;
const LOOK_EACH_MS = 1000;
/** Of the margin: as much may be stored before the next look. */
const SHARE_A_LOOK = 1 / 8;

/**
 * Keeps a full disk from stopping the consumers, and notices files that are deleted or replaced under the engine:
 * the kernel lets it continue on a file that nobody can open again.
 *
 * SQLite needs space even to delete. So inserts are refused while the disk has less than a margin free, and a
 * ballast file next to the database is given up if takes and commits run out of space all the same. Both
 * undo themselves: the ballast is made again and inserts go on once there is room for both.
 */
export class Space {
  readonly #options: SpaceSettings;
  readonly #warn: Warn;
  readonly #ballast: string;
  /** By path: which file it was when the database was opened. */
  readonly #identities = new Map<string, string | null>();
  #tight = false;
  #lookedAt = Number.NEGATIVE_INFINITY;
  #transactionsUntilLook = 0;
  #bytesSinceLook = 0;
  #hasBallast: boolean;

  constructor(options: SpaceSettings, warn: Warn) {
    this.#options = options;
    this.#warn = warn;
    this.#ballast = `${options.file}.ballast`;
    this.#hasBallast = this.#findBallast();
  }

  /** The database and its log are there: whatever else is found at their paths from now on is not them. */
  opened(): void {
    for (const path of [this.#options.file, `${this.#options.file}-wal`]) {
      this.#identities.set(path, identityOf(path));
    }
  }

  /** Whether what takes space, insert and transfer, is refused now. */
  get isTight(): boolean {
    return this.#tight;
  }

  /**
   * Looks at the disk now and then; called before each transaction. Asking costs about 10 µs, a sixth of a small one,
   * so only each {@link TRANSACTIONS_A_LOOK}th asks, the first after {@link LOOK_EACH_MS}, and each that stores much:
   * what comes unseen is a part of the margin, or one transaction. Inserts stop below the margin and go on a quarter
   * above it, so that they do not flutter.
   * @param bytes of the bodies that the transaction may store
   * @throws StoreLost if the file or its log has no name any more, or another file has it
   */
  look(bytes: number, now: number): void {
    this.#transactionsUntilLook -= 1;
    this.#bytesSinceLook += bytes;
    const isMuch = this.#bytesSinceLook > this.#options.minFreeBytes * SHARE_A_LOOK;
    const isLate = Math.abs(now - this.#lookedAt) >= LOOK_EACH_MS;
    if (!this.#tight && !isMuch && !isLate && this.#transactionsUntilLook > 0) return;
    this.#lookedAt = now;
    this.#checkFiles();
    this.#hasBallast = this.#findBallast();
    this.#transactionsUntilLook = TRANSACTIONS_A_LOOK;
    this.#bytesSinceLook = bytes;
    const { minFreeBytes, ballastBytes } = this.#options;
    const free = this.#free();
    const owed = this.#hasBallast ? 0 : ballastBytes;
    const wanted = (this.#tight ? minFreeBytes * 1.25 : minFreeBytes) + owed;
    const enough = free >= wanted && (this.#hasBallast || this.#makeBallast());
    if (enough !== this.#tight) return;
    this.#tight = !enough;
    const fields = { file: this.#options.file, freeBytes: free, ballast: this.#hasBallast };
    if (enough) this.#warn(fields, 'the disk has space again: inserts go on');
    else this.#warn(fields, 'the disk is nearly full: inserts are refused, everything else goes on');
  }

  /** SQLite ran out of space. Answers whether giving the ballast up may help: then it is gone. */
  giveUpBallast(): boolean {
    this.#tight = true;
    if (!existsSync(this.#ballast)) return false;
    rmSync(this.#ballast);
    this.#hasBallast = false;
    this.#warn(
      { file: this.#options.file },
      'the disk is full: the ballast file was given up so that elements can still be consumed',
    );
    return true;
  }

  #checkFiles(): void {
    for (const [path, identity] of this.#identities) {
      if (identityOf(path) === identity) continue;
      // What is written now would not survive the end of the process.
      throw new StoreLost(`${path} was deleted or replaced while it was in use`);
    }
  }

  /** Somebody may have deleted it. */
  #findBallast(): boolean {
    const { ballastBytes } = this.#options;
    return ballastBytes === 0 || ballastSize(this.#ballast) >= ballastBytes;
  }

  #free(): number {
    const { bavail, bsize } = statfsSync(dirname(this.#options.file));
    return bavail * bsize;
  }

  /** Written out, since a file with holes would reserve nothing. */
  #makeBallast(): boolean {
    const { ballastBytes } = this.#options;
    const block = Buffer.alloc(1024 * 1024, 'quayside ballast ');
    try {
      // A link, or a file that others may read, is not written into.
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
    this.#hasBallast = true;
    return true;
  }
}

/** Of a plain file; a link in its place reserves nothing here. */
function ballastSize(file: string): number {
  const found = lstatSync(file, { throwIfNoEntry: false });
  return found?.isFile() === true ? found.size : -1;
}

/** Null: nothing is there. */
function identityOf(path: string): string | null {
  const found = statSync(path, { throwIfNoEntry: false });
  return found === undefined ? null : `${found.dev}:${found.ino}`;
}
