import { useComputed, useSignal } from '@preact/signals';
import type { OperationPicture, OperationPlace } from '../../model/records.ts';
import { count, named, several } from '../format.ts';
import { operations, useWholeState, version } from '../remote/live.ts';
import { may, mayAnywhere } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { cancelOperation, doneBy, OperationState, progressOf } from '../ui/operation-dialog.tsx';
import { type PlainColumn, PlainTable } from '../ui/plain-table.tsx';
import { QueueLink } from '../ui/queue-links.tsx';
import { Empty, Loading, Meter, NeedsRight } from '../ui/states.tsx';
import { act } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';

/** Running bulk operations, and those that ended in the last week. */
export function Operations() {
  const all = useComputed(() => {
    version.value;
    return [...operations.values()].sort(
      (a, b) =>
        Number(b.state === 'running') - Number(a.state === 'running') ||
        b.startedAt.localeCompare(a.startedAt),
    );
  });
  const withDryRuns = useSignal(false);
  if (!useWholeState()) return <Loading />;
  // Hide ended dry runs: each confirmation starts one, so they would be most of the list.
  const shown = all.value.filter(({ dryRun, state }) => withDryRuns.value || !dryRun || state === 'running');
  const dryRuns = all.value.filter(({ dryRun }) => dryRun).length;
  return (
    <>
      <div class="page-head">
        <h1 class="grow">Operations</h1>
        {dryRuns > 0 && (
          <label class="row">
            <input
              type="checkbox"
              checked={withDryRuns.value}
              onChange={(event) => (withDryRuns.value = event.currentTarget.checked)}
            />
            Show {several(dryRuns, 'dry run')}
          </label>
        )}
        <span class="muted">{several(shown.length, 'operation')}</span>
      </div>
      <section class="card">
        <PlainTable
          label="Operations"
          rows={shown}
          empty={
            mayAnywhere('manage') ? (
              <Empty title="No operations in the last week" icon="operations">
                An operation starts from a queue: select elements, or search, then choose what to do with all
                that match.
              </Empty>
            ) : (
              <NeedsRight title="Only users who manage queues see operations" right="manage" />
            )
          }
          keyOf={({ id }) => id}
          columns={COLUMNS}
          actions={(operation) => <CancelOperation operation={operation} />}
        />
      </section>
    </>
  );
}

const COLUMNS: readonly PlainColumn<OperationPicture>[] = [
  { title: 'State', cell: (operation) => <Progress of={operation} /> },
  {
    title: 'What',
    cell: ({ action, dryRun, error }) => (
      <>
        {action}
        {dryRun && <span class="muted">, dry run</span>}
        {error !== null && <p class="operation-error">{error}</p>}
      </>
    ),
  },
  { title: 'Queue', cell: ({ source }) => <Place place={source} /> },
  { title: 'To', cell: ({ to }) => (to ? <Place place={to} /> : '–') },
  { title: 'Matched', isNumber: true, cell: ({ matched }) => count(matched) },
  { title: 'Changed', isNumber: true, cell: ({ changed }) => count(changed) },
  { title: 'Failed', isNumber: true, cell: ({ failed }) => count(failed) },
  { title: 'By', cell: ({ by }) => by },
  { title: 'Started', cell: ({ startedAt }) => <When at={startedAt} /> },
];

/** A queue, or a namespace that is migrated. */
function Place({ place: { ns, queue } }: { readonly place: OperationPlace }) {
  return queue === undefined ? <bdi>{ns}</bdi> : <QueueLink ns={ns} queue={queue} />;
}

function Progress({ of }: { readonly of: OperationPicture }) {
  return (
    <>
      <OperationState state={of.state} />
      {of.state === 'running' && <Meter part={progressOf(of)} isThin />}
    </>
  );
}

function CancelOperation({ operation }: { readonly operation: OperationPicture }) {
  const { id, action, source, state, changed } = operation;
  if (state !== 'running' || action === 'migrate' || !may('manage', source.ns)) return null;
  const cancel = (): Promise<void> =>
    act(async () => {
      await cancelOperation(id);
      return `The operation on ${named(source.queue ?? source.ns)} is cancelled; ${count(changed)} were ${doneBy(action)}`;
    });
  return <Button onClick={() => void cancel()}>Cancel</Button>;
}
