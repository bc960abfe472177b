import { toByteString } from '../util/byte-string.ts';
import { type ElementHeaders, NO_HEADERS } from './element.ts';
import { invalidParameter, QuaysideError } from './errors.ts';
import { checkHeaders } from './headers.ts';
import { memberPath } from './members.ts';

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
  const flat: string[] = [];
  const seen = new Set<string>();
  for (const name of Object.keys(headers)) {
    const lower = name.toLowerCase();
    if (seen.has(lower)) {
      const at = memberPath(path, name);
      throw invalidParameter(at, `${at} is given twice; letter case does not count.`);
    }
    seen.add(lower);
    flat.push(lower, toByteString(headers[name] ?? ''));
  }
  return checkHeadersAt(path, flat, exempt);
}

/** As `checkHeaders`, for headers that are members of a JSON object: its errors have the path of the header. */
export function checkHeadersAt(
  path: string,
  flat: readonly string[],
  exempt?: ReadonlySet<string>,
): ElementHeaders {
  try {
    return checkHeaders(flat, exempt);
  } catch (error) {
    if (!(error instanceof QuaysideError) || error.details.parameter === undefined) throw error;
    throw error.with({ parameter: memberPath(path, error.details.parameter) });
  }
}
