import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import type { FoundQueue, FoundQueues } from '../../model/records.ts';
import { BASE, call, messageOf, queuePath } from '../api.ts';
import { count, several } from '../format.ts';
import { findQueues, PAGE_SIZE, QUALIFIERS, searchOf, withLatest } from '../remote/found-queues.ts';
import { connection, keyOf, version } from '../remote/live.ts';
import { useResource } from '../remote/resource.ts';
import { address, go, href, queueHref, setQuery } from '../route.ts';
import { may, mayAnywhere, namespaces, session } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { FilterField } from '../ui/filter-field.tsx';
import { Empty, Failure, Loading, NeedsRight, NewBar } from '../ui/states.tsx';
import { RowTable } from '../ui/table.tsx';
import { act } from '../ui/toasts.tsx';
import { ColumnChoice, chosenColumns } from './queue-columns.tsx';
import { SavedViews } from './queue-views.tsx';

/** How often the list is read again for its order and rates. Other changes of a row arrive as events. */
const READ_EVERY_MS = 10_000;

/** A page of the list, with its search. */
interface ListedPage extends FoundQueues {
  readonly key: string;
  readonly page: number;
}

/**
 * All queues that the user may read, filtered, sorted and paged by the server. The order does not change until the user
 * sorts again, so that rows do not jump.
 */
export function Queues() {
  const search = searchOf(address.value.query);
  const key = JSON.stringify(search);
  const found = useResource(
    key,
    async (signal): Promise<ListedPage> => ({
      key,
      page: search.page,
      ...(await findQueues(search, signal)),
    }),
    READ_EVERY_MS,
  );
  const listed = useSignal<ListedPage | null>(null);
  const selected = useSignal<ReadonlyMap<string, FoundQueue>>(new Map());
  const isSortingAgain = useRef(false);
  const latest = found.value;
  useEffect(() => {
    if (latest === null || (latest.key === listed.peek()?.key && !isSortingAgain.current)) return;
    isSortingAgain.current = false;
    listed.value = latest;
  }, [latest]);
  const sortAgain = (): void => {
    isSortingAgain.current = true;
    found.reload();
  };
  const isLive = connection.value === 'live';
  const wasLive = useRef(isLive);
  useEffect(() => {
    // Without a stream, the server's data are up to ten seconds old. For the stream it has read them again.
    if (isLive && !wasLive.current) sortAgain();
    wasLive.current = isLive;
  }, [isLive]);
  version.value;
  const shown = listed.value;
  const rows = withLatest(shown?.queues ?? [], latest?.queues ?? []);
  const isAnswered = shown?.key === key || found.error === null;
  return (
    <>
      <div class="page-head">
        <h1 class="grow">Queues</h1>
        <SavedViews />
        <ColumnChoice />
      </div>
      <Failure error={found.error} retry={found.reload} />
      {latest !== null && latest.unavailable.length > 0 && (
        <Failure
          error={`Queues of ${latest.unavailable.join(', ')} are missing, or shown as they were last read: the engine is unavailable.`}
        />
      )}
      <section class="card">
        <header>
          <FilterField
            label="Filter queues"
            placeholder="Name, ns:N, depth:>1000, paused …"
            suggestions={QUALIFIERS}
          />
          <span class="muted grow" role="status">
            {latest !== null && isAnswered && <Found page={latest} isFiltered={search.filter !== ''} />}
          </span>
          <Button icon="refresh" class="quiet" onClick={sortAgain}>
            Sort again
          </Button>
        </header>
        {selected.value.size > 0 && (
          <SelectionBar
            chosen={[...selected.value.values()]}
            onDone={(failed) => {
              selected.value = new Map(failed.map((one) => [keyOf(one), one]));
              found.reload();
            }}
            onNone={() => (selected.value = new Map())}
          />
        )}
        <NewBar
          added={shown === null || latest === null ? 0 : addedIn(latest, shown)}
          onShow={() => (listed.value = latest)}
        />
        {shown === null && isAnswered && <Loading what="Reading the queues" />}
        {shown !== null && isAnswered && (
          <>
            {rows.length === 0 ? (
              <NoQueues isFiltered={search.filter !== ''} page={shown.page} />
            ) : (
              <RowTable
                // Start another page at its top.
                key={shown.page}
                label="Queues"
                rows={rows}
                keyOf={keyOf}
                nameOf={({ queue }) => queue}
                columns={chosenColumns()}
                sort={search.sort}
                onSort={(sort) => setQuery({ sort, page: null })}
                {...(mayAnywhere('manage') && { selected })}
              />
            )}
            <Pager page={shown.page} matched={shown.matched} />
          </>
        )}
      </section>
    </>
  );
}

