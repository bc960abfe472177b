import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import type { FoundQueue, FoundQueues } from '../../model/records.ts';
import { BASE, call, get, messageOf, queuePath } from '../api.ts';
import { count, duration, rate, several, shellWord, shortCount } from '../format.ts';
import { queueColumns, savedViews } from '../preferences.ts';
import {
  connection,
  type DepthSample,
  KEPT_MS,
  keyOf,
  queues,
  readyForMs,
  samples,
  version,
} from '../remote/live.ts';
import { useResource } from '../remote/resource.ts';
import { address, go, href, queueHref, setQuery } from '../route.ts';
import { may, mayAnywhere, namespaces, session } from '../session.ts';
import { clock } from '../timers.ts';
import { Button } from '../ui/button.tsx';
import { FilterField, NoMatch } from '../ui/filter-field.tsx';
import { onData } from '../ui/form.tsx';
import { Menu } from '../ui/menu.tsx';
import { Badge, Empty, Failure, Loading, NeedsRight, NewBar } from '../ui/states.tsx';
import { RowTable, type TableColumn } from '../ui/table.tsx';
import { act } from '../ui/toasts.tsx';

/** Filter and order of a list of queues. `sort` with a leading `-` is descending. */
interface QueueSearch {
  readonly filter: string;
  readonly sort: string;
  /** From 1. */
  readonly page: number;
}

const PAGE_SIZE = 100;
/** The server's maximum `offset` is a million. */
const MAX_PAGE = 10_001;

/** Suggestions for the field of the filter. */
const QUALIFIERS = [
  'ns:N',
  'ready:>0',
  'depth:>1000',
  'scheduled:>0',
  'reserved:>0',
  'age:>60',
  'in:>1',
  'out:0',
  'paused',
  'running',
] as const;

/** Parses the query of an address. Invalid members are ignored. */
function searchOf(query: URLSearchParams): QueueSearch {
  const sort = query.get('sort') ?? '';
  const page = Number(query.get('page'));
  return {
    filter: query.get('filter') ?? '',
    sort: COLUMNS.some(({ id, isSortable }) => isSortable && id === sort.replace(/^-/, '')) ? sort : 'name',
    page: Number.isInteger(page) && page >= 1 && page <= MAX_PAGE ? page : 1,
  };
}

function findQueues({ filter, sort, page }: QueueSearch, signal: AbortSignal): Promise<FoundQueues> {
  const isDown = sort.startsWith('-');
  const query = {
    filter,
    sort: isDown ? sort.slice(1) : sort,
    order: isDown ? 'desc' : 'asc',
    limit: PAGE_SIZE,
    offset: (page - 1) * PAGE_SIZE,
  };
  return get<FoundQueues>('queues', { query, signal });
}

/** The listed or selected queues that the stream has sent. */
const followed = new WeakSet<FoundQueue>();

/** The last read of the list. */
interface LastRead {
  readonly byKey: ReadonlyMap<string, FoundQueue>;
  /** Namespaces whose engine is unavailable: their queues may be missing. */
  readonly unavailable: readonly string[];
}

/**
 * Whether a queue has been deleted since it was listed: the stream has it no longer, or has never had it, and neither
 * has the last read. A new queue that the stream has not sent yet is in that, unless its engine is unavailable.
 */
function isGone(one: FoundQueue, read: LastRead): boolean {
  if (connection.value !== 'live') return false;
  const key = keyOf(one);
  if (!queues.has(key))
    return followed.has(one) || !(read.byKey.has(key) || read.unavailable.includes(one.ns));
  followed.add(one);
  return false;
}

/**
 * Returns the rows of a list in their order, with the latest data of each queue: from the stream if it is live,
 * otherwise from the last read. Deleted queues are left out.
 */
