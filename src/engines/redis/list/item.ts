import type { Delivery, ElementContent } from '../../../model/element.ts';
import { PLAIN_GROUP } from '../../../model/element.ts';
import type { Reply } from '../client/connection.ts';
import { decodeContent, encodeContent } from '../content.ts';

/** What a list holds per element: maturity(6) tries(4) id(22), then the content. */
const HEAD_BYTES = 32;
export const ID_LENGTH = 22;

type StoredFields = ElementContent & Pick<Delivery, 'id' | 'matureAt' | 'tries'>;

export function encodeItem(fields: StoredFields): Buffer {
  const head = Buffer.alloc(HEAD_BYTES);
  head.writeUIntBE(fields.matureAt, 0, 6);
  head.writeUInt32BE(fields.tries, 6);
  head.write(fields.id, 10, ID_LENGTH, 'latin1');
  return Buffer.concat([head, encodeContent(fields)]);
}

export function decodeItem(item: Reply): Delivery {
  if (!Buffer.isBuffer(item)) throw new Error('a list holds something else than items');
  return {
    id: item.toString('latin1', 10, HEAD_BYTES),
    group: PLAIN_GROUP,
    matureAt: item.readUIntBE(0, 6),
    tries: item.readUInt32BE(6),
    lease: null,
    ...decodeContent(item, HEAD_BYTES),
  };
}

export function matureAtOf(item: Reply): number | null {
  return Buffer.isBuffer(item) ? item.readUIntBE(0, 6) : null;
}
