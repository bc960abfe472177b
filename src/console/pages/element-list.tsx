import { type Signal, useComputed, useSignal } from '@preact/signals';
import { useLayoutEffect, useRef } from 'preact/hooks';
import type { DeliveryState } from '../../model/element.ts';
import type { BrowsedElement, OperationWhere, QueueRecord } from '../../model/records.ts';
import { get, isTemporary, type QueueNamed, queuePath } from '../api.ts';
import { bytes, count, named, several } from '../format.ts';
import { holderText, type ListFilter, listElements, selectorOf } from '../remote/elements.ts';
import { connection, delayStream, keyOf, queues, version } from '../remote/live.ts';
import { useReconnect } from '../remote/resource.ts';
import { address, elementHref, href, setQuery } from '../route.ts';
import { may, session } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { onData, optionsOf, Select } from '../ui/form.tsx';
import { Icon, type IconName } from '../ui/icon.tsx';
import { actionsOn, BULK_ACTIONS, type BulkAction, OperationDialog } from '../ui/operation-dialog.tsx';
import { Badge, Empty, Failure, type Level, Loading, NeedsRight, NewBar } from '../ui/states.tsx';
import { RowTable, type TableColumn } from '../ui/table.tsx';
import { When } from '../ui/when.tsx';

const STATES: readonly DeliveryState[] = ['ready', 'scheduled', 'reserved'];
const STATE_BADGES: Readonly<Record<DeliveryState, readonly [string, IconName, Level]>> = {
  ready: ['Ready', 'ok', 'good'],
  scheduled: ['Scheduled', 'clock', 'plain'],
  reserved: ['Reserved', 'lock', 'accent'],
};

export function StateBadge({ state }: { readonly state: DeliveryState }) {
  const [name, icon, level] = STATE_BADGES[state];
  return (
    <Badge level={level} icon={icon}>
      {name}
    </Badge>
  );
}

/** The part of a list that has been loaded. */
interface LoadedList {
  readonly elements: readonly BrowsedElement[];
  /** Cursor of the page behind, which is being loaded, or failed, or is to be loaded; null: the first, or none. */
  readonly next: string | null;
  readonly looked: number;
  readonly error: unknown;
  readonly isLoading: boolean;
  readonly selectorError: string | null;
  /** The counts of the queue just before the list was loaded; null if the user may not read them. */
  readonly counts: ListedCounts | null;
  /** In a stream, the group of the listed deliveries; null: the server chose it. */
  readonly group: string | null;
}

const NOTHING: LoadedList = {
  elements: [],
  next: null,
  looked: 0,
  error: null,
  isLoading: true,
  selectorError: null,
  counts: null,
  group: null,
};

