import { useComputed, useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { call, path } from '../api.ts';
import { count, duration, rate, several, shortCount } from '../format.ts';
import { queueColumns, savedViews } from '../preferences.ts';
import {
  clock,
  isComplete,
  keyOf,
  type QueuePicture,
  queues,
  readyForMs,
  samples,
  version,
} from '../remote/live.ts';
import { numbersOf, parseFilter, QUALIFIERS } from '../remote/queue-filter.ts';
import { ratesAt } from '../remote/series.ts';
import { address, go, href, queueHref, setQuery } from '../route.ts';
import { may } from '../session.ts';
import { Icon } from '../ui/icon.tsx';
import { Menu } from '../ui/menu.tsx';
import { Spark } from '../ui/spark.tsx';
import { Badge, Empty, Loading } from '../ui/states.tsx';
import { type TableColumn, VirtualTable } from '../ui/table.tsx';
import { act } from '../ui/toasts.tsx';

const SORTED: Readonly<Record<string, (queue: QueuePicture, now: number) => number | string>> = {
  queue: ({ queue }) => queue,
  ns: ({ ns }) => ns,
  size: ({ size }) => size,
  schedSize: ({ schedSize }) => schedSize,
  resvSize: ({ resvSize }) => resvSize,
  totalSize: ({ totalSize }) => totalSize,
  age: (queue, now) => readyForMs(queue, now) ?? -1,
  in: (queue, now) => ratesAt(samples.get(keyOf(queue)), now).in,
  out: (queue, now) => ratesAt(samples.get(keyOf(queue)), now).out,
};

const NUMBER = { isNumber: true, isSortable: true, width: 'minmax(5rem, 0.6fr)' } as const;

const COLUMNS: readonly TableColumn<QueuePicture>[] = [
  {
    id: 'queue',
    title: 'Queue',
    isSortable: true,
    width: 'minmax(10rem, 3fr)',
    cell: ({ ns, queue, paused }) => (
      <span class="name">
        <a href={queueHref(ns, queue)} title={queue}>
          {queue}
        </a>
        {paused && (
          <Badge level="warn" icon="paused">
            Paused
          </Badge>
        )}
      </span>
    ),
  },
  {
    id: 'ns',
    title: 'Namespace',
    isSortable: true,
    isMinor: true,
    width: 'minmax(6rem, 1fr)',
    cell: ({ ns }) => ns,
  },
  { ...NUMBER, id: 'size', title: 'Ready', cell: ({ size }) => shortCount(size) },
  {
    ...NUMBER,
    isMinor: true,
    id: 'schedSize',
    title: 'Scheduled',
    cell: ({ schedSize }) => shortCount(schedSize),
  },
  {
    ...NUMBER,
    isMinor: true,
    id: 'resvSize',
    title: 'Reserved',
    cell: ({ resvSize }) => shortCount(resvSize),
  },
  {
    ...NUMBER,
    isMinor: true,
    id: 'totalSize',
    title: 'Depth',
    cell: ({ totalSize }) => shortCount(totalSize),
  },
  { ...NUMBER, id: 'age', title: 'Oldest ready', cell: (queue) => <Age queue={queue} /> },
  { ...NUMBER, isMinor: true, id: 'in', title: 'In/s', cell: (queue) => <Rate queue={queue} way="in" /> },
  { ...NUMBER, isMinor: true, id: 'out', title: 'Out/s', cell: (queue) => <Rate queue={queue} way="out" /> },
  {
    id: 'trend',
    title: 'Depth, 5 min',
    isMinor: true,
    width: '8rem',
    cell: (queue) => <Spark samples={samples.get(keyOf(queue))} now={clock.value} />,
  },
];

const ALWAYS: ReadonlySet<string> = new Set(['queue', 'ns']);

function Age({ queue }: { readonly queue: QueuePicture }) {
  const age = readyForMs(queue, clock.value);
  return <>{age === null ? '–' : duration(age)}</>;
}

function Rate({ queue, way }: { readonly queue: QueuePicture; readonly way: 'in' | 'out' }) {
  return <>{rate(ratesAt(samples.get(keyOf(queue)), clock.value)[way])}</>;
}

/** All queues that the user may read, as one list. Its order is that of the moment when it was sorted: rows do not jump. */
export function Queues() {
  const filter = address.value.query.get('filter') ?? '';
  const sort = address.value.query.get('sort') ?? 'queue';
  const turn = useSignal(0);
  const order = useSignal<readonly string[]>([]);
  const selected = useSignal<ReadonlySet<string>>(new Set());
  useEffect(() => {
    if (isComplete.value) order.value = sortedKeys(filter, sort);
  }, [filter, sort, isComplete.value, turn.value]);
  const rows = useComputed(() => {
    version.value;
    return order.value.flatMap((key) => queues.get(key) ?? []);
  });
  const changed = useComputed(() => {
    version.value;
    if (!isComplete.value) return 0;
    const listed = new Set(order.value);
    const test = parseFilter(filter);
    const now = clock.value;
    let added = 0;
    for (const [key, queue] of queues) if (!listed.has(key) && accepts(test, queue, now)) added += 1;
    return added;
  });
  const columns = COLUMNS.filter(({ id }) => ALWAYS.has(id) || queueColumns.value.includes(id));
  const toggle = (key: string): void => {
    const next = new Set(selected.value);
    if (!next.delete(key)) next.add(key);
    selected.value = next;
  };
  if (!isComplete.value) return <Loading what="Reading the queues" />;
  return (
    <>
      <div class="page-head">
        <h1 class="grow">Queues</h1>
        <SavedViews />
        <ColumnChoice />
      </div>
      <section class="card">
        <header>
          <input
            type="search"
            class="filter"
            data-find
            list="qualifiers"
            value={filter}
            placeholder="Name, ns:N, depth:>1000, paused …"
            aria-label="Filter queues"
            autocomplete="off"
            spellcheck={false}
            onInput={(event) => setQuery({ filter: event.currentTarget.value })}
          />
          <datalist id="qualifiers">
            {QUALIFIERS.map((word) => (
              <option key={word} value={word} />
            ))}
          </datalist>
          <span class="muted grow" role="status">
            {rows.value.length === queues.size
              ? several(queues.size, 'queue')
              : `${count(rows.value.length)} of ${several(queues.size, 'queue')}`}
          </span>
          <button type="button" class="quiet" onClick={() => (turn.value += 1)}>
            <Icon name="refresh" /> Sort again
          </button>
        </header>
        {selected.value.size > 0 && (
          <SelectionBar
            keys={selected.value}
            onDone={() => {
              selected.value = new Set();
            }}
          />
        )}
        {changed.value > 0 && (
          <div class="bar" role="status">
            <button type="button" onClick={() => (turn.value += 1)}>
              <Icon name="refresh" /> {several(changed.value, 'more queue')}: show
            </button>
          </div>
        )}
        {rows.value.length === 0 ? (
          <NoQueues isFiltered={filter !== ''} />
        ) : (
          <VirtualTable
            label="Queues"
            rows={rows.value}
            keyOf={keyOf}
            nameOf={({ queue }) => queue}
            columns={columns}
            sort={sort}
            onSort={(next) => setQuery({ sort: next })}
            onOpen={({ ns, queue }) => go(queueHref(ns, queue))}
            selection={{
              keys: selected.value,
              toggle,
              toggleAll: () => {
                const isAll = rows.value.every((row) => selected.value.has(keyOf(row)));
                selected.value = new Set(isAll ? [] : rows.value.map(keyOf));
              },
            }}
          />
        )}
      </section>
    </>
  );
}

function accepts(test: ReturnType<typeof parseFilter>, queue: QueuePicture, now: number): boolean {
  return test(queue, () => numbersOf(queue, ratesAt(samples.get(keyOf(queue)), now), now));
}

function sortedKeys(filter: string, sort: string): string[] {
  const now = clock.peek();
  const isDown = sort.startsWith('-');
  const read = SORTED[isDown ? sort.slice(1) : sort] ?? SORTED.queue;
  const test = parseFilter(filter);
  const found = [...queues.values()]
    .filter((queue) => accepts(test, queue, now))
    .map((queue) => ({ key: keyOf(queue), by: read?.(queue, now) ?? '', name: queue.queue }));
  const sign = isDown ? -1 : 1;
  found.sort((a, b) => sign * compare(a.by, b.by) || compare(a.name, b.name));
  return found.map(({ key }) => key);
}

function compare(a: number | string, b: number | string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

function NoQueues({ isFiltered }: { readonly isFiltered: boolean }) {
  if (isFiltered) {
    return (
      <Empty title="No queue matches the filter" icon="search">
        Words are parts of names. Others narrow it down: <code>ns:N</code>, <code>depth:&gt;1000</code>,{' '}
        <code>age:&gt;60</code>, <code>paused</code>.{' '}
        <button type="button" class="link" onClick={() => setQuery({ filter: null })}>
          Show all queues
        </button>
      </Empty>
    );
  }
  return (
    <Empty title="There are no queues yet" icon="queues">
      A queue exists from its first element. Insert one:{' '}
      <code>curl -u … -d hello {location.origin}/q/N/first</code>
    </Empty>
  );
}

function SelectionBar({ keys, onDone }: { readonly keys: ReadonlySet<string>; readonly onDone: () => void }) {
  const chosen = [...keys].flatMap((key) => queues.get(key) ?? []);
  const manageable = chosen.filter(({ ns }) => may('manage', ns));
  const change = (verb: 'pause' | 'resume'): Promise<void> =>
    act(async () => {
      await Promise.all(
        manageable.map(({ ns, queue }) => call(path('q', ns, queue, verb), { method: 'POST' })),
      );
      onDone();
      return `${several(manageable.length, 'queue')} ${verb === 'pause' ? 'paused' : 'resumed'}`;
    });
  return (
    <section class="bar" aria-label="Selection">
      <b>{several(chosen.length, 'queue')} selected</b>
      {manageable.length > 0 && (
        <>
          <button type="button" onClick={() => void change('pause')}>
            <Icon name="paused" /> Pause
          </button>
          <button type="button" onClick={() => void change('resume')}>
            <Icon name="play" /> Resume
          </button>
        </>
      )}
      <button type="button" class="quiet" onClick={onDone}>
        Select none
      </button>
    </section>
  );
}

function ColumnChoice() {
  return (
    <Menu
      title="Columns"
      label={
        <>
          <Icon name="columns" /> Columns
        </>
      }
      className=""
    >
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

function SavedViews() {
  const save = (event: SubmitEvent): void => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const name = String(new FormData(form).get('name') ?? '').trim();
    if (name === '') return;
    const others = savedViews.value.filter((view) => view.name !== name);
    savedViews.value = [...others, { name, query: address.peek().query.toString() }];
    form.reset();
  };
  return (
    <Menu
      title="Saved views"
      label={
        <>
          <Icon name="bookmark" /> Views
        </>
      }
      className=""
    >
      {savedViews.value.map(({ name, query }) => (
        <div key={name} class="row saved">
          <a href={`${href(['queues'])}?${query}`}>{name}</a>
          <button
            type="button"
            class="square"
            aria-label={`Remove view ${name}`}
            onClick={() => {
              savedViews.value = savedViews.value.filter((view) => view.name !== name);
            }}
          >
            <Icon name="close" />
          </button>
        </div>
      ))}
      <form class="row save" onSubmit={save}>
        <input name="name" placeholder="Name of this view" aria-label="Name of this view" maxLength={60} />
        <button type="submit">Save</button>
      </form>
    </Menu>
  );
}
