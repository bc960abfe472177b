import type { DeliveryState } from '../../model/element.ts';
import type { BrowsedElement, BrowsePage } from '../../model/records.ts';
import { get, path, read, urlOf } from '../api.ts';
import { fromByteString, toByteString } from './header-text.ts';
import type { QueueNamed } from './live.ts';

/** The filter of a list of elements. */
export interface ListFilter {
  readonly state: DeliveryState | null;
  readonly group: string | null;
  /** The user's input: text to search for, or a selector. */
  readonly search: string;
}

export const PAGE = 100;

/** Returns a selector of elements whose header has this value; null: that lack the header. */
export function havingHeader(name: string, value: string | null): string {
  return `env => env.msg.hdrs[${JSON.stringify(name)}] === ${value === null ? 'undefined' : JSON.stringify(value)}`;
}

/** How much of a binary body is searched: more would exceed the limits of a selector. */
const SEARCHED_BYTES = 1_048_576;

/** The use of a variable `env`, as in `env.msg` and `env => …`. Text such as `"env":"prod"` or `env=prod` has none. */
const USE_OF_ENV = /\benv\s*(?:\.|\?\.|\[|=>|\))/;

/** Removes white space between the tokens of JSON, as `JSON.stringify` does in the selector. */
function compactJson(text: string): string {
  return text.replace(
    /("(?:[^"\\]|\\.)*")|\s*([:,{}[\]])\s*/g,
    (_, quoted: string | undefined, joint: string) => quoted ?? joint,
  );
}

/**
 * Converts a search to a selector. Input that uses `env` is a selector; other input is searched for in the id, the
 * headers and the body. A selector receives a binary body as bytes, which are compared with the UTF-8 bytes of the
 * input because the sandbox has no decoder.
 */
export function selectorOf(search: string, hidesBodies: boolean): string | null {
  const text = search.trim();
  if (text === '') return null;
  if (USE_OF_ENV.test(text)) return text;
  const plain = text.toLowerCase();
  const head = `env => { const has = (t, q) => t.toLowerCase().includes(q), q = ${JSON.stringify(plain)};
if ([env.msg.id, ...Object.entries(env.msg.hdrs).flat()].some((t) => has(t, q))) return true;`;
  if (hidesBodies) return `${head} return false }`;
  // JSON escapes quotes and line ends in strings.
  const escaped = JSON.stringify(plain).slice(1, -1);
  const inJson = JSON.stringify([...new Set([plain, escaped, compactJson(plain)])]);
  return `${head}
const b = env.msg.payload;
if (typeof b === "string") return has(b, q);
if (!(b instanceof Uint8Array)) { const t = JSON.stringify(b); return ${inJson}.some((q) => has(t, q)) }
let t = "";
for (let i = 0; i < Math.min(b.length, ${SEARCHED_BYTES}); i += 4096) t += String.fromCharCode(...b.subarray(i, i + 4096));
return has(t, ${JSON.stringify(toByteString(text).toLowerCase())}) }`;
}

export function listElements(
  { ns, queue }: QueueNamed,
  { state, group, search }: ListFilter,
  options: { readonly after: string | null; readonly hidesBodies: boolean; readonly signal: AbortSignal },
): Promise<BrowsePage> {
  const { after, hidesBodies, signal } = options;
  return get<BrowsePage>(path('q', ns, queue, 'elements'), {
    query: { state, group, after, limit: PAGE, where: selectorOf(search, hidesBodies) },
    signal,
  });
}

/** Reads an element as in a list; null if it does not exist. */
export async function listedElement(
  { ns, queue }: QueueNamed,
  id: string,
  group: string | null,
  signal: AbortSignal,
): Promise<BrowsedElement | null> {
  const query = { id, group, body: 'none' };
  const { elements } = await get<BrowsePage>(path('q', ns, queue, 'elements'), { query, signal });
  return elements[0] ?? null;
}

/** An element with its body, or the first part of it. */
export interface WholeElement {
  readonly state: DeliveryState;
  readonly mature: string | null;
  readonly insertedAt: string | null;
  readonly leaseUntil: string | null;
  readonly tries: number;
  readonly contentType: string | null;
  readonly headers: readonly (readonly [string, string])[];
  readonly body: Uint8Array<ArrayBuffer>;
  readonly isCut: boolean;
  /** Whether the browser could not decode its content encoding. */
  readonly isUnreadable: boolean;
}

/** How much of a body is shown. A longer one can be downloaded. */
export const MAX_BODY_BYTES = 1_048_576;

const HEADER_PREFIX = 'x-ks-hdr-';

export function elementPath({ ns, queue }: QueueNamed, id: string): string {
  return path('q', ns, queue, 'elements', id);
}

export function downloadUrl(of: QueueNamed, id: string, group: string | null): string {
  const url = urlOf(elementPath(of, id));
  if (group !== null) url.searchParams.set('group', group);
  return url.href;
}

export function readElement(
  of: QueueNamed,
  id: string,
  group: string | null,
  signal: AbortSignal,
): Promise<WholeElement> {
  return read(elementPath(of, id), { query: { group }, signal }, async (headers, pieces) => {
    const body = await readBody(pieces).catch((error: unknown) => {
      // A body with a wrong content encoding fails like a lost connection. Show the rest of the element.
      if (signal.aborted || !headers.has('content-encoding')) throw error;
      return { body: new Uint8Array(), isCut: false, isUnreadable: true };
    });
    return {
      state: (headers.get('x-ks-state') ?? 'ready') as DeliveryState,
      mature: headers.get('x-ks-mature'),
      insertedAt: headers.get('x-ks-inserted'),
      leaseUntil: headers.get('x-ks-lease-until'),
      tries: Number(headers.get('x-ks-tries') ?? 0),
      contentType: headers.get('content-type'),
      headers: [...headers]
        .filter(([name]) => name.startsWith(HEADER_PREFIX))
        .map(([name, value]) => [name.slice(HEADER_PREFIX.length), fromByteString(value)] as const),
      isUnreadable: false,
      ...body,
    };
  });
}

/** Reads only what is shown of a body: a large one must not fill the tab's memory. */
async function readBody(
  pieces: AsyncIterable<Uint8Array>,
): Promise<{ body: Uint8Array<ArrayBuffer>; isCut: boolean }> {
  const parts: Uint8Array[] = [];
  let length = 0;
  for await (const part of pieces) {
    parts.push(part);
    length += part.length;
    if (length > MAX_BODY_BYTES) break;
  }
  const body = new Uint8Array(Math.min(length, MAX_BODY_BYTES));
  let at = 0;
  for (const part of parts) {
    const fitting = part.subarray(0, body.length - at);
    body.set(fitting, at);
    at += fitting.length;
  }
  return { body, isCut: length > MAX_BODY_BYTES };
}