/** The elements of a queue, with states, search, selection and actions. Changes only when the user reloads it. */
export function ElementList({
  of,
  status,
}: {
  readonly of: QueueNamed;
  readonly status: QueueRecord | null;
}) {
  const { ns, queue } = of;
  const { query } = address.value;
  const given = query.get('state');
  const filter: ListFilter = {
    state: STATES.find((state) => state === given) ?? null,
    group: query.get('group'),
    search: query.get('search') ?? '',
  };
  const hidesBodies = session.value?.maskedBodies.includes(ns) === true;
  const list = useSignal<LoadedList>(NOTHING);
  const selected = useSignal<ReadonlyMap<string, BrowsedElement>>(new Map());
  const action = useSignal<{ readonly action: BulkAction; readonly where: OperationWhere } | null>(null);
  const stop = useRef<AbortController | null>(null);
  const picture = useComputed(() => {
    version.value;
    return queues.get(keyOf(of)) ?? null;
  });

  const isList = status?.type.endsWith(':list') === true;
  const group = filter.group ?? list.value.group;
  // Reading creates no queue, so the address may name one that does not exist.
  const isKnown = picture.value !== null || connection.value !== 'live' || !may('read', ns);

  const load = async (next: string | null): Promise<void> => {
    stop.current?.abort();
    stop.current = new AbortController();
    const { signal } = stop.current;
    const before = next === null ? NOTHING : list.peek();
    list.value = { ...before, isLoading: true, error: null };
    if (next === null) selected.value = new Map();
    try {
      // Read the counter from the server, because the stream may lag behind the list, and before the list, so that no
      // later insert is missed.
      const fresh =
        next === null && may('read', ns) ? await get<QueueRecord>(queuePath(of, 'status'), { signal }) : null;
      // The server's default group need not have any element here.
      const listed = filter.group ?? Object.keys(fresh?.groups ?? {})[0] ?? before.group;
      const counts = fresh === null ? before.counts : countsIn(fresh, listed);
      list.value = { ...list.peek(), counts, group: listed };
      // The server examines a limited number of elements for a page: a search continues until it has found one.
      while (list.peek().isLoading) {
        const { elements, looked, selectorError, next: after } = list.peek();
        const page = await listElements(of, { ...filter, group: listed }, { after, hidesBodies, signal });
        signal.throwIfAborted();
        list.value = {
          ...list.peek(),
          elements: [...elements, ...withoutListed(elements, page.elements)],
          next: page.next,
          looked: looked + page.looked,
          isLoading: page.elements.length === 0 && page.next !== null,
          selectorError: page.error?.message ?? selectorError,
        };
      }
    } catch (error) {
      if (!signal.aborted) list.value = { ...list.peek(), isLoading: false, error };
    }
  };
  const stopLoading = (): void => {
    stop.current?.abort();
    list.value = { ...list.peek(), isLoading: false };
  };
  const mayBrowse = may('browse', ns);
  useLayoutEffect(() => {
    if (!mayBrowse) return undefined;
    delayStream(load(null));
    return () => stop.current?.abort();
  }, [keyOf(of), filter.state, filter.group, filter.search, mayBrowse]);
  const retry = (): void => void load(list.peek().next);
  useReconnect(() => {
    if (isTemporary(list.peek().error)) retry();
  });

  const start = (name: BulkAction): void => {
    const ids = [...selected.value.keys()];
    const selector = ids.length > 0 ? null : selectorOf(filter.search, hidesBodies);
    const where = {
      ...(group !== null && { group }),
      ...(filter.state !== null && { state: filter.state }),
      ...(ids.length > 0 && { ids }),
      ...(selector !== null && { selector }),
    };
    action.value = { action: name, where };
  };
  const { elements, isLoading, error, next, looked, selectorError, counts } = list.value;
  // The stream of events counts only elements, not the deliveries of a group.
  const sizes = group === null ? picture.value : (status?.groups?.[group] ?? null);
  const latest = group === null ? picture.value : status;
  const changes = isLoading || latest === null ? NO_CHANGES : changesSince(counts, countsIn(latest, group));

  if (!mayBrowse) {
    return <NeedsRight title="You may not browse elements here" right="browse" ns={ns} />;
  }
  return (
    <section class="card" aria-label="Elements">
      <header>
        <nav class="tabs grow" aria-label="States">
          {[null, ...STATES].map((state) => (
            <a
              key={state}
              href={href(['q', ns, queue], { ...Object.fromEntries(query), state })}
              aria-current={state === filter.state ? 'true' : undefined}
            >
              {state === null ? 'All' : STATE_BADGES[state][0]} <CountOf sizes={sizes} state={state} />
            </a>
          ))}
        </nav>
        {status?.groups !== undefined && <GroupChoice groups={Object.keys(status.groups)} value={group} />}
      </header>
      <header>
        <SearchForm search={filter.search} />
        <Button icon="refresh" class="quiet" aria-label="Reload" onClick={() => void load(null)}>
          <span class="wide-only">Reload</span>
        </Button>
      </header>
      {may('manage', ns) && isList && elements.length > 0 && (
        <p class="bar">
          Elements of a Redis list cannot be changed individually. Purge removes all that are waiting.
        </p>
      )}
      {may('manage', ns) && !isList && elements.length > 0 && (
        <ActionBar ns={ns} list={list.value} state={filter.state} selected={selected} onAction={start} />
      )}
      <NewBar {...changes} onShow={() => void load(null)} />
      {selectorError !== null && (
        <div class="body">
          <Failure error={`The search failed for some elements, which are left out: ${selectorError}`} />
        </div>
      )}
      {error !== null && (
        <div class="body">
          <Failure error={error} retry={retry} />
        </div>
      )}
      {elements.length > 0 && (
        <RowTable
          label={`Elements of ${named(queue)}`}
          rows={elements}
          keyOf={({ id }) => id}
          nameOf={({ id }) => id}
          columns={columnsOf(of, group, { isList, isHeld: filter.state === 'reserved' })}
          {...(may('manage', ns) && !isList && { selected })}
        />
      )}
      {elements.length === 0 && !isLoading && error === null && next === null && (
        <NoElements
          search={filter.search}
          state={filter.state}
          looked={looked}
          queue={isKnown ? null : queue}
          mayHaveGroups={!may('read', ns) && filter.group === null}
        />
      )}
      {isLoading && <Loading what={elements.length === 0 ? 'Searching' : 'Loading more'} />}
      {next !== null && (
        <div class="bar">
          {isLoading ? (
            <Button onClick={stopLoading}>Stop</Button>
          ) : (
            <Button onClick={() => void load(next)}>Load more</Button>
          )}
          <span class="muted">
            {several(elements.length, 'element')} listed, {count(looked)} searched
          </span>
        </div>
      )}
      {action.value !== null && (
        <OperationDialog
          action={action.value.action}
          where={action.value.where}
          source={of}
          onClose={(outcome) => {
            action.value = null;
            if (outcome !== 'none') void load(null);
          }}
        />
      )}
    </section>
  );
}

