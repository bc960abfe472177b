import fc from 'fast-check';
import {
  ACCEPTED,
  AMQP,
  array8,
  array32,
  attachReceiver,
  attachSender,
  begin,
  bin,
  bytes,
  close,
  credit,
  dataSection,
  described,
  detach,
  disposition,
  end,
  FALSE,
  frame,
  furtherTransfer,
  HEART_BEAT,
  list8,
  list32,
  map8,
  map32,
  NULL,
  open,
  plain,
  rawFrame,
  SASL,
  saslInit,
  smallUlong,
  str,
  sym,
  TRUE,
  transfer,
  ubyte,
  uint,
  uint32,
  ushort,
  type Wire,
} from '../amqp/wire.ts';
import { type Mutation, place } from './mutations.ts';

/** The bytes of a client: its login, then its frames. */
export interface Recorded {
  readonly name: string;
  readonly login: readonly Buffer[];
  readonly frames: readonly Buffer[];
}

const LOGIN: readonly Buffer[] = [SASL, plain('test', 'test'), AMQP];

const LONG = Buffer.alloc(700, 'long ');
const ANNOTATED = bytes(
  described(0x70, list8(TRUE, ubyte(4), uint(60_000), NULL, uint(2))),
  described(0x72, map8(sym('x-opt-delivery-time'), bytes(0x83, Buffer.alloc(8)))),
  described(0x73, list8(str('id'), NULL, NULL, str('subject'), NULL, uint(1), sym('text/plain'))),
  described(0x74, map8(str('x-ks-hdr-colour'), str('blue'), str('x-delta-t'), uint(5))),
  dataSection('annotated'),
);

const SENDS: readonly Buffer[] = [
  transfer(dataSection('one'), { id: 0 }),
  transfer(ANNOTATED, { id: 1, settled: true }),
  transfer(described(0x77, str('a string')), { id: 2 }),
  transfer(dataSection(LONG), { id: 3, more: true }),
  furtherTransfer(dataSection(LONG), true),
  furtherTransfer(dataSection('end'), false),
  transfer(described(0x76, list32(str('a'), uint(1), map32(str('k'), list8(NULL, TRUE)))), { id: 4 }),
];

const OUTCOMES: readonly Buffer[] = [
  disposition(0, 0),
  disposition(1, 1, described(0x26, list8())),
  disposition(2, 2, described(0x27, list8(TRUE, FALSE, map8(sym('x-why'), str('because'))))),
  disposition(3, 3, described(0x25, list8(described(0x1d, list8(sym('a:b'), str('no')))))),
  frame('disposition', [TRUE, uint(0), uint(3), TRUE, NULL, FALSE]),
];

const PROPERTIES = map32(
  sym('product'),
  str('fuzz'),
  sym('nested'),
  map8(sym('list'), list8(uint(1), list32(bin('x'), described(0x1234, list8())))),
  sym('array'),
  array8(0x50, bytes(1), bytes(2)),
);

const FULL_OPEN = open(
  str('here'),
  uint(65_536),
  ushort(9),
  uint32(30_000),
  sym('en-US'),
  array8(0xa3, bytes(2, Buffer.from('en'))),
  sym('a'),
  array8(0xa3, bytes(1, Buffer.from('b')), bytes(1, Buffer.from('c'))),
  PROPERTIES,
);

/** An attach with every field, in the long encodings. */
const FULL_ATTACH = rawFrame(
  0,
  1,
  bytes(
    0,
    sym('amqp:attach:list'),
    list32(
      bytes(0xb1, uint32(4).subarray(1), Buffer.from('full')),
      uint32(7),
      bytes(0x56, 1),
      ubyte(2),
      ubyte(1),
      described(
        'amqp:source:list',
        list32(
          str('/queue/S/fuzz'),
          uint(0),
          sym('session-end'),
          uint(0),
          FALSE,
          map8(),
          sym('move'),
          map8(sym('quayside:group'), described('quayside:group', str('G1'))),
          described('amqp:released:list', list8()),
          array8(0xa3, bytes(18, Buffer.from('amqp:accepted:list'))),
          sym('queue'),
        ),
      ),
      described('amqp:target:list', list32(NULL, uint(0))),
      map32(),
      FALSE,
      uint(0),
      smallUlong(200),
      sym('x'),
      sym('y'),
      PROPERTIES,
    ),
  ),
);

