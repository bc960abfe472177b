/** The performatives of AMQP 1.0, by the number of their descriptor. */
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

/** Other described lists that performatives carry. */
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

/** SASL frames (security, 5.3.3). */
export const SASL = { mechanisms: 0x40, init: 0x41, challenge: 0x42, response: 0x43, outcome: 0x44 } as const;

const NAMED: ReadonlyMap<string, number> = new Map([
  ...Object.entries({ ...PERFORMATIVE, ...DESCRIBED }).map(([name, code]): [string, number] => [
    `amqp:${name}:list`,
    code,
  ]),
  ...Object.entries(SASL).map(([name, code]): [string, number] => [`amqp:sasl-${name}:list`, code]),
  ['amqp:transactional-state:list', DESCRIBED.transactionalState],
]);

/** The number of a descriptor, which may be its symbol; -1 if it is unknown. */
export function descriptorNumber(descriptor: number | string): number {
  return typeof descriptor === 'number' ? descriptor : (NAMED.get(descriptor) ?? -1);
}
