import { closeSync, fstatSync, openSync, readSync, statSync } from 'node:fs';
import { UNSYNCED_PAGE } from './schema.ts';

/**
 * Finds damage in a write-ahead log at rest. SQLite itself stops at the first frame that does not fit and silently
 * drops what follows, since it cannot know whether a crash tore the tail or a fault changed a bit.
 *
 * The difference is in what follows: a commit that is fsynced has all frames before it on the disk, and the next one
 * starts after that. So a power loss tears one such transaction at most, and those behind the last one that were not
 * fsynced, which only moved leases. Two synced commits at the break or behind it were both acknowledged: the break is
 * damage. A break in the last synced transaction cannot be distinguished from a torn one. A transaction is an unsynced
 * one if it writes the page that no other does (`schema.ts`). SQLite writes the pages of a transaction in the order of
 * their numbers, so a number that is not above the one before begins the next transaction, although the commit between
 * them was lost.
 *
 * Format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log. A log is reused from its start, with new
 * salts, so behind its end there may be sound frames of an earlier generation; those were checkpointed.
 */
interface LogDamage {
  /** Of the first frame that does not fit, or 0 for the header. */
  readonly offset: number;
  /** Synced commits at the break and behind it, which SQLite would drop. */
  readonly commits: number;
}

const HEADER_BYTES = 32;
const FRAME_HEADER_BYTES = 24;
const MAGIC = 0x377f0682;
const VERSION = 3_007_000;
/** The page size of our files: what is tried if the header's own makes no sense. */
const USUAL_PAGE_BYTES = 4096;
/** Bytes read at once. */
const CHUNK_BYTES = 1024 * 1024;

/** @returns null if the log is sound or ends in at most one torn transaction, or if there is none */
export function findLogDamage(log: string): LogDamage | null {
  return withLog(log, (descriptor, header) =>
    header.isSound ? damageInFrames(descriptor, header) : damageInHeader(descriptor, header),
  );
}

/** Whether the log holds a committed transaction, which without its database file cannot be read. */
export function holdsCommits(log: string): boolean {
  const found = withLog(log, (descriptor, header) => {
    for (const frame of header.isSound ? framesOf(descriptor, header) : []) {
      if (!frame.fits || !hasSalts(frame, header)) return false;
      if (frame.isCommit) return true;
    }
    return false;
  });
  return found ?? false;
}

/** The two halves of a checksum. */
type Sum = readonly [number, number];

/** How a log has its frames. */
interface Layout {
  readonly pageBytes: number;
  readonly isLittle: boolean;
  /** What the checksum of the first frame continues. */
  readonly stored: Sum;
}

interface Header extends Layout {
  readonly isSound: boolean;
  readonly salts: Sum;
  readonly bytes: DataView;
}

interface Frame {
  readonly offset: number;
  readonly salts: Sum;
  readonly page: number;
  /** Names a page and is the last one of its transaction. */
  readonly isCommit: boolean;
  /** Its checksum continues the one stored in the frame, or the header, before it. */
  readonly fits: boolean;
}

function withLog<T>(log: string, use: (descriptor: number, header: Header) => T): T | null {
  if ((statSync(log, { throwIfNoEntry: false })?.size ?? 0) <= HEADER_BYTES) return null;
  // SQLite puts no lock on a log, so closing this descriptor releases none of another connection's.
  const descriptor = openSync(log, 'r');
  try {
    return use(descriptor, readHeader(descriptor));
  } finally {
    closeSync(descriptor);
  }
}

function readHeader(descriptor: number): Header {
  const buffer = Buffer.alloc(HEADER_BYTES);
  readSync(descriptor, buffer, 0, HEADER_BYTES, 0);
  const bytes = viewOf(buffer);
  const magic = bytes.getUint32(0);
  const isLittle = (magic & 1) === 0;
  const pageBytes = bytes.getUint32(8);
  const stored = pairAt(bytes, 24);
  const isSound =
    (magic & ~1) === MAGIC &&
    bytes.getUint32(4) === VERSION &&
    isPageSize(pageBytes) &&
    isSame(checksum(bytes, 0, 24, isLittle, [0, 0]), stored);
  return { isSound, isLittle, pageBytes, salts: pairAt(bytes, 16), stored, bytes };
}