/** Sessions that contain every performative at least once. */
export const RECORDED: readonly Recorded[] = [
  {
    name: 'a sender',
    login: LOGIN,
    frames: [
      open(),
      begin(),
      attachSender({ address: 'N/fuzz' }),
      ...SENDS,
      frame('disposition', [FALSE, uint(0), uint(4), TRUE]),
      detach(),
      end(),
      close(),
    ],
  },
  {
    name: 'a receiver',
    login: [SASL, saslInit('PLAIN', null), rawFrame(1, 0, described(0x43, list8(bin('\0test\0test')))), AMQP],
    frames: [
      open(NULL, uint(512)),
      begin(),
      attachReceiver({ address: 'N/fuzz' }),
      credit(0, 4),
      ...OUTCOMES,
      HEART_BEAT,
      frame('flow', [uint(4), uint(2048), uint(0), uint(2048), uint(0), uint(4), uint(9), NULL, TRUE, TRUE]),
      detach(),
      close(),
    ],
  },
  {
    name: 'both, with every field',
    login: LOGIN,
    frames: [
      FULL_OPEN,
      begin(3, uint(9), sym('a'), sym('b'), PROPERTIES),
      begin(1),
      FULL_ATTACH,
      frame('flow', [uint(0), uint32(2048), uint(0), uint(9), uint(7), uint(0), uint(3)], { channel: 1 }),
      attachSender({ address: '/q/S/fuzz', handle: 9, name: 'full', channel: 3 }),
      transfer(ANNOTATED, { handle: 9, channel: 3 }),
      frame('disposition', [TRUE, uint(0), NULL, FALSE, ACCEPTED, TRUE], { channel: 1 }),
      detach(7, 1),
      attachReceiver({ address: 'N/fuzz', handle: 7, name: 'again', channel: 1 }),
      end(3),
      begin(3),
      frame('end', [described(0x1d, list8(sym('a:b'), str('why'), map8(sym('k'), NULL)))], { channel: 1 }),
      frame('close', [described('amqp:error:list', list32(sym('amqp:internal-error')))]),
    ],
  },
];

/** Numbers that are wrong or too large as a size or count. */
const NUMBERS = [0, 1, 7, 8, 255, 256, 2 ** 17 + 1, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1];

/** Overwrites four bytes with another number. */
export const otherNumber: fc.Arbitrary<Mutation> = fc
  .tuple(place, fc.constantFrom(...NUMBERS))
  .map(([share, number]) => ({
    apply(given) {
      if (given.length < 4) return given;
      const changed = Buffer.from(given);
      changed.writeUInt32BE(number, Math.floor(share * (given.length - 3)));
      return changed;
    },
    toString: () => `number(${share}, ${number})`,
  }));

const CODES = [
  0x00, 0x40, 0x41, 0x43, 0x44, 0x45, 0x50, 0x52, 0x53, 0x56, 0x60, 0x70, 0x74, 0x80, 0x83, 0x94, 0x98, 0xa0,
  0xa1, 0xa3, 0xb0, 0xb1, 0xb3, 0xc0, 0xc1, 0xd0, 0xd1, 0xe0, 0xf0, 0xff,
];

/** Overwrites one byte with a format code. */
export const otherCode: fc.Arbitrary<Mutation> = fc
  .tuple(place, fc.constantFrom(...CODES))
  .map(([share, code]) => ({
    apply(given) {
      const changed = Buffer.from(given);
      if (given.length > 0) changed[Math.floor(share * given.length)] = code;
      return changed;
    },
    toString: () => `code(${share}, ${code})`,
  }));

