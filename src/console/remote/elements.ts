import type { DeliveryState } from '../../model/element.ts';
import type { BrowsedElement, BrowsePage, QueueRecord } from '../../model/records.ts';
import { get, type QueueNamed, queuePath, read, urlOf } from '../api.ts';
import { named } from '../format.ts';
import { may } from '../session.ts';

/** The filter of a list of elements. */
export interface ListFilter {
  readonly state: DeliveryState | null;
  readonly group: string | null;
  /** The user's input: text to search for, or a selector. */
  readonly search: string;
}

const PAGE = 100;

/** Returns a selector of elements whose header has this value; null: that lack the header. */
export function havingHeader(name: string, value: string | null): string {
  return `env => env.msg.hdrs[${JSON.stringify(name)}] === ${value === null ? 'undefined' : JSON.stringify(value)}`;
}

/** Returns UTF-8 as browsers send and search it: each byte as a character. */
export function toByteString(text: string): string {
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join('');
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

interface ListOptions {
  readonly after: string | null;
  readonly hidesBodies: boolean;
  readonly signal?: AbortSignal;
}

export function listElements(
  of: QueueNamed,
  { state, group, search }: ListFilter,
  { after, hidesBodies, ...rest }: ListOptions,
): Promise<BrowsePage> {
  const query = { state, group, after, limit: PAGE, where: selectorOf(search, hidesBodies) };
  return get<BrowsePage>(queuePath(of, 'elements'), { query, ...rest });
}

/** Reads an element as in a list, without its body; null if it does not exist. */
export async function listedElement(
  of: QueueNamed,
  id: string,
  group: string | null,
  signal: AbortSignal,
): Promise<BrowsedElement | null> {
  const query = { id, group, body: 'none' };
  const { elements } = await get<BrowsePage>(queuePath(of, 'elements'), { query, signal });
  return elements[0] ?? null;
}

/** Returns the groups of a stream; null for a plain queue, and if the user may not read which groups there are. */
export async function groupsOf(of: QueueNamed, signal: AbortSignal): Promise<readonly string[] | null> {
  if (!may('read', of.ns)) return null;
  const { groups } = await get<QueueRecord>(queuePath(of, 'status'), { signal });
  return groups === undefined ? null : Object.keys(groups);
}

/** Maximum groups that are searched for an element, and how many of them at the same time. */
const MAX_LOOKED = 200;
const LOOKED_AT_ONCE = 10;

interface WaitingGroups {
  readonly groups: readonly string[];
  /** Whether all groups were searched. */
  readonly areAll: boolean;
}

/** Returns the groups of a stream that still have an element. */
export async function groupsWith(of: QueueNamed, id: string, signal: AbortSignal): Promise<WaitingGroups> {
  const all = (await groupsOf(of, signal)) ?? [];
  const looked = all.slice(0, MAX_LOOKED);
  const groups: string[] = [];
  for (let from = 0; from < looked.length; from += LOOKED_AT_ONCE) {
    const some = looked.slice(from, from + LOOKED_AT_ONCE);
    const found = await Promise.all(some.map((group) => listedElement(of, id, group, signal)));
    groups.push(...some.filter((_, i) => found[i] !== null));
  }
  return { groups, areAll: looked.length === all.length };
}

/** The body of an element, or the first part of it. */
export interface ElementBody {
  readonly contentType: string | null;
  readonly content: Uint8Array<ArrayBuffer>;
  readonly isCut: boolean;
  /** Whether the browser could not decode its content encoding. */
  readonly isUnreadable: boolean;
}

/** How much of a body is shown. A longer one can be downloaded. */
const MAX_BODY_BYTES = 1_048_576;

export function downloadUrl(of: QueueNamed, id: string, group: string | null): string {
  const url = urlOf(queuePath(of, 'elements', id));
  if (group !== null) url.searchParams.set('group', group);
  return url.href;
}

export function readBody(
  of: QueueNamed,
  id: string,
  group: string | null,
  signal: AbortSignal,
): Promise<ElementBody> {
  return read(queuePath(of, 'elements', id), { query: { group }, signal }, async (headers, pieces) => {
    const contentType = headers.get('content-type');
    const part = await readPart(pieces).catch((error: unknown) => {
      // A body with a wrong content encoding fails like a lost connection. Show the rest of the element.
      if (signal.aborted || !headers.has('content-encoding')) throw error;
      return null;
    });
    if (part === null) return { contentType, content: new Uint8Array(), isCut: false, isUnreadable: true };
    return { contentType, ...part, isUnreadable: false };
  });
}

/** Reads only what is shown of a body: a large one must not fill the tab's memory. */
async function readPart(pieces: AsyncIterable<Uint8Array>): Promise<Pick<ElementBody, 'content' | 'isCut'>> {
  const parts: Uint8Array[] = [];
  let length = 0;
  for await (const part of pieces) {
    parts.push(part);
    length += part.length;
    if (length > MAX_BODY_BYTES) break;
  }
  const content = new Uint8Array(Math.min(length, MAX_BODY_BYTES));
  let at = 0;
  for (const part of parts) {
    const fitting = part.subarray(0, content.length - at);
    content.set(fitting, at);
    at += fitting.length;
  }
  return { content, isCut: length > MAX_BODY_BYTES };
}

/** Who holds a reserved element. */
export function holderText({ user, tid }: NonNullable<BrowsedElement['holder']>): string {
  return `${user === null ? 'an exchange' : named(user)}${tid === null ? '' : `, tid ${named(tid)}`}`;
}