/** How many elements were inserted into a queue, in a stream into one of its groups, and how many it has. */
interface ListedCounts {
  readonly inserted: number;
  readonly total: number;
}

function countsIn(
  { stats, totalSize, groups }: Pick<QueueRecord, 'stats' | 'totalSize' | 'groups'>,
  group: string | null,
): ListedCounts {
  if (group === null) return { inserted: stats.put, total: totalSize };
  return { inserted: stats.groups?.[group]?.put ?? 0, total: groups?.[group]?.totalSize ?? 0 };
}

const NO_CHANGES = { added: 0, removed: 0 };

/** Returns how many elements were inserted, and how many have left the queue, since it had these counts. */
function changesSince(before: ListedCounts | null, { inserted, total }: ListedCounts): typeof NO_CHANGES {
  if (before === null) return NO_CHANGES;
  // Not limited to 0 in the sum: counts of the stream may be older than those of the list.
  const added = inserted - before.inserted;
  return { added: Math.max(0, added), removed: Math.max(0, before.total + added - total) };
}

/** Removes elements that are listed already: one that was rolled back between two pages is returned again. */
function withoutListed(
  listed: readonly BrowsedElement[],
  more: readonly BrowsedElement[],
): readonly BrowsedElement[] {
  const known = new Set(listed.map(({ id }) => id));
  return more.filter(({ id }) => !known.has(id));
}

function CountOf({
  sizes,
  state,
}: {
  readonly sizes: { size: number; schedSize: number; resvSize: number; totalSize: number } | null;
  readonly state: DeliveryState | null;
}) {
  if (sizes === null) return null;
  const value = { ready: sizes.size, scheduled: sizes.schedSize, reserved: sizes.resvSize };
  return <b class="number">{count(state === null ? sizes.totalSize : value[state])}</b>;
}

function GroupChoice({
  groups,
  value,
}: {
  readonly groups: readonly string[];
  readonly value: string | null;
}) {
  return (
    <span class="row">
      <span class="muted">Group</span>
      <Select
        label="Group"
        value={value ?? ''}
        options={[...(value === null ? [['', 'the first'] as const] : []), ...optionsOf(groups)]}
        onChange={(group) => setQuery({ group })}
      />
    </span>
  );
}

function SearchForm({ search }: { readonly search: string }) {
  const field = useRef<HTMLInputElement>(null);
  // Update the field when the browser's buttons change the address, without a new render: it keeps the focus.
  useLayoutEffect(() => {
    if (field.current !== null) field.current.value = search;
  }, [search]);
  return (
    <form
      class="row grow search"
      onSubmit={onData((data) => setQuery({ search: String(data.get('search')) }))}
    >
      <input
        ref={field}
        type="search"
        name="search"
        data-find
        placeholder="Text, or a selector"
        title="Text in the id, the headers or the body; or a selector, such as env.msg.tries > 3"
        aria-label="Search elements"
        spellcheck={false}
      />
      <button type="submit">
        <Icon name="search" /> Search
      </button>
    </form>
  );
}

/** The server's limit of ids. */
const MAX_SELECTED = 1_000;

/** Actions that the state allows, on the selected elements, or on all that match if none is selected. */
function ActionBar({
  ns,
  list: { elements, next },
  state,
  selected,
  onAction,
}: {
  readonly ns: string;
  readonly list: LoadedList;
  readonly state: DeliveryState | null;
  readonly selected: Signal<ReadonlyMap<string, BrowsedElement>>;
  readonly onAction: (action: BulkAction) => void;
}) {
  const { size } = selected.value;
  const listed = elements.length;
  const isDeadLetters = elements.some(({ headers }) => 'x-dl-from-queue' in headers);
  const mayRedrive = isDeadLetters && state !== 'reserved' && may('write', ns);
  const allowed = [...(mayRedrive ? ['redrive' as const] : []), ...actionsOn(ns, state)];
  const subject =
    size > 0
      ? `${count(size)} selected`
      : next !== null
        ? 'All that match'
        : listed === 1
          ? 'The only match'
          : `All ${count(listed)} that match`;
  return (
    <fieldset class="bar" aria-label={`Actions on: ${subject}`}>
      <b>{subject}</b>
      {size > MAX_SELECTED && (
        <span>
          An action takes up to {count(MAX_SELECTED)} selected elements. Select fewer, or none and search.
        </span>
      )}
      {(size > MAX_SELECTED ? [] : allowed).map((action) => (
        <Button
          key={action}
          icon={BULK_ACTIONS[action].icon}
          class={action === 'delete' ? 'danger' : ''}
          onClick={() => onAction(action)}
        >
          {BULK_ACTIONS[action].name} …
        </Button>
      ))}
      {size > 0 && (
        <Button class="quiet" onClick={() => (selected.value = new Map())}>
          Select none
        </Button>
      )}
    </fieldset>
  );
}

