// The first byte of an encoded value (types, 1.2).

export const CODE = {
  described: 0x00,
  null: 0x40,
  true: 0x41,
  false: 0x42,
  uint0: 0x43,
  ulong0: 0x44,
  list0: 0x45,
  ubyte: 0x50,
  smallUint: 0x52,
  smallUlong: 0x53,
  boolean: 0x56,
  ushort: 0x60,
  uint: 0x70,
  decimal32: 0x74,
  ulong: 0x80,
  timestamp: 0x83,
  binary8: 0xa0,
  string8: 0xa1,
  symbol8: 0xa3,
  binary32: 0xb0,
  string32: 0xb1,
  symbol32: 0xb3,
  list8: 0xc0,
  map8: 0xc1,
  list32: 0xd0,
  map32: 0xd1,
  array8: 0xe0,
  array32: 0xf0,
} as const;

/** What follows a code. */
export const SHAPE = { none: 0, fixed: 1, variable: 2, compound: 3, array: 4 } as const;

/** The shape of each code; 0 if it is unknown. */
export const shapeOf = new Uint8Array(256);
/** Bytes of a fixed value, or of the size (and of the count) before another one. */
export const widthOf = new Uint8Array(256);

const DEFINED: readonly [shape: number, width: number, codes: readonly number[]][] = [
  [SHAPE.fixed, 0, [0x40, 0x41, 0x42, 0x43, 0x44, 0x45]],
  [SHAPE.fixed, 1, [0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56]],
  [SHAPE.fixed, 2, [0x60, 0x61]],
  [SHAPE.fixed, 4, [0x70, 0x71, 0x72, 0x73, 0x74]],
  [SHAPE.fixed, 8, [0x80, 0x81, 0x82, 0x83, 0x84]],
  [SHAPE.fixed, 16, [0x94, 0x98]],
  [SHAPE.variable, 1, [0xa0, 0xa1, 0xa3]],
  [SHAPE.variable, 4, [0xb0, 0xb1, 0xb3]],
  [SHAPE.compound, 1, [0xc0, 0xc1]],
  [SHAPE.compound, 4, [0xd0, 0xd1]],
  [SHAPE.array, 1, [0xe0]],
  [SHAPE.array, 4, [0xf0]],
];

for (const [shape, width, codes] of DEFINED) {
  for (const code of codes) {
    shapeOf[code] = shape;
    widthOf[code] = width;
  }
}
