import type { Delivery, ElementContent, GroupName, Lease } from '../../model/element.ts';

/** What stands in the column `head`: content type, content encoding, then header names and values. */
type Head = readonly [contentType: string | null, contentEncoding: string | null, ...headers: string[]];

/** Elements of a queue mostly have the same head, so a few are kept on either way. */
const KEPT_HEADS = 256;
/** Longer ones are rarely alike, and not worth the memory. */
const KEPT_LENGTH = 200;

const encoded = new Map<string, Buffer>();
const decoded = new Map<string, DecodedHead>();

export interface DecodedHead {
  readonly contentType: string | null;
  readonly contentEncoding: string | null;
  readonly headers: readonly string[];
}

/**
 * Everything of an element but its body, as the bytes of one JSON text. JSON keeps each character as it
 * came, those included that PostgreSQL's text type does not know.
 */
export function encodeHead({ contentType, contentEncoding, headers }: ElementContent): Buffer {
  const head: Head = [contentType, contentEncoding, ...headers];
  const json = JSON.stringify(head);
  return json.length > KEPT_LENGTH ? Buffer.from(json) : kept(encoded, json, () => Buffer.from(json));
}

/** The head of a stored text. What is answered may be shared: nobody writes into it. */
function decodeHead(json: string): DecodedHead {
  const decode = (): DecodedHead => {
    const [contentType, contentEncoding, ...headers] = JSON.parse(json) as Head;
    return { contentType, contentEncoding, headers };
  };
  return json.length > KEPT_LENGTH ? decode() : kept(decoded, json, decode);
}

/** A body as PostgreSQL writes it in text: `\x` and two digits a byte. */
function decodeBody(hex: string): Buffer {
  return Buffer.from(hex.slice(2), 'hex');
}

/** A handed-out delivery from its stored parts. */
export function delivery(
  id: string,
  group: GroupName,
  { tries, matureAt, lease }: { tries: number; matureAt: number; lease: Lease | null },
  { head, body }: { head: string; body: string },
): Delivery {
  const { contentType, contentEncoding, headers } = decodeHead(head);
  return { id, group, tries, matureAt, lease, contentType, contentEncoding, headers, body: decodeBody(body) };
}

function kept<T>(cache: Map<string, T>, key: string, make: () => T): T {
  let value = cache.get(key);
  if (value === undefined) {
    value = make();
    if (cache.size >= KEPT_HEADS) cache.clear();
    cache.set(key, value);
  }
  return value;
}
