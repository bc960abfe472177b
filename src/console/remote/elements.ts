import { get, path, read, urlOf } from '../api.ts';
import { bytesOfText, textOfBytes } from './header-text.ts';
import type { QueueNamed } from './live.ts';

export type ElementState = 'ready' | 'scheduled' | 'reserved';

/** An element as a list shows it. */
export interface ListedElement {
  readonly id: string;
  readonly state: ElementState;
  readonly mature: string;
  readonly insertedAt: string;
  readonly expiresAt: string | null;
  readonly tries: number;
  readonly reason: string | null;
  readonly bytes: number;
  readonly contentType: string | null;
  readonly headers: Readonly<Record<string, string>>;
  readonly holder: {
    readonly tid: string | null;
    readonly user: string | null;
    readonly since: string;
    readonly until: string;
  } | null;
  readonly text?: string;
  readonly base64?: string;
  readonly truncated: boolean;
}

export interface ElementPage {
  readonly elements: readonly ListedElement[];
  readonly next: string | null;
  readonly looked: number;
  readonly failed: number;
  readonly error: { readonly id: string; readonly message: string } | null;
}

/** Which elements of a queue a list shows. */
export interface ListFilter {
  readonly state: ElementState | null;
  readonly group: string | null;
  /** As it was typed: words, or a selector. */
  readonly search: string;
}

export const PAGE = 100;

/** The selector of elements that have a header with this value; null: that have none of this name. */
export function havingHeader(name: string, value: string | null): string {
  return `env => env.msg.hdrs[${JSON.stringify(name)}] === ${value === null ? 'undefined' : JSON.stringify(value)}`;
}

/** Of a body that is neither JSON nor text, only so much is searched: more would exceed the limits of a selector. */
const SEARCHED_BYTES = 1_048_576;

/** JSON as a selector writes it again: without white space around what joins its values. */
function compactJson(text: string): string {
  return text.replace(
    /("(?:[^"\\]|\\.)*")|\s*([:,{}[\]])\s*/g,
    (_, quoted: string | undefined, joint: string) => quoted ?? joint,
  );
}

/**
 * What a search means to the server: a selector as it is, other text as a part of the id, a header or the body. A
 * selector sees a body that is neither JSON nor text as bytes; they are compared with those of the text in UTF-8, since
 * the sandbox has no decoder.
 */
export function selectorOf(search: string, hidesBodies: boolean): string | null {
  const text = search.trim();
  if (text === '') return null;
  if (/\benv\b/.test(text)) return text;
  const plain = text.toLowerCase();
  const head = `env => { const has = (t, q) => t.toLowerCase().includes(q), q = ${JSON.stringify(plain)};
if ([env.msg.id, ...Object.entries(env.msg.hdrs).flat()].some((t) => has(t, q))) return true;`;
  if (hidesBodies) return `${head} return false }`;
  // In JSON, quotes and line ends within a string are escaped.
  const escaped = JSON.stringify(plain).slice(1, -1);
  const inJson = JSON.stringify([...new Set([plain, escaped, compactJson(plain)])]);
  return `${head}
const b = env.msg.payload;
if (typeof b === "string") return has(b, q);
if (!(b instanceof Uint8Array)) { const t = JSON.stringify(b); return ${inJson}.some((q) => has(t, q)) }
let t = "";
for (let i = 0; i < Math.min(b.length, ${SEARCHED_BYTES}); i += 4096) t += String.fromCharCode(...b.subarray(i, i + 4096));
return has(t, ${JSON.stringify(bytesOfText(text).toLowerCase())}) }`;
}

export function listElements(
  { ns, queue }: QueueNamed,
  { state, group, search }: ListFilter,
  options: { readonly after: string | null; readonly hidesBodies: boolean; readonly signal: AbortSignal },
): Promise<ElementPage> {
  const { after, hidesBodies, signal } = options;
  return get<ElementPage>(path('q', ns, queue, 'elements'), {
    query: { state, group, after, limit: PAGE, where: selectorOf(search, hidesBodies) },
    signal,
  });
}

/** One element as a list shows it; null: it is not there. */
export async function listedElement(
  { ns, queue }: QueueNamed,
  id: string,
  group: string | null,
  signal: AbortSignal,
): Promise<ListedElement | null> {
  const query = { id, group, body: 'none' };
  const { elements } = await get<ElementPage>(path('q', ns, queue, 'elements'), { query, signal });
  return elements[0] ?? null;
}

/** An element with its body, as far as that was read. */
export interface WholeElement {
  readonly state: ElementState;
  readonly mature: string | null;
  readonly insertedAt: string | null;
  readonly leaseUntil: string | null;
  readonly tries: number;
  readonly contentType: string | null;
  readonly headers: readonly (readonly [string, string])[];
  readonly body: Uint8Array<ArrayBuffer>;
  readonly isCut: boolean;
  /** Whether the browser could not undo its content encoding. */
  readonly isUnreadable: boolean;
}

/** A longer body is shown as far as this; it can be downloaded whole. */
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
      // A body that is not encoded as its header says ends like a connection that is lost; all else is known of it.
      if (signal.aborted || !headers.has('content-encoding')) throw error;
      return { body: new Uint8Array(), isCut: false, isUnreadable: true };
    });
    return {
      state: (headers.get('x-ks-state') ?? 'ready') as ElementState,
      mature: headers.get('x-ks-mature'),
      insertedAt: headers.get('x-ks-inserted'),
      leaseUntil: headers.get('x-ks-lease-until'),
      tries: Number(headers.get('x-ks-tries') ?? 0),
      contentType: headers.get('content-type'),
      headers: [...headers]
        .filter(([name]) => name.startsWith(HEADER_PREFIX))
        .map(([name, value]) => [name.slice(HEADER_PREFIX.length), textOfBytes(value)] as const),
      isUnreadable: false,
      ...body,
    };
  });
}

/** Reads no more of a body than is shown: a large one must not fill the tab. */
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
    const room = part.subarray(0, body.length - at);
    body.set(room, at);
    at += room.length;
  }
  return { body, isCut: length > MAX_BODY_BYTES };
}
