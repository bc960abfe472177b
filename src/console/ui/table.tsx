import { type Signal, signal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef } from 'preact/hooks';
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

/** Whether the window is too narrow for minor columns. */
const narrow = matchMedia('(max-width: 44rem)');
const isNarrow = signal(narrow.matches);
narrow.addEventListener('change', () => {
  isNarrow.value = narrow.matches;
});

/** A table of many rows, which have the same height. It scrolls under its head. */
export function RowTable<Row>({
  label,
  rows,
  keyOf,
  nameOf,
  columns: all,
  sort,
  onSort,
  selected,
}: {
  readonly label: string;
  readonly rows: readonly Row[];
  readonly keyOf: (row: Row) => string;
  readonly nameOf: (row: Row) => string;
  readonly columns: readonly TableColumn<Row>[];
  /** A column's id; a leading `-` sorts in descending order. */
  readonly sort?: string;
  readonly onSort?: (sort: string) => void;
  /** The selected rows by key, also those that are not listed; without it, users select none. */
  readonly selected?: Signal<ReadonlyMap<string, Row>>;
}) {
  const columns = isNarrow.value ? all.filter(({ isMinor }) => isMinor !== true) : all;
  const select = (some: readonly Row[], isSelected: boolean): void => {
    if (selected === undefined) return;
    const next = new Map(selected.peek());
    for (const row of some) {
      if (isSelected) next.set(keyOf(row), row);
      else next.delete(keyOf(row));
    }
    selected.value = next;
  };
  const body = useRef<HTMLTableSectionElement>(null);
  // Read while rendering, before a row that is gone is removed, and with it the focus.
  const focusedRow = body.current?.querySelector<HTMLTableRowElement>('tr:focus-within');
  const focusedAt = focusedRow?.sectionRowIndex;
  useLayoutEffect(() => {
    if (focusedAt === undefined || focusedRow?.isConnected === true) return;
    const { rows: left } = body.current as HTMLTableSectionElement;
    left[Math.min(focusedAt, left.length - 1)]?.querySelector<HTMLElement>('a, button')?.focus();
  });
  const widths = columns.map(({ width }) => width);
  const grid = [...(selected === undefined ? [] : ['2.25rem']), ...widths].join(' ');
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <section class="table-frame" tabIndex={0} aria-label={label}>
      <table class="rows" style={{ '--grid': grid }}>
        <thead>
          <tr>
            {selected !== undefined && (
              <th scope="col" class="box">
                <input
                  type="checkbox"
                  aria-label="Select all that are listed"
                  checked={rows.length > 0 && rows.every((row) => selected.value.has(keyOf(row)))}
                  onChange={(event) => select(rows, event.currentTarget.checked)}
                />
              </th>
            )}
            {columns.map((column) => (
              <HeadCell key={column.id} column={column} sort={sort} onSort={onSort} />
            ))}
          </tr>
        </thead>
        <tbody ref={body} onKeyDown={moveFocus}>
          {rows.map((row) => (
            <tr key={keyOf(row)} class={selected?.value.has(keyOf(row)) === true ? 'selected' : ''}>
              {selected !== undefined && (
                <td class="box">
                  <input
                    type="checkbox"
                    aria-label={`Select ${nameOf(row)}`}
                    checked={selected.value.has(keyOf(row))}
                    onChange={(event) => select([row], event.currentTarget.checked)}
                  />
                </td>
              )}
              {columns.map(({ id, cell, isNumber }) => (
                <td key={id} class={isNumber === true ? 'number' : ''}>
                  {cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

/** Arrow keys move the focus to the row before or after. */
function moveFocus(event: KeyboardEvent): void {
  if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return;
  const row = (event.target as HTMLElement).closest('tr');
  const next = event.key === 'ArrowDown' ? row?.nextElementSibling : row?.previousElementSibling;
  const target = next?.querySelector<HTMLElement>('a, button');
  if (target === null || target === undefined) return;
  event.preventDefault();
  target.focus();
  target.scrollIntoView({ block: 'nearest' });
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
