import type { ExchangeDeclaration, ExchangeTrial } from '../../model/records.ts';
import { call, path } from '../api.ts';

const PAYLOADS = { json: 'JSON', text: 'text', bytes: 'bytes' } as const;

/** What selectors see as the payload of an element, and why: `bytes (application/json, gzip)`. */
export function seenPayload({ payload, content_type, content_encoding }: ExchangeTrial['saw']): string {
  const reasons = [
    content_type || 'no content type',
    ...(content_encoding === null ? [] : [content_encoding]),
  ];
  return `${PAYLOADS[payload]} (${reasons.join(', ')})`;
}

/** @returns what was done, with the server's note if it sent one */
export async function saveExchange(
  id: string,
  declared: ExchangeDeclaration,
  { version, done }: { readonly version: string | null; readonly done: string },
): Promise<string> {
  const headers = version === null ? {} : { 'if-match': `"${version}"` };
  return withNote(done, await call(path('x', id), { method: 'PUT', json: declared, headers }));
}

/** @returns as `saveExchange` */
export async function changeExchange(
  id: string,
  verb: 'start' | 'stop' | 'delete',
  done: string,
): Promise<string> {
  const response =
    verb === 'delete'
      ? await call(path('x', id), { method: 'DELETE' })
      : await call(path('x', id, verb), { method: 'POST' });
  return withNote(done, response);
}

/** A response has a note if a restart restores the declaration of the configuration file. */
function withNote(done: string, { headers }: Response): string {
  const note = headers.get('x-ks-note');
  return note === null ? done : `${done}. Note: ${note}.`;
}