const deep = (levels: number, wrap: (inner: Wire) => Wire): Wire => {
  let value: Wire = NULL;
  for (let i = 0; i < levels; i++) value = wrap(value);
  return value;
};

/** Values that decode to far more than their bytes, or are nested or named to confuse a decoder. */
const BOMBS: readonly Wire[] = [
  array32(5, 2 ** 32 - 1, 0x40),
  array32(5, 2 ** 31, 0x45),
  array32(5, 4000, 0x41),
  list32(...Array<Wire>(50).fill(array32(5, 4000, 0x41))),
  deep(15, (inner) => list32(inner)),
  deep(40, (inner) => list32(inner)),
  deep(40, (inner) => map32(sym('k'), inner)),
  deep(40, (inner) => array32(4 + inner.length, 1, inner)),
  deep(40, (inner) => described(0x24, inner)),
  bytes(0xd0, uint32(5).subarray(1), uint32(2 ** 32 - 1).subarray(1), NULL),
  map8(str('__proto__'), map8(str('a'), NULL)),
  map8(map8(), NULL),
  described('constructor', list8()),
  described('toString', list8()),
  bytes(0, 0, 0, 0),
];

/** Replaces a field by such a value and corrects the sizes around it. */
export const otherField: fc.Arbitrary<Mutation> = fc
  .tuple(
    fc.nat(14),
    fc.constantFrom(...BOMBS, NULL, TRUE, uint(0), uint32(2 ** 32 - 1), str('x'), list8(), map8()),
  )
  .map(([which, value]) => ({
    apply: (given) => withField(given, which, value),
    toString: () => `field(${which}, ${value.toString('hex').slice(0, 40)})`,
  }));

/** Replaces a field of the frame's list by the value. A frame that cannot be decoded stays as it is. */
function withField(given: Buffer, which: number, value: Wire): Buffer {
  if (given.length < 13 || given[8] !== 0 || given[9] !== 0x53) return given;
  const fields = fieldsOf(given, 11);
  if (fields === null) return given;
  while (fields.values.length <= which) fields.values.push(NULL);
  fields.values[which] = value;
  const type = given[5] ?? 0;
  const body = bytes(given.subarray(8, 11), list32(...fields.values), given.subarray(fields.end));
  return rawFrame(type, given.readUInt16BE(6), body);
}

/** The encoded fields of a list8; null if it contains a value with a 32-bit size or an unknown code. */
function fieldsOf(given: Buffer, at: number): { values: Wire[]; end: number } | null {
  if (given[at] === 0x45) return { values: [], end: at + 1 };
  if (given[at] !== 0xc0) return null;
  const end = at + 2 + (given[at + 1] ?? 0);
  const values: Wire[] = [];
  for (let next = at + 3; next < end; ) {
    const after = valueEnd(given, next);
    if (after === null || after > end) return null;
    values.push(given.subarray(next, after));
    next = after;
  }
  return { values, end };
}

const WIDTHS: Readonly<Record<number, number>> = { 4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16 };

/** Counts the values still to come instead of recursing: mutations repeat the code of a described value thousands of times. */
function valueEnd(given: Buffer, from: number): number | null {
  let at = from;
  for (let left = 1; left > 0; ) {
    const code = given[at] ?? 0xff;
    if (code === 0) {
      // A described value is two values: its descriptor and the value itself.
      at += 1;
      left += 1;
      continue;
    }
    const width = WIDTHS[code >> 4];
    // Codes with one byte of length or size: strings, lists, maps, arrays.
    if (width === undefined && ![0xa, 0xc, 0xe].includes(code >> 4)) return null;
    at += width === undefined ? 2 + (given[at + 1] ?? 0) : 1 + width;
    left -= 1;
  }
  return at;
}
