import type { FoundQueue } from '../../model/records.ts';
import { duration, rate, shortCount } from '../format.ts';
import { queueColumns } from '../preferences.ts';
import { clock, keyOf, readyForMs, samples } from '../remote/live.ts';
import { queueHref } from '../route.ts';
import { Menu } from '../ui/menu.tsx';
import { Spark } from '../ui/spark.tsx';
import { Badge } from '../ui/states.tsx';
import type { TableColumn } from '../ui/table.tsx';

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
  { id: 'ns', title: 'Namespace', isMinor: true, width: 'minmax(6.25rem, 1fr)', cell: ({ ns }) => ns },
  { ...NUMBER, id: 'ready', title: 'Ready', cell: ({ size }) => shortCount(size) },
  {
    ...NUMBER,
    isMinor: true,
    id: 'scheduled',
    title: 'Scheduled',
    width: 'minmax(6.25rem, 0.6fr)',
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
    width: 'minmax(7.25rem, 0.8fr)',
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
  const queueSamples = samples.get(keyOf(queue));
  return <Spark samples={queueSamples} now={queueSamples === undefined ? 0 : clock.value} />;
}

/** The columns that the user has chosen. */
export function chosenColumns(): readonly TableColumn<FoundQueue>[] {
  return COLUMNS.filter(({ id }) => ALWAYS.has(id) || queueColumns.value.includes(id));
}

export function ColumnChoice() {
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
