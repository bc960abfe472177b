import { useComputed } from '@preact/signals';
import { call, path } from '../api.ts';
import { count, several } from '../format.ts';
import {
  isComplete,
  type OperationPicture,
  type OperationPlace,
  operations,
  version,
} from '../remote/live.ts';
import { ACTION_RESULTS } from '../remote/operations.ts';
import { queueHref } from '../route.ts';
import { may } from '../session.ts';
import { OperationState, progressOf } from '../ui/operation-dialog.tsx';
import { Empty, Loading } from '../ui/states.tsx';
import { act } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';

/** Bulk operations that run, and those that ended within a week. */
export function Operations() {
  const all = useComputed(() => {
    version.value;
    return [...operations.values()].sort(
      (a, b) =>
        Number(b.state === 'running') - Number(a.state === 'running') ||
        b.startedAt.localeCompare(a.startedAt),
    );
  });
  if (!isComplete.value) return <Loading />;
  return (
    <>
      <div class="page-head">
        <h1 class="grow">Operations</h1>
        <span class="muted">{several(all.value.length, 'operation')}</span>
      </div>
      <section class="card">
        {all.value.length === 0 ? (
          <Empty title="Nothing runs, and nothing ran within a week" icon="operations">
            An operation starts from a queue: select elements, or search, then choose what to do with all that
            match.
          </Empty>
        ) : (
          // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
          <section class="scrolls" tabIndex={0} aria-label="Operations">
            <table class="plain">
              <thead>
                <tr>
                  <th scope="col">State</th>
                  <th scope="col">What</th>
                  <th scope="col">Queue</th>
                  <th scope="col">To</th>
                  <th scope="col" class="number">
                    Matched
                  </th>
                  <th scope="col" class="number">
                    Changed
                  </th>
                  <th scope="col" class="number">
                    Failed
                  </th>
                  <th scope="col">By</th>
                  <th scope="col">Started</th>
                  <th scope="col">
                    <span class="visually-hidden">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {all.value.map((operation) => (
                  <OperationRow key={operation.id} operation={operation} />
                ))}
              </tbody>
            </table>
          </section>
        )}
      </section>
    </>
  );
}

/** A queue, or the namespace that moves to another engine. */
function Place({ place: { ns, queue } }: { readonly place: OperationPlace }) {
  if (queue === undefined) return <bdi>{ns}</bdi>;
  return (
    <>
      <a href={queueHref(ns, queue)}>
        <bdi>{queue}</bdi>
      </a>{' '}
      <span class="muted">{ns}</span>
    </>
  );
}

function OperationRow({ operation }: { readonly operation: OperationPicture }) {
  const { id, action, dryRun, source, to, state, matched, changed, failed, by, startedAt, error } = operation;
  const cancel = (): Promise<void> =>
    act(async () => {
      await call(path('operations', id), { method: 'DELETE' });
      return `The operation on ${source.queue} is cancelled; ${count(changed)} were ${ACTION_RESULTS[action] ?? 'changed'}`;
    });
  const part = Math.round(progressOf(operation) * 100);
  return (
    <tr>
      <td>
        <OperationState state={state} />
        {state === 'running' && (
          <div
            class="meter thin"
            role="progressbar"
            aria-label="Progress"
            aria-valuemin={0}
            aria-valuemax={100}
            aria-valuenow={part}
          >
            <i style={{ width: `${part}%` }} />
          </div>
        )}
      </td>
      <td>
        {action}
        {dryRun && <span class="muted">, dry run</span>}
        {error !== null && <p class="operation-error">{error}</p>}
      </td>
      <td>
        <Place place={source} />
      </td>
      <td>{to ? <Place place={to} /> : '–'}</td>
      <td class="number">{count(matched)}</td>
      <td class="number">{count(changed)}</td>
      <td class="number">{count(failed)}</td>
      <td>{by}</td>
      <td>
        <When at={startedAt} />
      </td>
      <td class="number">
        {state === 'running' && action !== 'migrate' && may('manage', source.ns) && (
          <button type="button" onClick={() => void cancel()}>
            Cancel
          </button>
        )}
      </td>
    </tr>
  );
}
