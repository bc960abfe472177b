import { signal, useSignal } from '@preact/signals';
import { Component, type ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useRef } from 'preact/hooks';
import { Icon } from './icon.tsx';

export interface TableColumn<Row> {
  readonly id: string;
  readonly title: string;
  readonly cell: (row: Row) => ComponentChildren;
  readonly isNumber?: boolean;
  readonly isSortable?: boolean;
  /** The column's width in the grid, such as `minmax(12rem, 2fr)`. */
  readonly width: string;
  /** Hidden in narrow windows. */
  readonly isMinor?: boolean;
}

export interface Selection {
  readonly keys: ReadonlySet<string>;
  readonly toggle: (key: string) => void;
  readonly toggleAll: () => void;
}

const ROW_PX = 34;
/** Whether the window is too narrow for minor columns. */
const narrow = matchMedia('(max-width: 44rem)');
const isNarrow = signal(narrow.matches);
narrow.addEventListener('change', () => {
  isNarrow.value = narrow.matches;
});
/** Rendered rows above and below the visible ones. */
const OVERSCAN = 10;
/** Scrolling renders other rows after this many; must be less than {@link OVERSCAN}. */
const STEP = 2;

/** A table whose rows have the same height. Only rows near the visible part are rendered. */
export function VirtualTable<Row>({
  label,
  rows,
  keyOf,
  nameOf,
  columns: all,
  sort,
  onSort,
  onOpen,
  selection,
  total = rows.length,
}: {
  readonly label: string;
  readonly rows: readonly Row[];
  readonly keyOf: (row: Row) => string;
  readonly nameOf: (row: Row) => string;
  readonly columns: readonly TableColumn<Row>[];
  /** A column's id; a leading `-` sorts in descending order. */
  readonly sort?: string;
  readonly onSort?: (sort: string) => void;
  readonly onOpen?: (row: Row) => void;
  readonly selection?: Selection;
  readonly total?: number;
}) {
  const columns = useStable(isNarrow.value ? all.filter(({ isMinor }) => isMinor !== true) : all);
  // Rows receive the same callbacks on each render: new functions would make all rows render again.
  const calls = useRef({ onOpen, toggle: selection?.toggle });
  calls.current = { onOpen, toggle: selection?.toggle };
  const { open, toggle } = useMemo(
    () => ({
      open: (row: Row) => calls.current.onOpen?.(row),
      toggle: (key: string) => calls.current.toggle?.(key),
    }),
    [],
  );
  const first = useSignal(0);
  const height = useSignal(600);
  const frame = useRef<HTMLDivElement>(null);
  // A row that is scrolled out of sight is removed. Its focus moves to the table, which the same keys scroll on.
  const focused = useRef<EventTarget | null>(null);
  useLayoutEffect(() => {
    if (!(focused.current instanceof Node) || focused.current.isConnected) return;
    focused.current = null;
    if (document.activeElement === document.body) frame.current?.focus({ preventScroll: true });
  });
  useEffect(() => {
    const box = frame.current;
    if (box === null) return undefined;
    const observer = new ResizeObserver(() => {
      height.value = box.clientHeight;
    });
    observer.observe(box);
    return () => observer.disconnect();
  }, []);
  const from = Math.max(0, first.value - OVERSCAN);
  const to = Math.min(rows.length, first.value + Math.ceil(height.value / ROW_PX) + STEP + OVERSCAN);
  const grid = [...(selection === undefined ? [] : ['2.25rem']), ...columns.map(({ width }) => width)].join(
    ' ',
  );
  const move = (event: KeyboardEvent): void => {
    if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return;
    const row = (event.target as HTMLElement).closest('tr');
    const next = event.key === 'ArrowDown' ? row?.nextElementSibling : row?.previousElementSibling;
    const target = next?.querySelector<HTMLElement>('a, button');
    if (target === null || target === undefined) return;
    event.preventDefault();
    target.focus();
    target.scrollIntoView({ block: 'nearest' });
  };
  const isAll =
    selection !== undefined && rows.length > 0 && rows.every((row) => selection.keys.has(keyOf(row)));
  return (
    <section
      ref={frame}
      class="table-frame"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
      tabIndex={0}
      aria-label={label}
      onScroll={(event) => {
        const row = Math.floor(event.currentTarget.scrollTop / ROW_PX);
        first.value = row - (row % STEP);
      }}
    >
      <table class="rows" aria-rowcount={total + 1} style={{ '--grid': grid }}>
        <thead>
          <tr aria-rowindex={1}>
            {selection !== undefined && (
              <th scope="col" class="box">
                <input
                  type="checkbox"
                  aria-label="Select all that are listed"
                  checked={isAll}
                  onChange={selection.toggleAll}
                />
              </th>
            )}
            {columns.map((column) => (
              <HeadCell key={column.id} column={column} sort={sort} onSort={onSort} />
            ))}
          </tr>
        </thead>
        <tbody
          onKeyDown={move}
          onFocusIn={(event) => {
            focused.current = event.target;
          }}
          style={{ height: `${rows.length * ROW_PX}px` }}
        >
          {rows.slice(from, to).map((row, i) => {
            const key = keyOf(row);
            return (
              <TableRow
                key={key}
                row={row}
                at={from + i}
                name={nameOf(row)}
                columns={columns}
                isSelected={selection?.keys.has(key)}
                onOpen={open}
                onToggle={toggle}
                rowKey={key}
              />
            );
          })}
        </tbody>
      </table>
    </section>
  );
}

