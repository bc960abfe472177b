import { closeSync, existsSync, fsyncSync, openSync, rmSync, statfsSync, statSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';

export interface SpaceOptions {
  readonly file: string;
  /** Size of the ballast file; 0: none. */
  readonly ballastBytes: number;
  /** Inserts stop while less than this is free on the file's disk. */
  readonly minFreeBytes: number;
  readonly warn: (fields: object, message: string) => void;
}

const TRANSACTIONS_A_LOOK = 5;
/** Of the margin: as much may be stored before the next look. */
const SHARE_A_LOOK = 1 / 8;

/**
 * Keeps a full disk from stopping the consumers.
 *
 * SQLite needs space even to delete. So inserts are refused while the disk has less than a margin free, and a
 * ballast file beside the database is given up if takes and commits run out of space all the same. Both
 * undo themselves: the ballast is made again and inserts go on once there is room for both.
 */
export class Space {
  readonly #options: SpaceOptions;
  readonly #ballast: string;
  #tight = false;
  #transactionsUntilLook = 0;
  #bytesSinceLook = 0;
  #hasBallast: boolean;

  constructor(options: SpaceOptions) {
    this.#options = options;
    this.#ballast = `${options.file}.ballast`;
    this.#hasBallast = options.ballastBytes === 0 || ballastSize(this.#ballast) >= options.ballastBytes;
  }

  /** Whether what takes space, insert and transfer, is refused now. */
  get isTight(): boolean {
    return this.#tight;
  }

  /**
   * Looks at the disk now and then; called before each transaction. Asking costs about 10 µs, a sixth of a small one,
   * so only each {@link TRANSACTIONS_A_LOOK}th asks, and each that stores much: what comes unseen is a part of the
   * margin, or one transaction. Inserts stop below the margin and go on a quarter above it, so that they do not
   * flutter.
   * @param bytes of the bodies that the transaction may store
   */
  look(bytes: number): void {
    this.#transactionsUntilLook -= 1;
    this.#bytesSinceLook += bytes;
    const isMuch = this.#bytesSinceLook > this.#options.minFreeBytes * SHARE_A_LOOK;
    if (!this.#tight && !isMuch && this.#transactionsUntilLook > 0) return;
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
    if (enough) this.#options.warn(fields, 'the disk has space again: inserts go on');
    else this.#options.warn(fields, 'the disk is nearly full: inserts are refused, everything else goes on');
  }

  /** SQLite ran out of space. Answers whether giving the ballast up may help: then it is gone. */
  giveUpBallast(): boolean {
    this.#tight = true;
    if (!existsSync(this.#ballast)) return false;
    rmSync(this.#ballast);
    this.#hasBallast = false;
    this.#options.warn(
      { file: this.#options.file },
      'the disk is full: the ballast file was given up so that elements can still be consumed',
    );
    return true;
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
      const descriptor = openSync(this.#ballast, 'w');
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

function ballastSize(file: string): number {
  return existsSync(file) ? statSync(file).size : -1;
}
