import { closeSync, fstatSync, openSync, readSync, statSync } from 'node:fs';
import { UNSYNCED_PAGE } from './schema.ts';

/**
 * Finds damage in a write-ahead log that is not in use. SQLite itself stops at the first invalid frame and silently
 * drops the rest, because it cannot know whether a crash tore the end of the log or a fault changed a bit.
 *
 * What follows the break shows the difference: once a commit is fsynced, all frames before it are on the disk, and the
 * next transaction starts only then. So a power loss tears at most one fsynced transaction, and the unsynced ones after
 * the last fsync, which only changed leases. Two fsynced commits at or after the break were both acknowledged, so the
 * break is damage. A break in the last fsynced transaction cannot be distinguished from a torn one. Unsynced
 * transactions are recognized by a page that no other transaction writes (`schema.ts`). SQLite writes the pages of a
 * transaction in ascending order, so a page number that does not increase starts another transaction, even if the
 * commit frame before it was lost.
 *
 * Format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log. A log is reused from its start with new salts,
 * so its end may be followed by valid frames of an earlier generation; those were checkpointed.
 */
interface LogDamage {
  /** Byte offset of the first invalid frame, or 0 for the header. */
  readonly offset: number;
  /** Fsynced commits at and after the break, which SQLite would drop. */
  readonly commits: number;
}

const HEADER_BYTES = 32;
const FRAME_HEADER_BYTES = 24;
const MAGIC = 0x377f0682;
const VERSION = 3_007_000;
/** The page size of the engine's files, which is tried if the one in the header is invalid. */
const USUAL_PAGE_BYTES = 4096;
/** Bytes read at a time. */
const CHUNK_BYTES = 1024 * 1024;

/** @returns null if the log is intact, ends in at most one torn transaction, or does not exist */
export function findLogDamage(log: string): LogDamage | null {
  return withLog(log, (descriptor, header) =>
    header.isSound ? damageInFrames(descriptor, header) : damageInHeader(descriptor, header),
  );
}

/** Whether the log contains a committed transaction, which cannot be read without its database file. */
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

/** What is needed to read the frames of a log. */
interface Layout {
  readonly pageBytes: number;
  readonly isLittle: boolean;
  /** The checksum in the header, which that of the first frame continues. */
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
  /** Whether it contains a page and is the last frame of its transaction. */
  readonly isCommit: boolean;
  /** Whether its checksum continues the one stored in the previous frame, or in the header. */
  readonly fits: boolean;
}

function withLog<T>(log: string, use: (descriptor: number, header: Header) => T): T | null {
  if ((statSync(log, { throwIfNoEntry: false })?.size ?? 0) <= HEADER_BYTES) return null;
  // SQLite does not lock the log itself, so closing this descriptor releases no lock of another connection.
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
    // At the break, a frame that continues the log except for its salts belongs to this log: its salts were changed.
    const isOurs = isSalted || (fits && offset === null);
    if (offset === null && !(isSalted && fits)) offset = frame.offset;
    if (!isOurs) continue;
    // The page number of the frame at the break may be what was changed.
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
 * Finds commits in a log with an invalid header, which SQLite ignores entirely. That loses nothing if a crash tore the
 * header, 32 bytes of one sector, while the log was restarted: the frames are of the generation before. They belong to
 * this header if the first one continues the checksum that it has or should have. The header may also be destroyed
 * altogether, so two commits whose frames continue each other count as damage, too.
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

/** Iterates over all complete frames. */
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
