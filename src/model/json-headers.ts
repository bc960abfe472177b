import { toByteString } from '../util/byte-string.ts';
import { type ElementHeaders, NO_HEADERS } from './element.ts';
import { invalidParameter, QuaysideError } from './errors.ts';
import { checkContentHeader, checkHeaders, headerParameter } from './headers.ts';
import { atMember, memberPath } from './members.ts';

/**
 * Returns element headers that are given as a JSON object.
 * @param path of the object in the request body
 * @param exempt see `checkHeaders`
 * @throws QuaysideError `invalid-header`, `invalid-parameter` with the path of the header
 */
export function headersAt(
  path: string,
  headers: Readonly<Record<string, string>> | null | undefined,
  exempt?: ReadonlySet<string>,
): ElementHeaders {
  if (headers == null) return NO_HEADERS;
  const flat = headerEntries(path, headers).flatMap(([name, value]) => [name, toByteString(value)]);
  return checkHeadersAt(path, flat, Object.keys(headers), exempt);
}

/**
 * The members of a JSON object that are headers, with their names in lower case.
 * @throws QuaysideError `invalid-parameter` with the path of a header that is there twice
 */
export function headerEntries<T>(
  path: string,
  headers: Readonly<Record<string, T>>,
): [name: string, value: T, spelling: string][] {
  const names = new Set<string>();
  return Object.entries(headers).map(([spelling, value]) => {
    const name = spelling.toLowerCase();
    if (names.has(name)) {
      const at = memberPath(path, spelling);
      throw invalidParameter(at, `${at} is given twice; letter case does not count.`);
    }
    names.add(name);
    return [name, value, spelling];
  });
}

/**
 * As `checkHeaders`, for headers that are members of a JSON object: its errors have the path of the header.
 * @param spellings the names as they are in the object
 */
export function checkHeadersAt(
  path: string,
  flat: readonly string[],
  spellings: readonly string[],
  exempt?: ReadonlySet<string>,
): ElementHeaders {
  try {
    return checkHeaders(flat, exempt === undefined ? {} : { exempt });
  } catch (error) {
    if (!(error instanceof QuaysideError)) throw error;
    const { parameter } = error.details;
    if (parameter === undefined) throw error;
    const name = spellings.find((spelling) => headerParameter(spelling.toLowerCase()) === parameter);
    throw error.with({ parameter: memberPath(path, headerParameter(name ?? parameter)) });
  }
}

/**
 * The content type or encoding that is given as a member of a JSON object; null if there is none or an empty one.
 * @throws QuaysideError `invalid-header` with the path of the member
 */
export function contentHeaderAt(
  path: string,
  name: 'content-type' | 'content-encoding',
  value: string | null | undefined,
): string | null {
  if (value == null) return null;
  return atMember(path, () => checkContentHeader(name, toByteString(value)));
}
