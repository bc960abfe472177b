/** Format codes: the first byte of an encoded value (types, 1.2). */

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

/** Numeric descriptors of the performatives (transport, 2.7). */
export const PERFORMATIVE = {
  open: 0x10,
  begin: 0x11,
  attach: 0x12,
  flow: 0x13,
  transfer: 0x14,
  disposition: 0x15,
  detach: 0x16,
  end: 0x17,
  close: 0x18,
} as const;

/** Numeric descriptors of other described lists in performatives. */
export const DESCRIBED = {
  error: 0x1d,
  received: 0x23,
  accepted: 0x24,
  rejected: 0x25,
  released: 0x26,
  modified: 0x27,
  source: 0x28,
  target: 0x29,
  coordinator: 0x30,
  transactionalState: 0x34,
} as const;

/** Numeric descriptors of SASL frames (security, 5.3.3). */
export const SASL = { mechanisms: 0x40, init: 0x41, challenge: 0x42, response: 0x43, outcome: 0x44 } as const;

const NAMED: ReadonlyMap<string, number> = new Map([
  ...Object.entries({ ...PERFORMATIVE, ...DESCRIBED }).map(([name, code]): [string, number] => [
    `amqp:${name}:list`,
    code,
  ]),
  ...Object.entries(SASL).map(([name, code]): [string, number] => [`amqp:sasl-${name}:list`, code]),
  ['amqp:transactional-state:list', DESCRIBED.transactionalState],
]);

/** The number of a descriptor that is a number or a symbol; -1 for an unknown symbol. */
export function descriptorNumber(descriptor: number | string): number {
  return typeof descriptor === 'number' ? descriptor : (NAMED.get(descriptor) ?? -1);
}
