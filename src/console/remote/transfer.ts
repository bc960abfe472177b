import type { Imported } from '../../model/records.ts';
import {
  ApiError,
  apiError,
  commonHeaders,
  dotSegmentIn,
  type QueueNamed,
  queuePath,
  urlOf,
  withFreshToken,
} from '../api.ts';

/** Returns the URL of a queue's export as NDJSON; null if browsers cannot request the queue's name. */
export function exportUrl(of: QueueNamed): string | null {
  const where = queuePath(of, 'export');
  return dotSegmentIn(where) === undefined ? urlOf(where).href : null;
}

interface ImportOptions {
  readonly signal: AbortSignal;
  readonly onProgress: (sentBytes: number) => void;
}

/**
 * Imports the file of an export.
 * @throws ApiError with details of how much was stored before an invalid line
 */
export function importFile(into: QueueNamed, file: Blob, options: ImportOptions): Promise<Imported> {
  return withFreshToken(() => sendFile(into, file, options));
}

/** Uses `XMLHttpRequest`, because `fetch` does not report upload progress. */
async function sendFile(into: QueueNamed, file: Blob, options: ImportOptions): Promise<Imported> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const request = new XMLHttpRequest();
  request.open('POST', urlOf(queuePath(into, 'import')));
  request.setRequestHeader('content-type', 'application/x-ndjson');
  for (const [name, value] of Object.entries(commonHeaders())) request.setRequestHeader(name, value);
  request.upload.addEventListener('progress', ({ loaded }) => options.onProgress(loaded));
  request.addEventListener('load', () => {
    const { status, statusText, responseText } = request;
    if (status === 200) resolve(responseText);
    else reject(apiError(status, statusText, responseText));
  });
  request.addEventListener('error', () => {
    reject(new ApiError(0, 'unreachable', 'The server closed the connection, or did not respond.'));
  });
  request.addEventListener('abort', () => {
    reject(new ApiError(0, 'cancelled', 'The import was cancelled. Elements that had arrived are stored.'));
  });
  options.signal.addEventListener('abort', () => request.abort(), { once: true });
  request.send(file);
  // Parse here, not in the listener, so that an error rejects: a proxy may answer 200 with another page.
  return JSON.parse(await promise) as Imported;
}
