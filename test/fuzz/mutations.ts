import fc from 'fast-check';

/** Changes bytes as a defective client, a defective network or an attacker might. */
export interface Mutation {
  apply(bytes: Buffer): Buffer;
  /** For failure reports. */
  toString(): string;
}

const PLACES = 2 ** 20;

/**
 * A position in bytes of any length, as a share of the length, uniformly distributed; `fc.double` is nearly always
 * close to 0.
 */
export const place = fc.noBias(fc.nat(PLACES - 1)).map((which) => which / PLACES);

function mutation(name: string, apply: (bytes: Buffer) => Buffer): Mutation {
  return { apply, toString: () => name };
}

const at = (bytes: Buffer, share: number): number => Math.floor(share * bytes.length);

const flip = fc.tuple(place, fc.nat(7)).map(([share, bit]) =>
  mutation(`flip(${share}, ${bit})`, (bytes) => {
    const changed = Buffer.from(bytes);
    const index = at(bytes, share);
    if (index < changed.length) changed[index] = (changed[index] ?? 0) ^ (1 << bit);
    return changed;
  }),
);

const drop = fc.tuple(place, fc.nat(40)).map(([share, length]) =>
  mutation(`drop(${share}, ${length})`, (bytes) => {
    const index = at(bytes, share);
    return Buffer.concat([bytes.subarray(0, index), bytes.subarray(index + length)]);
  }),
);

const insert = fc.tuple(place, fc.uint8Array({ minLength: 1, maxLength: 40 })).map(([share, more]) =>
  mutation(`insert(${share}, ${Buffer.from(more).toString('hex')})`, (bytes) => {
    const index = at(bytes, share);
    return Buffer.concat([bytes.subarray(0, index), more, bytes.subarray(index)]);
  }),
);

/** Inserts a copy of a part somewhere else: frames within frames, lengths within lengths. */
const nest = fc.tuple(place, place, fc.nat(600)).map(([from, to, length]) =>
  mutation(`nest(${from}, ${to}, ${length})`, (bytes) => {
    const start = at(bytes, from);
    const index = at(bytes, to);
    const part = bytes.subarray(start, start + length);
    return Buffer.concat([bytes.subarray(0, index), part, bytes.subarray(index)]);
  }),
);

const repeat = fc.tuple(place, fc.nat(60), fc.integer({ min: 2, max: 300 })).map(([share, length, times]) =>
  mutation(`repeat(${share}, ${length}, ${times})`, (bytes) => {
    const index = at(bytes, share);
    const part = bytes.subarray(index, index + length);
    return Buffer.concat([bytes.subarray(0, index), ...Array(times).fill(part), bytes.subarray(index)]);
  }),
);

const cut = place.map((share) => mutation(`cut(${share})`, (bytes) => bytes.subarray(0, at(bytes, share))));

/** One to four changes, most of them small, so that the bytes after them are still processed. */
export function mutations(...more: fc.Arbitrary<Mutation>[]): fc.Arbitrary<Mutation[]> {
  const small = [flip, drop, insert, nest, ...more].map((arbitrary) => ({ weight: 3, arbitrary }));
  const one = fc.oneof(...small, { weight: 1, arbitrary: repeat }, { weight: 1, arbitrary: cut });
  return fc.array(one, { minLength: 1, maxLength: 4 });
}

export function mutated(bytes: Buffer, changes: readonly Mutation[]): Buffer {
  return changes.reduce((before, change) => change.apply(before), bytes);
}

/** Where to split bytes into writes. */
export const breaks: fc.Arbitrary<number[]> = fc.array(place, { maxLength: 3 });

export function pieces(bytes: Buffer, shares: readonly number[]): Buffer[] {
  const ends = [...shares.map((share) => at(bytes, share)).sort((a, b) => a - b), bytes.length];
  return ends.map((end, i) => bytes.subarray(ends[i - 1] ?? 0, end)).filter((piece) => piece.length > 0);
}

const CUTS_AT_ONCE = 32;
/** `npm run test:fuzz` cuts a session at every byte, `npm test` at every eighth one, with a random offset per run. */
const CUT_EVERY = process.env.FUZZ_FRAMES === undefined ? 8 : 1;
/** For test names. */
export const CUT_AT = CUT_EVERY === 1 ? 'at every byte' : `at one byte in ${CUT_EVERY}`;

/** The byte counts after which a session of this length is cut, in groups for concurrent use. */
export function* cuts(length: number): Generator<number[]> {
  const first = Math.floor(Math.random() * CUT_EVERY);
  const all = Array.from(
    { length: Math.ceil((length + 1 - first) / CUT_EVERY) },
    (_, i) => first + i * CUT_EVERY,
  );
  for (let from = 0; from < all.length; from += CUTS_AT_ONCE) yield all.slice(from, from + CUTS_AT_ONCE);
}

/**
 * Event-loop turns within which a server in this process has answered. Client, server and store share this event loop,
 * so turns count instead of time: 2 ms were sometimes one turn on a busy machine, and receivers disconnected before
 * they received anything. Six turns are enough.
 */
export const TURNS_TO_ANSWER = 20;

export async function turns(count: number): Promise<void> {
  for (let i = 0; i < count; i++) await new Promise(setImmediate);
}