/** How many rows of the latest read are not shown yet. */
function addedIn(latest: ListedPage, shown: ListedPage): number {
  if (latest.key !== shown.key) return 0;
  const known = new Set(shown.queues.map(keyOf));
  return latest.queues.filter((one) => !known.has(keyOf(one))).length;
}

function Found({ page, isFiltered }: { readonly page: ListedPage; readonly isFiltered: boolean }) {
  const { matched, total, sums } = page;
  return (
    <>
      {isFiltered ? `${count(matched)} of ${several(total, 'queue')}` : several(total, 'queue')},{' '}
      {several(sums.totalSize, 'element')}
    </>
  );
}

function Pager({ page, matched }: { readonly page: number; readonly matched: number }) {
  const pages = Math.ceil(matched / PAGE_SIZE);
  if (pages <= 1 && page === 1) return null;
  const open = (to: number): void => {
    const { parts, query } = address.peek();
    go(href(parts, { ...Object.fromEntries(query), page: to === 1 ? null : String(to) }));
  };
  return (
    <nav class="pager" aria-label="Pages of the list">
      <Button disabled={page <= 1} onClick={() => open(Math.min(page - 1, Math.max(1, pages)))}>
        Previous
      </Button>
      <span class="muted">
        Page {count(page)} of {count(pages)}
      </span>
      <Button disabled={page >= pages} onClick={() => open(page + 1)}>
        Next
      </Button>
    </nav>
  );
}

function NoQueues({ isFiltered, page }: { readonly isFiltered: boolean; readonly page: number }) {
  if (page > 1) {
    return (
      <Empty title={`Page ${count(page)} is empty now`} icon="queues">
        <Button class="link" onClick={() => setQuery({ page: null })}>
          Show the first page
        </Button>
      </Empty>
    );
  }
  if (isFiltered) {
    return (
      <Empty title="No queue matches the filter" icon="search">
        Words match parts of names. Qualifiers narrow the list: <code>ns:N</code>, <code>depth:&gt;1000</code>
        , <code>age:&gt;60</code>, <code>paused</code>.{' '}
        <Button class="link" onClick={() => setQuery({ filter: null, page: null })}>
          Show all queues
        </Button>
      </Empty>
    );
  }
  if (!mayAnywhere('read')) return <NeedsRight title="You may not see queues" right="read" />;
  const ns = namespaces().find((one) => may('write', one));
  return (
    <Empty title="There are no queues yet" icon="queues">
      A queue is created by its first insert.{' '}
      {ns !== undefined && (
        <>
          <a href={queueHref(ns, 'first')}>Insert the first element</a>, or with{' '}
          <code>
            curl -u {session.value?.user} -d hello {new URL(queuePath({ ns, queue: 'first' }), BASE).href}
          </code>
        </>
      )}
    </Empty>
  );
}

function SelectionBar({
  chosen,
  onDone,
  onNone,
}: {
  readonly chosen: readonly FoundQueue[];
  /** @param failed the queues that could not be changed */
  readonly onDone: (failed: readonly FoundQueue[]) => void;
  readonly onNone: () => void;
}) {
  const manageable = chosen.filter(({ ns }) => may('manage', ns));
  const change = (verb: 'pause' | 'resume'): Promise<void> =>
    act(async () => {
      const changes = await Promise.allSettled(
        manageable.map((one) => call(queuePath(one, verb), { method: 'POST' })),
      );
      const errors = changes.flatMap((one) => (one.status === 'rejected' ? [one.reason] : []));
      onDone(manageable.filter((_, i) => changes[i]?.status === 'rejected'));
      const changed = `${several(manageable.length - errors.length, 'queue')} ${verb === 'pause' ? 'paused' : 'resumed'}`;
      if (errors.length === 0) return changed;
      const left = `${several(errors.length, 'other is', 'others are')} unchanged and still selected`;
      throw new Error(`${changed}; ${left}: ${messageOf(errors[0])}`);
    });
  return (
    <section class="bar" aria-label="Selection">
      <b>{several(chosen.length, 'queue')} selected</b>
      {manageable.length < chosen.length && (
        <span>you may not manage {count(chosen.length - manageable.length)} of them</span>
      )}
      {manageable.length > 0 && (
        <>
          <Button icon="paused" onClick={() => void change('pause')}>
            Pause
          </Button>
          <Button icon="play" onClick={() => void change('resume')}>
            Resume
          </Button>
        </>
      )}
      <Button class="quiet" onClick={onNone}>
        Select none
      </Button>
    </section>
  );
}
