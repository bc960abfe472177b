import { type ElementHeaders, NO_HEADERS } from '../../model/element.ts';

/**
 * The rarer fields of an element's content as one JSON text: `[content encoding, name, value, …]`, null
 * where there are none. So the usual element, a body and a content type, costs no JSON at all.
 */
export function toMore(contentEncoding: string | null, headers: ElementHeaders): string | null {
  if (contentEncoding === null && headers.length === 0) return null;
  return JSON.stringify([contentEncoding, ...headers]);
}

export function fromMore(more: string | null): { contentEncoding: string | null; headers: ElementHeaders } {
  if (more === null) return { contentEncoding: null, headers: NO_HEADERS };
  const [contentEncoding = null, ...headers] = JSON.parse(more) as [string | null, ...string[]];
  return { contentEncoding, headers };
}
