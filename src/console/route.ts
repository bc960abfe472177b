import { computed, signal } from '@preact/signals';
import type { QueueNamed } from './api.ts';

/** An address in the console: the decoded segments of its path, and its query. */
interface PageAddress {
  readonly parts: readonly string[];
  readonly query: URLSearchParams;
}

const hash = signal(location.hash);

addEventListener('hashchange', () => {
  hash.value = location.hash;
});

export const address = computed<PageAddress>(() => parse(hash.value));

/** The path of the address. It selects the page; the query belongs to the page. */
export const place = computed(() => address.value.parts.map(encodeURIComponent).join('/'));

function parse(text: string): PageAddress {
  const [path = '', query = ''] = text.replace(/^#\/?/, '').split('?', 2);
  return { parts: path.split('/').filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

/** A typed address may contain a `%` that is not an escape. */
function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

type QueryMembers = Readonly<Record<string, string | null | undefined>>;

/** Returns a link to a page. Query members that are null or empty are left out. */
export function href(parts: readonly string[], query: QueryMembers = {}): string {
  const given = Object.entries(query).filter(
    ([, value]) => value !== null && value !== undefined && value !== '',
  );
  const text = new URLSearchParams(given as [string, string][]).toString();
  return `#/${parts.map(encodeURIComponent).join('/')}${text === '' ? '' : `?${text}`}`;
}

/** Returns a link to the queues of a namespace, with a filter that users can read and edit. */
export function namespaceHref(ns: string): string {
  const written = /[\s"]/.test(ns) ? `"${ns.replace(/["\\]/g, '\\$&')}"` : ns;
  return href(['queues'], { filter: `ns:${written}` });
}

export function queueHref(ns: string, queue: string, query: QueryMembers = {}): string {
  return href(['q', ns, queue], query);
}

export function elementHref({ ns, queue }: QueueNamed, id: string, group: string | null = null): string {
  return href(['q', ns, queue, 'e', id], { group });
}

export function go(to: string): void {
  location.hash = to;
}

/** Changes the query of the present page, without an entry in the browser's history. */
export function setQuery(change: QueryMembers): void {
  const { parts, query } = address.peek();
  const to = href(parts, { ...Object.fromEntries(query), ...change });
  history.replaceState(null, '', to);
  hash.value = to;
}
