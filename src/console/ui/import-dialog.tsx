import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import type { Imported } from '../../model/records.ts';
import { ApiError, type QueueNamed, queuePath, upload } from '../api.ts';
import { bytes, named, several } from '../format.ts';
import { Button } from './button.tsx';
import { Dialog } from './dialog.tsx';
import { Field, useWork } from './form.tsx';
import { Failure, Meter } from './states.tsx';

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
    const text = await upload(queuePath(into, 'import'), chosen, { signal, onProgress });
    // A proxy may answer 200 with another page.
    result.value = JSON.parse(text) as Imported;
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