function withLatest(listed: readonly FoundQueue[], read: LastRead): readonly FoundQueue[] {
  const isLive = connection.value === 'live';
  return listed.flatMap((one) => {
    const key = keyOf(one);
    return isGone(one, read) ? [] : [{ ...one, ...read.byKey.get(key), ...(isLive && queues.get(key)) }];
  });
}

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
  const read: LastRead = {
    byKey: new Map(latest?.queues.map((one) => [keyOf(one), one])),
    unavailable: latest?.unavailable ?? [],
  };
  const rows = withLatest(shown?.queues ?? [], read);
  const isAnswered = shown?.key === key || found.error === null;
  // Without those that are gone: a pause would create them again.
  const chosen = [...selected.value.values()].filter((one) => !isGone(one, read));
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
        {chosen.length > 0 && (
          <SelectionBar
            chosen={chosen}
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
      <NoMatch title="No queue" all="queues">
        Words match parts of names. Qualifiers narrow the list: <code>ns:N</code>, <code>depth:&gt;1000</code>
        , <code>age:&gt;60</code>, <code>paused</code>.{' '}
      </NoMatch>
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
            curl -u {shellWord(session.value?.user ?? '')} -d hello{' '}
            {shellWord(new URL(queuePath({ ns, queue: 'first' }), BASE).href)}
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

/** Saved filters and sort orders of the list of queues. */
function SavedViews() {
  const save = onData((data, form) => {
    const name = String(data.get('name')).trim();
    if (name === '') return;
    const others = savedViews.value.filter((view) => view.name !== name);
    savedViews.value = [...others, { name, query: address.peek().query.toString() }];
    form.reset();
  });
  return (
    <Menu title="Saved views" icon="bookmark" label="Views">
      {savedViews.value.map(({ name, query }) => (
        <div key={name} class="row saved">
          <a href={`${href(['queues'])}?${query}`}>{name}</a>
          <Button
            icon="close"
            class="square"
            aria-label={`Remove view ${name}`}
            onClick={() => (savedViews.value = savedViews.value.filter((view) => view.name !== name))}
          />
        </div>
      ))}
      <form class="row save" onSubmit={save}>
        <input name="name" placeholder="Name of this view" aria-label="Name of this view" maxLength={60} />
        <button type="submit">Save</button>
      </form>
    </Menu>
  );
}

/** The default columns fit a window of 1024 pixels. */
const NUMBER = { isNumber: true, isSortable: true, width: 'minmax(4.5rem, 0.6fr)' } as const;

/** The columns of the list of queues. The ids of sortable columns are the server's `sort` values. */
const COLUMNS: readonly TableColumn<FoundQueue>[] = [
  {
    id: 'name',
    title: 'Queue',
    isSortable: true,
    width: 'minmax(8.25rem, 3fr)',
    cell: ({ ns, queue, paused }) => (
      <span class="name">
        <a href={queueHref(ns, queue)} title={queue}>
          {queue}
        </a>
        <small class="muted narrow-only">{ns}</small>
        {paused && (
          <Badge level="warn" icon="paused" title="Paused">
            Paused
          </Badge>
        )}
      </span>
    ),
  },
  { id: 'ns', title: 'Namespace', isMinor: true, width: 'minmax(6.5rem, 1fr)', cell: ({ ns }) => ns },
  { ...NUMBER, id: 'ready', title: 'Ready', cell: ({ size }) => shortCount(size) },
  {
    ...NUMBER,
    isMinor: true,
    id: 'scheduled',
    title: 'Scheduled',
    width: 'minmax(6.5rem, 0.6fr)',
    cell: ({ schedSize }) => shortCount(schedSize),
  },
  {
    ...NUMBER,
    isMinor: true,
    id: 'reserved',
    title: 'Reserved',
    width: 'minmax(6rem, 0.6fr)',
    cell: ({ resvSize }) => shortCount(resvSize),
  },
  { ...NUMBER, isMinor: true, id: 'depth', title: 'Depth', cell: ({ totalSize }) => shortCount(totalSize) },
  {
    ...NUMBER,
    id: 'age',
    title: 'Oldest ready',
    width: 'minmax(7rem, 0.6fr)',
    cell: (queue) => <Age queue={queue} />,
  },
  {
    ...NUMBER,
    isMinor: true,
    id: 'in',
    title: 'In/s',
    width: 'minmax(4rem, 0.6fr)',
    cell: ({ insert }) => rate(insert),
  },
  {
    ...NUMBER,
    isMinor: true,
    id: 'out',
    title: 'Out/s',
    width: 'minmax(4.25rem, 0.6fr)',
    cell: ({ take }) => rate(take),
  },
  {
    id: 'trend',
    title: 'Depth, 5 min',
    isMinor: true,
    width: 'minmax(7rem, 0.8fr)',
    cell: (queue) => <Trend queue={queue} />,
  },
];

const ALWAYS: ReadonlySet<string> = new Set(['name', 'ns']);

function Age({ queue }: { readonly queue: FoundQueue }) {
  const age = readyForMs(queue, clock.value);
  return <>{age === null ? '–' : duration(age)}</>;
}

/** A separate component, so that the clock does not render the whole table each second. */
function Trend({ queue }: { readonly queue: FoundQueue }) {
  const depths = samples.get(keyOf(queue));
  return <Spark depths={depths} now={depths === undefined ? 0 : clock.value} />;
}

/** The columns that the user has chosen. */
function chosenColumns(): readonly TableColumn<FoundQueue>[] {
  return COLUMNS.filter(({ id }) => ALWAYS.has(id) || queueColumns.value.includes(id));
}

function ColumnChoice() {
  return (
    <Menu title="Columns" icon="columns" label="Columns">
      {COLUMNS.filter(({ id }) => !ALWAYS.has(id)).map(({ id, title }) => (
        <label key={id}>
          <input
            type="checkbox"
            checked={queueColumns.value.includes(id)}
            onChange={() => {
              const shown = queueColumns.value;
              queueColumns.value = shown.includes(id) ? shown.filter((one) => one !== id) : [...shown, id];
            }}
          />
          {title}
        </label>
      ))}
    </Menu>
  );
}

const SPARK_WIDTH = 96;
const SPARK_HEIGHT = 20;

/** The depth of a queue while this page was open, as a small chart. A cell next to it shows the number. */
function Spark({
  depths,
  now,
}: {
  readonly depths: readonly DepthSample[] | undefined;
  readonly now: number;
}) {
  if (depths === undefined || depths.length < 2) return <span class="spark-rest" />;
  const from = Math.max(depths[0]?.at ?? now, now - KEPT_MS);
  const span = Math.max(1, now - from);
  const top = Math.max(1, ...depths.map(({ size }) => size));
  const x = (at: number): string => ((Math.max(0, at - from) / span) * SPARK_WIDTH).toFixed(1);
  const y = (size: number): string => (SPARK_HEIGHT - 1.5 - (size / top) * (SPARK_HEIGHT - 3)).toFixed(1);
  const steps = depths.map(({ at, size }, i) => {
    const before = depths[i - 1];
    return before === undefined ? `M${x(at)} ${y(size)}` : `L${x(at)} ${y(before.size)}L${x(at)} ${y(size)}`;
  });
  const last = depths.at(-1);
  return (
    <svg
      class="spark"
      viewBox={`0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`}
      preserveAspectRatio="none"
      aria-hidden="true"
    >
      <path d={`${steps.join('')}L${SPARK_WIDTH} ${y(last?.size ?? 0)}`} />
    </svg>
  );
}
