import { ApiError, apiError, ownHeaders, path, stepIn, urlOf, withFreshToken } from '../api.ts';
import type { QueueNamed } from './live.ts';

/** What an import stored; `repeated` were left out, since they are there or were imported before. */
export interface ImportResult {
  readonly imported: number;
  readonly repeated: number;
}

/**
 * Where all elements of a queue can be downloaded, as lines of JSON; null: a browser cannot reach a queue of that name.
 */
export function exportUrl({ ns, queue }: QueueNamed): string | null {
  const where = path('q', ns, queue, 'export');
  return stepIn(where) === undefined ? urlOf(where).href : null;
}

interface ImportOptions {
  readonly signal: AbortSignal;
  readonly onProgress: (sentBytes: number) => void;
}

/**
 * Sends the file of an export.
 * @throws ApiError its details say how much had been stored before a line that is wrong
 */
export function importFile(into: QueueNamed, file: Blob, options: ImportOptions): Promise<ImportResult> {
  return withFreshToken(() => sendFile(into, file, options));
}

/** Not by `fetch`, which does not say how much has been sent. */
async function sendFile(
  { ns, queue }: QueueNamed,
  file: Blob,
  options: ImportOptions,
): Promise<ImportResult> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const request = new XMLHttpRequest();
  request.open('POST', urlOf(path('q', ns, queue, 'import')));
  request.setRequestHeader('content-type', 'application/x-ndjson');
  for (const [name, value] of Object.entries(ownHeaders())) request.setRequestHeader(name, value);
  request.upload.addEventListener('progress', ({ loaded }) => options.onProgress(loaded));
  request.addEventListener('load', () => {
    const { status, statusText, responseText } = request;
    if (status === 200) resolve(responseText);
    else reject(apiError(status, statusText, responseText));
  });
  request.addEventListener('error', () => {
    reject(new ApiError(0, 'unreachable', 'The server ended the connection, or did not answer.'));
  });
  request.addEventListener('abort', () => {
    reject(new ApiError(0, 'cancelled', 'The import was cancelled. What had arrived by then is stored.'));
  });
  options.signal.addEventListener('abort', () => request.abort(), { once: true });
  request.send(file);
  // Not in the listener: something between here and the server may answer 200 with a page of its own.
  return JSON.parse(await promise) as ImportResult;
}