/** A selector sees a longer number in JSON rounded to the nearest JavaScript number. */
const LONG_NUMBER = /\d{16}/;

function NoElements({
  search,
  state,
  looked,
  queue,
  mayHaveGroups,
}: {
  readonly search: string;
  readonly state: DeliveryState | null;
  readonly looked: number;
  /** The name of a queue that does not exist; null: it does. */
  readonly queue: string | null;
  /** Whether the queue may be a stream with other groups than the listed one, which the user may not read. */
  readonly mayHaveGroups: boolean;
}) {
  if (queue !== null) {
    return (
      <Empty title={`There is no queue ${named(queue)} now`} icon="search">
        A queue exists from its first insert until it is deleted, or until it has been empty and unused for a
        day.
      </Empty>
    );
  }
  if (search !== '') {
    return (
      <Empty title="No element matches" icon="search">
        {several(looked, 'element')} searched.{' '}
        {LONG_NUMBER.test(search) && 'Only the first 15 digits of a number in JSON can be found. '}
        <Button class="link" onClick={() => setQuery({ search: null })}>
          Show all
        </Button>
      </Empty>
    );
  }
  if (state !== null) {
    return (
      <Empty title={`No element is ${state}`} icon={STATE_BADGES[state][1]}>
        <Button class="link" onClick={() => setQuery({ state: null })}>
          Show all states
        </Button>
      </Empty>
    );
  }
  if (mayHaveGroups) {
    return (
      <Empty title="There is no element here">
        Of a stream, only the first group is listed: you need the right <code>read</code> to choose another.
      </Empty>
    );
  }
  return <Empty title="The queue is empty">Inserted elements are listed here until they are consumed.</Empty>;
}

function columnsOf(
  of: QueueNamed,
  group: string | null,
  {
    isList,
    isHeld,
  }: {
    /** Whether elements have no page of their own. */
    readonly isList: boolean;
    /** Whether the holders are shown in place of states: all elements are reserved. */
    readonly isHeld: boolean;
  },
): readonly TableColumn<BrowsedElement>[] {
  return [
    {
      id: 'id',
      title: 'Id',
      width: 'minmax(6.5rem, 1.2fr)',
      cell: ({ id }) =>
        isList ? (
          <span class="mono">{id}</span>
        ) : (
          <a class="mono" href={elementHref(of, id, group)}>
            {id}
          </a>
        ),
    },
    isHeld
      ? HOLDER
      : { id: 'state', title: 'State', width: '8rem', cell: ({ state }) => <StateBadge state={state} /> },
    {
      id: 'body',
      title: 'Body',
      width: 'minmax(10rem, 3fr)',
      isMinor: true,
      cell: ({ text, base64, bytes: size }) => (
        <span class="mono preview" dir="auto">
          {text?.slice(0, 200) ??
            (base64 === undefined ? (
              <i class="muted">hidden</i>
            ) : size === 0 ? (
              ''
            ) : (
              <i class="muted">binary</i>
            ))}
        </span>
      ),
    },
    {
      id: 'reason',
      title: 'Last failure',
      width: 'minmax(7rem, 1fr)',
      isMinor: true,
      cell: ({ reason, headers }) => <LastFailure reason={reason ?? headers['x-dl-reason']} />,
    },
    { id: 'tries', title: 'Tries', width: '4rem', isNumber: true, isMinor: true, cell: ({ tries }) => tries },
    {
      id: 'bytes',
      title: 'Size',
      width: '5.5rem',
      isNumber: true,
      isMinor: true,
      cell: (one) => bytes(one.bytes),
    },
    { id: 'at', title: 'When', width: 'minmax(7rem, 1fr)', cell: (element) => <Due element={element} /> },
  ];
}

const HOLDER: TableColumn<BrowsedElement> = {
  id: 'holder',
  title: 'Held by',
  width: 'minmax(8rem, 1.4fr)',
  cell: ({ holder }) => {
    const text = holder === null ? '–' : holderText(holder);
    return <span title={text}>{text}</span>;
  },
};

function LastFailure({ reason = '–' }: { readonly reason: string | undefined }) {
  return (
    <span dir="auto" title={reason}>
      {reason}
    </span>
  );
}

/** The most relevant time in a state. */
function Due({ element: { state, mature, insertedAt, holder } }: { readonly element: BrowsedElement }) {
  if (state === 'scheduled') return <When at={mature} />;
  if (state === 'reserved' && holder !== null) {
    return (
      <>
        <span class="roomy-only">until </span>
        <When at={holder.until} />
      </>
    );
  }
  return <When at={insertedAt} />;
}
