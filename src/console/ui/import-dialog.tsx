import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import type { Imported } from '../../model/records.ts';
import {
  ApiError,
  apiError,
  commonHeaders,
  type QueueNamed,
  queuePath,
  urlOf,
  withFreshToken,
} from '../api.ts';
import { bytes, named, several } from '../format.ts';
import { Button } from './button.tsx';
import { Dialog } from './dialog.tsx';
import { Field, useWork } from './form.tsx';
import { Failure, Meter } from './states.tsx';

interface ImportOptions {
  readonly signal: AbortSignal;
  readonly onProgress: (sentBytes: number) => void;
}

/**
 * Imports the file of an export.
 * @throws ApiError with details of how much was stored before an invalid line
 */
function importFile(into: QueueNamed, file: Blob, options: ImportOptions): Promise<Imported> {
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

/** Imports an exported file, and shows progress and result. Closing the dialog cancels the import. */
export function ImportDialog({ into, onClose }: { readonly into: QueueNamed; readonly onClose: () => void }) {
  const file = useSignal<File | null>(null);
  const sentBytes = useSignal(0);
  const result = useSignal<Imported | null>(null);
  const { isBusy, error, run } = useWork();
  const abort = useRef(new AbortController());
  useEffect(() => () => abort.current.abort(), []);
  const start = async (chosen: File): Promise<void> => {
    result.value = null;
    sentBytes.value = 0;
    abort.current = new AbortController();
    const { signal } = abort.current;
    const onProgress = (sent: number): void => {
      sentBytes.value = sent;
    };
    result.value = await importFile(into, chosen, { signal, onProgress });
  };
  return (
    <Dialog title={`Import into ${named(into.queue)}`} onClose={onClose}>
      <form
        class="body stack"
        onSubmit={(event) => {
          event.preventDefault();
          const chosen = file.value;
          if (chosen !== null) void run(() => start(chosen));
        }}
      >
        <Field
          label="File"
          hint="The export of a queue: a line of JSON per element. Elements that the queue already has are skipped."
        >
          <input
            type="file"
            accept=".ndjson,.jsonl,.json,application/x-ndjson"
            required
            disabled={isBusy}
            onChange={(event) => {
              file.value = event.currentTarget.files?.[0] ?? null;
            }}
          />
        </Field>
        <div aria-live="polite">
          {isBusy && <Progress sent={sentBytes.value} total={file.value?.size ?? 0} />}
          {result.value !== null && <Result result={result.value} />}
          <Failure error={error} />
          {error instanceof ApiError && typeof error.details.imported === 'number' && (
            <p>
              {several(error.details.imported, 'element')} imported before. Correct the file and import it
              again: stored elements are skipped.
            </p>
          )}
        </div>
        <div class="foot">
          <Button onClick={() => (isBusy ? abort.current.abort() : onClose())}>
            {isBusy ? 'Cancel the import' : 'Close'}
          </Button>
          <button type="submit" class="primary" disabled={isBusy || file.value === null}>
            Import into {named(into.queue)}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function Progress({ sent, total }: { readonly sent: number; readonly total: number }) {
  return (
    <>
      <p>
        {bytes(sent)} of {bytes(total)} sent
      </p>
      <Meter part={total === 0 ? 1 : sent / total} />
    </>
  );
}

function Result({ result: { imported, repeated } }: { readonly result: Imported }) {
  return (
    <p>
      <b>{several(imported, 'element')} imported</b>
      {repeated > 0 && `; ${several(repeated, 'element')} skipped, which the queue has or had`}
    </p>
  );
}
