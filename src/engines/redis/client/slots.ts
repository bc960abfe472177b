/** Slots of a cluster, as its specification defines them. */
export const SLOTS = 16_384;

const CRC16_POLYNOMIAL = 0x1021;

const TABLE = Uint16Array.from({ length: 256 }, (_, byte) => {
  let crc = byte << 8;
  for (let bit = 0; bit < 8; bit++) {
    crc = (crc & 0x8000) !== 0 ? (crc << 1) ^ CRC16_POLYNOMIAL : crc << 1;
  }
  return crc;
});

/** Slots that were asked for before: the same few keys are named at every call. */
const known = new Map<string, number>();
const MOST_KNOWN = 10_000;

/** The slot of a key: of its hash tag where it has one that is not empty. */
export function slotOf(key: string): number {
  let slot = known.get(key);
  if (slot === undefined) {
    slot = computeSlot(key);
    if (known.size >= MOST_KNOWN) known.clear();
    known.set(key, slot);
  }
  return slot;
}

function computeSlot(key: string): number {
  const open = key.indexOf('{');
  const close = open < 0 ? -1 : key.indexOf('}', open + 1);
  const hashed = close > open + 1 ? key.slice(open + 1, close) : key;
  let crc = 0;
  for (const byte of Buffer.from(hashed)) {
    crc = ((crc << 8) ^ (TABLE[((crc >> 8) ^ byte) & 0xff] ?? 0)) & 0xffff;
  }
  return crc % SLOTS;
}
