import type { ComponentChildren } from 'preact';

export interface PlainColumn<Row> {
  readonly title: string;
  readonly cell: (row: Row, at: number) => ComponentChildren;
  readonly isNumber?: boolean;
  /** The class of the column's cells. */
  readonly className?: string;
}

/** In a narrow window, tables with more columns stack the cells of a row, each with its title. */
const MAX_NARROW_COLUMNS = 4;

/** The title of the column of actions, for screen readers only. */
const ACTIONS = 'Actions';

/** A table of few rows. It scrolls if it is larger than its container. */
export function PlainTable<Row>({
  label,
  rows,
  keyOf,
  columns: given,
  actions,
  empty,
  isLow = false,
}: {
  readonly label: string;
  readonly rows: readonly Row[];
  readonly keyOf: (row: Row, at: number) => string;
  readonly columns: readonly PlainColumn<Row>[];
  /** What the user can do with a row, in a last column. */
  readonly actions?: (row: Row) => ComponentChildren;
  /** Shown in place of a table without rows. */
  readonly empty?: ComponentChildren;
  /** Limits the height, for pages with several tables. */
  readonly isLow?: boolean;
}) {
  if (rows.length === 0 && empty !== undefined) return <>{empty}</>;
  const columns =
    actions === undefined ? given : [...given, { title: ACTIONS, isNumber: true, cell: actions }];
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <section class={`scrolls ${isLow ? 'low' : ''}`} tabIndex={0} aria-label={label}>
      <table class={columns.length > MAX_NARROW_COLUMNS ? 'plain stacks' : 'plain'}>
        <thead>
          <tr>
            {columns.map(({ title, isNumber, cell }) => (
              <th key={title} scope="col" class={isNumber === true ? 'number' : ''}>
                {cell === actions ? <span class="visually-hidden">{title}</span> : title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, at) => (
            <tr key={keyOf(row, at)}>
              {columns.map(({ title, cell, isNumber, className = '' }) => (
                <td
                  key={title}
                  class={isNumber === true ? `number ${className}` : className}
                  data-title={cell === actions ? undefined : title}
                >
                  {cell(row, at)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
