import { CODE } from '../core/codes.ts';
import { ProtocolError } from '../core/protocol-error.ts';
import { ValueChecker } from '../core/value-checker.ts';

/** Values of bodies may be nested deeper than those of frames, and are bounded by their bytes alone. */
const checker = new ValueChecker({ depth: 32, values: Number.POSITIVE_INFINITY });

/** The end of the encoded value at `at`; null if there is none that is well-formed. */
export function valueEnd(bytes: Buffer, at: number): number | null {
  checker.reset(bytes.length - at);
  try {
    return checker.skip(bytes, at, bytes.length);
  } catch (error) {
    if (error instanceof ProtocolError) return null;
    throw error;
  }
}

/** Encoded lists that follow each other, one by one; null if the bytes are anything else, or more lists than `max`. */
export function listsIn(bytes: Buffer, max: number): Buffer[] | null {
  const lists: Buffer[] = [];
  for (let at = 0; at < bytes.length; ) {
    if (lists.length >= max) return null;
    const end = isList(bytes[at]) ? valueEnd(bytes, at) : null;
    if (end === null) return null;
    lists.push(bytes.subarray(at, end));
    at = end;
  }
  return lists.length === 0 ? null : lists;
}

function isList(code: number | undefined): boolean {
  return code === CODE.list0 || code === CODE.list8 || code === CODE.list32;
}