/** Returns the previous list if it has the same members. */
function useStable<T>(list: readonly T[]): readonly T[] {
  const before = useRef(list);
  const { current } = before;
  if (current.length !== list.length || list.some((one, i) => one !== current[i])) before.current = list;
  return before.current;
}

interface RowParts<Row> {
  readonly row: Row;
  readonly rowKey: string;
  /** Index of the row, from 0. */
  readonly at: number;
  readonly name: string;
  readonly columns: readonly TableColumn<Row>[];
  /** Undefined: the table has no selection. */
  readonly isSelected: boolean | undefined;
  readonly onOpen: (row: Row) => void;
  readonly onToggle: (key: string) => void;
}

/** A row that renders again only if it has changed: most rows do not change while the table scrolls. */
class TableRow<Row> extends Component<RowParts<Row>> {
  override shouldComponentUpdate(next: RowParts<Row>, state: object): boolean {
    // When a signal that a cell reads changes, the state is replaced.
    if (state !== this.state) return true;
    const names = Object.keys(next) as (keyof RowParts<Row>)[];
    return names.some((name) => next[name] !== this.props[name]);
  }

  override render({ row, rowKey, at, name, columns, isSelected, onOpen, onToggle }: RowParts<Row>) {
    return (
      <tr
        aria-rowindex={at + 2}
        class={isSelected === true ? 'selected' : ''}
        style={{ transform: `translateY(${at * ROW_PX}px)` }}
        onDblClick={() => onOpen(row)}
      >
        {isSelected !== undefined && (
          <td class="box">
            <input
              type="checkbox"
              aria-label={`Select ${name}`}
              checked={isSelected}
              onChange={() => onToggle(rowKey)}
            />
          </td>
        )}
        {columns.map(({ id, cell, isNumber }) => (
          <td key={id} class={isNumber === true ? 'number' : ''}>
            {cell(row)}
          </td>
        ))}
      </tr>
    );
  }
}

function HeadCell<Row>({
  column: { id, title, isNumber, isSortable },
  sort,
  onSort,
}: {
  readonly column: TableColumn<Row>;
  readonly sort: string | undefined;
  readonly onSort: ((sort: string) => void) | undefined;
}) {
  const order = sort === id ? 'ascending' : sort === `-${id}` ? 'descending' : 'none';
  const name = isNumber === true ? 'number' : '';
  if (onSort === undefined || isSortable !== true) {
    return (
      <th scope="col" class={name}>
        {title}
      </th>
    );
  }
  // Numbers are first sorted in descending order, names in ascending order.
  const next = order === 'none' ? (isNumber === true ? `-${id}` : id) : order === 'ascending' ? `-${id}` : id;
  return (
    <th scope="col" class={name} aria-sort={order}>
      <button type="button" class="sort" onClick={() => onSort(next)}>
        {title}
        {order !== 'none' && <Icon name={order === 'ascending' ? 'up' : 'down'} />}
      </button>
    </th>
  );
}
