// AMQP 1.0 encoded by hand: the bytes that tests send must not depend on any library.

/** An encoded value. */
export type Wire = Buffer;

export const NULL: Wire = Buffer.from([0x40]);
export const TRUE: Wire = Buffer.from([0x41]);
export const FALSE: Wire = Buffer.from([0x42]);

const u32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
};

export function bytes(...values: (number | Buffer)[]): Buffer {
  return Buffer.concat(values.map((value) => (typeof value === 'number' ? Buffer.from([value]) : value)));
}

/** In the shortest encoding, as most clients send it. */
export function uint(value: number): Wire {
  if (value === 0) return bytes(0x43);
  return value < 256 ? bytes(0x52, value) : bytes(0x70, u32(value));
}

export function uint32(value: number): Wire {
  return bytes(0x70, u32(value));
}

export function ushort(value: number): Wire {
  return bytes(0x60, value >> 8, value & 255);
}

export function ubyte(value: number): Wire {
  return bytes(0x50, value);
}

export function smallUlong(value: number): Wire {
  return bytes(0x53, value);
}

function sized(code8: number, code32: number, content: Buffer): Wire {
  return content.length < 256
    ? bytes(code8, content.length, content)
    : bytes(code32, u32(content.length), content);
}

export function str(text: string | Buffer): Wire {
  return sized(0xa1, 0xb1, Buffer.from(text));
}

export function sym(text: string): Wire {
  return sized(0xa3, 0xb3, Buffer.from(text, 'latin1'));
}

export function bin(content: string | Buffer): Wire {
  return sized(0xa0, 0xb0, Buffer.from(content));
}

export function list8(...fields: Wire[]): Wire {
  const content = Buffer.concat(fields);
  return bytes(0xc0, content.length + 1, fields.length, content);
}

export function list32(...fields: Wire[]): Wire {
  const content = Buffer.concat(fields);
  return bytes(0xd0, u32(content.length + 4), u32(fields.length), content);
}

/** @param entries alternating keys and values */
export function map8(...entries: Wire[]): Wire {
  const content = Buffer.concat(entries);
  return bytes(0xc1, content.length + 1, entries.length, content);
}

export function map32(...entries: Wire[]): Wire {
  const content = Buffer.concat(entries);
  return bytes(0xd1, u32(content.length + 4), u32(entries.length), content);
}

/** @param values without their format codes */
export function array8(code: number, ...values: Buffer[]): Wire {
  const content = Buffer.concat(values);
  return bytes(0xe0, content.length + 2, values.length, code, content);
}

/** An array32 with any size, count and content. */
export function array32(size: number, count: number, ...rest: (number | Buffer)[]): Wire {
  return bytes(0xf0, u32(size), u32(count), ...rest);
}

export function described(descriptor: number | string, value: Wire): Wire {
  return bytes(0, typeof descriptor === 'number' ? smallUlong(descriptor) : sym(descriptor), value);
}

