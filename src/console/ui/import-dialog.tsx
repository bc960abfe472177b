import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import type { Imported } from '../../model/records.ts';
import { ApiError } from '../api.ts';
import { bytes, named, several } from '../format.ts';
import type { QueueNamed } from '../remote/live.ts';
import { importFile } from '../remote/transfer.ts';
import { Dialog } from './dialog.tsx';
import { Failure, Meter } from './states.tsx';

/** Imports an exported file, and shows progress and result. Closing the dialog cancels the import. */
export function ImportDialog({ into, onClose }: { readonly into: QueueNamed; readonly onClose: () => void }) {
  const file = useSignal<File | null>(null);
  const sentBytes = useSignal<number | null>(null);
  const result = useSignal<Imported | null>(null);
  const error = useSignal<unknown>(null);
  const abort = useRef(new AbortController());
  useEffect(() => () => abort.current.abort(), []);
  const start = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const chosen = file.value;
    if (chosen === null) return;
    error.value = null;
    result.value = null;
    sentBytes.value = 0;
    abort.current = new AbortController();
    try {
      result.value = await importFile(into, chosen, {
        signal: abort.current.signal,
        onProgress: (sent) => {
          sentBytes.value = sent;
        },
      });
    } catch (reason) {
      error.value = reason;
    }
    sentBytes.value = null;
  };
  const isRunning = sentBytes.value !== null;
  return (
    <Dialog title={`Import into ${named(into.queue)}`} onClose={onClose}>
      <form class="body stack" onSubmit={start}>
        <label class="field">
          <span>File</span>
          <input
            type="file"
            accept=".ndjson,.jsonl,.json,application/x-ndjson"
            required
            disabled={isRunning}
            onChange={(event) => {
              file.value = event.currentTarget.files?.[0] ?? null;
            }}
          />
          <small>
            The export of a queue: a line of JSON per element. Elements that the queue already has are
            skipped.
          </small>
        </label>
        <div aria-live="polite">
          {isRunning && <Progress sent={sentBytes.value ?? 0} total={file.value?.size ?? 0} />}
          {result.value !== null && <Result result={result.value} />}
          {error.value !== null && <Failure error={withStored(error.value)} />}
        </div>
        <div class="foot">
          <button type="button" onClick={() => (isRunning ? abort.current.abort() : onClose())}>
            {isRunning ? 'Cancel the import' : 'Close'}
          </button>
          <button type="submit" class="primary" disabled={isRunning || file.value === null}>
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

/** Adds to an error how many elements the import had stored before. */
function withStored(error: unknown): unknown {
  if (!(error instanceof ApiError) || typeof error.details.imported !== 'number') return error;
  const { status, code, message, details } = error;
  const stored = several(error.details.imported, 'element');
  return new ApiError(
    status,
    code,
    `${message} ${stored} imported before. Correct the file and import it again: stored elements are skipped.`,
    details,
  );
}
