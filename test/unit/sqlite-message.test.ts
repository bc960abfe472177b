import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { MessageReader, MessageWriter } from '../../src/engines/sqlite/message.ts';

/** Around the size from which a body travels in its own memory. */
const LENGTHS = [0, 1, 46, 16_383, 16_384, 16_385, 70_000];

const items = fc.oneof(
  fc.record({
    kind: fc.constant('value' as const),
    value: fc.oneof(fc.integer(), fc.string(), fc.constant(null)),
  }),
  fc.record({ kind: fc.constant('flag' as const), value: fc.boolean() }),
  fc.record({ kind: fc.constant('body' as const), value: fc.constantFrom(...LENGTHS), fill: fc.nat(255) }),
);
type Item = typeof items extends fc.Arbitrary<infer T> ? T : never;

function write(writer: MessageWriter, item: Item): void {
  if (item.kind === 'value') writer.value(item.value);
  else if (item.kind === 'flag') writer.flag(item.value);
  else writer.body(bodyOf(item.value, item.fill));
}

/** A view into a larger array, as bodies from a socket are. */
function bodyOf(length: number, fill: number): Uint8Array {
  return new Uint8Array(length + 2).fill(fill).subarray(1, length + 1);
}

function assertReads(reader: MessageReader, item: Item): void {
  if (item.kind === 'flag') assert.equal(reader.flag(), item.value);
  else if (item.kind === 'body')
    assert.deepEqual(Buffer.from(reader.body()), Buffer.from(bodyOf(item.value, item.fill)));
  else if (item.value === null) assert.equal(reader.textOrNull(), null);
  else if (typeof item.value === 'string') assert.equal(reader.text(), item.value);
  else assert.equal(reader.number(), item.value);
}

describe('messages between the SQLite engine and its thread', () => {
  it('carry a large body once, however many elements have it', () => {
    const writer = new MessageWriter();
    const body = bodyOf(70_000, 7);
    for (let i = 0; i < 100; i += 1) writer.body(body);
    const { message, transfer } = writer.pack(false);
    assert.equal(transfer.length, 1);
    const reader = new MessageReader(structuredClone(message, { transfer }));
    for (let i = 0; i < 100; i += 1) assert.deepEqual(Buffer.from(reader.body()), Buffer.from(body));
  });

  it('are read as they were written, after the copy that a thread border makes', () => {
    fc.assert(
      fc.property(fc.array(items, { maxLength: 12 }), fc.boolean(), (written, owned) => {
        const writer = new MessageWriter();
        for (const item of written) write(writer, item);
        const { message, transfer } = writer.pack(owned);
        const reader = new MessageReader(structuredClone(message, { transfer }));
        for (const item of written) assertReads(reader, item);
      }),
    );
  });

  it('forget a call that failed half-way, and may be read from any call on', () => {
    const calls = fc.array(items, { maxLength: 5 });
    fc.assert(
      fc.property(calls, calls, calls, (first, failed, last) => {
        const writer = new MessageWriter();
        for (const item of first) write(writer, item);
        const at = writer.position();
        const bytes = writer.byteLength;
        for (const item of failed) write(writer, item);
        writer.rewind(at);
        assert.equal(writer.byteLength, bytes);
        assert.deepEqual(writer.position(), at);
        for (const item of last) write(writer, item);
        const reader = new MessageReader(writer.pack(false).message);
        for (let round = 0; round < 2; round++) {
          reader.seek(at.value, at.byte, at.large);
          for (const item of last) assertReads(reader, item);
        }
      }),
    );
  });

  it('leave the memory of bodies alone that are not theirs to give', () => {
    const body = new Uint8Array(20_000).fill(7);
    const writer = new MessageWriter();
    writer.body(body);
    const { message, transfer } = writer.pack(false);
    structuredClone(message, { transfer });
    assert.equal(body.byteLength, 20_000);
  });
});