export const PERFORMATIVES = {
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
export type Performative = keyof typeof PERFORMATIVES;

/** A frame with any body, valid or not. */
export function rawFrame(type: number, channel: number, body: Buffer, doff = 2): Buffer {
  return bytes(u32(8 + body.length), doff, type, channel >> 8, channel & 255, body);
}

/** An AMQP frame. Undefined fields become null. */
export function frame(
  name: Performative,
  fields: readonly (Wire | undefined)[] = [],
  { channel = 0, payload = Buffer.alloc(0) }: { channel?: number; payload?: Buffer } = {},
): Buffer {
  const values = fields.map((field) => field ?? NULL);
  const content = values.reduce((sum, { length }) => sum + length, 0);
  const list = values.length === 0 ? bytes(0x45) : content < 250 ? list8(...values) : list32(...values);
  return rawFrame(0, channel, bytes(described(PERFORMATIVES[name], list), payload));
}

export const AMQP = Buffer.from('AMQP\0\x01\0\0', 'latin1');
export const SASL = Buffer.from('AMQP\x03\x01\0\0', 'latin1');
export const HEART_BEAT = rawFrame(0, 0, Buffer.alloc(0));

/** @param response null: no initial response */
export function saslInit(mechanism: string, response: string | null): Buffer {
  return rawFrame(1, 0, described(0x41, list8(sym(mechanism), response === null ? NULL : bin(response))));
}

export function plain(user: string, password: string, as = ''): Buffer {
  return saslInit('PLAIN', `${as}\0${user}\0${password}`);
}

/** A body of one data section. */
export function dataSection(body: string | Buffer): Buffer {
  return described(0x75, bin(body));
}

export const open = (...more: (Wire | undefined)[]): Buffer => frame('open', [str('client'), ...more]);

export const begin = (channel = 0, ...more: (Wire | undefined)[]): Buffer =>
  frame('begin', [undefined, uint(0), uint(2048), uint(2048), ...more], { channel });

interface Attached {
  readonly name?: string;
  readonly handle?: number;
  readonly channel?: number;
  readonly address?: string;
}

/** An attach of a link on which the client sends. */
export function attachSender({
  name = 'l',
  handle = 0,
  channel = 0,
  address = 'N/q',
}: Attached = {}): Buffer {
  const source = described(0x28, list8());
  const target = described(0x29, list8(str(address)));
  const fields = [str(name), uint(handle), FALSE, ubyte(2), ubyte(0), source, target, NULL, NULL, uint(0)];
  return frame('attach', fields, { channel });
}

/** An attach of a link on which the client receives. */
export function attachReceiver({
  name = 'l',
  handle = 0,
  channel = 0,
  address = 'N/q',
  distributionMode,
}: Attached & { readonly distributionMode?: string } = {}): Buffer {
  const fields = distributionMode === undefined ? [] : [NULL, NULL, NULL, NULL, NULL, sym(distributionMode)];
  const source = described(0x28, list8(str(address), ...fields));
  const target = described(0x29, list8());
  return frame('attach', [str(name), uint(handle), TRUE, ubyte(2), ubyte(0), source, target], { channel });
}

/** A flow that grants credit to a link on which the client receives. */
export function credit(handle: number, count: number, channel = 0): Buffer {
  const fields = [uint(0), uint(2048), uint(0), uint(2048), uint(handle), uint(0), uint(count)];
  return frame('flow', fields, { channel });
}

interface Transferred {
  readonly handle?: number;
  readonly id?: number;
  readonly more?: boolean;
  readonly settled?: boolean;
  readonly channel?: number;
}

/** The first transfer of a delivery. */
export function transfer(
  payload: Buffer,
  { handle = 0, id = 0, more = false, settled = false, channel = 0 }: Transferred = {},
): Buffer {
  const fields = [
    uint(handle),
    uint(id),
    bin(`t${id}`),
    uint(0),
    settled ? TRUE : FALSE,
    more ? TRUE : FALSE,
  ];
  return frame('transfer', fields, { channel, payload });
}

/** A further transfer of a delivery. */
export function furtherTransfer(payload: Buffer, more: boolean, handle = 0): Buffer {
  const fields = [uint(handle), undefined, undefined, undefined, undefined, more ? TRUE : FALSE];
  return frame('transfer', fields, { payload });
}

export const ACCEPTED = described(0x24, bytes(0x45));

/** Settles deliveries that the client received, with the given state. */
export function disposition(first: number, last: number, state: Wire | undefined = ACCEPTED): Buffer {
  return frame('disposition', [TRUE, uint(first), uint(last), TRUE, state]);
}

export const detach = (handle = 0, channel = 0): Buffer => frame('detach', [uint(handle), TRUE], { channel });
export const end = (channel = 0): Buffer => frame('end', [], { channel });
export const close = (): Buffer => frame('close');