function damageInFrames(descriptor: number, header: Header): LogDamage | null {
  let offset: number | null = null;
  let commits = 0;
  let isUnsynced = false;
  let lastPage = 0;
  for (const frame of framesOf(descriptor, header)) {
    const { fits, isCommit, page } = frame;
    const isSalted = hasSalts(frame, header);
    // At the break, a frame that continues the log but for its salts is one of ours whose salts were changed.
    const isOurs = isSalted || (fits && offset === null);
    if (offset === null && !(isSalted && fits)) offset = frame.offset;
    if (!isOurs) continue;
    // Not in the frame of the break, whose page number may be what was changed.
    if (offset !== frame.offset) {
      if (page <= lastPage) isUnsynced = false;
      if (page === UNSYNCED_PAGE) isUnsynced = true;
      lastPage = page;
    }
    if (!isCommit) continue;
    if (offset !== null && !isUnsynced) commits++;
    isUnsynced = false;
    lastPage = 0;
  }
  return offset === null || commits < 2 ? null : { offset, commits };
}

/**
 * SQLite ignores a log whose header does not fit. That would lose nothing if a crash tore the header, 32 bytes of one
 * sector, while the log was restarted: the frames would be of the generation before. They are this header's own if the
 * first one continues the checksum that the header has or should have; and two commits whose frames continue each
 * other are not ignored either, as the header may be gone altogether.
 */
function damageInHeader(descriptor: number, header: Header): LogDamage | null {
  for (const pageBytes of new Set([header.pageBytes, USUAL_PAGE_BYTES])) {
    if (!isPageSize(pageBytes)) continue;
    for (const isLittle of [true, false]) {
      for (const stored of [header.stored, checksum(header.bytes, 0, 24, isLittle, [0, 0])]) {
        let commits = 0;
        let isOwn = false;
        for (const frame of framesOf(descriptor, { pageBytes, isLittle, stored })) {
          if (frame.fits && frame.offset === HEADER_BYTES) isOwn = true;
          if (frame.fits && frame.isCommit) commits++;
        }
        if (commits >= (isOwn ? 1 : 2)) return { offset: 0, commits };
      }
    }
  }
  return null;
}

/** All whole frames, until the caller stops. */
function* framesOf(descriptor: number, { pageBytes, isLittle, stored: first }: Layout): Iterable<Frame> {
  const frameBytes = FRAME_HEADER_BYTES + pageBytes;
  const { size } = fstatSync(descriptor);
  const buffer = Buffer.alloc(Math.max(1, Math.floor(CHUNK_BYTES / frameBytes)) * frameBytes);
  const view = viewOf(buffer);
  let before = first;
  for (let start = HEADER_BYTES; start + frameBytes <= size; start += buffer.length) {
    const bytes = readSync(descriptor, buffer, 0, buffer.length, start);
    for (let at = 0; at + frameBytes <= bytes; at += frameBytes) {
      const stored = pairAt(view, at + 16);
      const sum = checksum(view, at, 8, isLittle, before);
      const fits = isSame(checksum(view, at + FRAME_HEADER_BYTES, pageBytes, isLittle, sum), stored);
      const page = view.getUint32(at);
      const isCommit = page !== 0 && view.getUint32(at + 4) !== 0;
      yield { offset: start + at, salts: pairAt(view, at + 8), page, isCommit, fits };
      before = stored;
    }
  }
}

function checksum(view: DataView, from: number, length: number, isLittle: boolean, start: Sum): Sum {
  let [one, two] = start;
  for (let at = from; at < from + length; at += 8) {
    one = (one + view.getUint32(at, isLittle) + two) | 0;
    two = (two + view.getUint32(at + 4, isLittle) + one) | 0;
  }
  return [one >>> 0, two >>> 0];
}

function hasSalts(frame: Frame, header: Header): boolean {
  return isSame(frame.salts, header.salts);
}

function isPageSize(bytes: number): boolean {
  return bytes >= 512 && bytes <= 65_536 && (bytes & (bytes - 1)) === 0;
}

function viewOf(buffer: Buffer): DataView {
  return new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength);
}

function pairAt(view: DataView, at: number): Sum {
  return [view.getUint32(at), view.getUint32(at + 4)];
}

function isSame(a: Sum, b: Sum): boolean {
  return a[0] === b[0] && a[1] === b[1];
}
