import { useSignal } from '@preact/signals';
import { exact } from '../format.ts';
import { Button } from './button.tsx';
import { PlainTable } from './plain-table.tsx';
import { type ChartContent, Plot, valueText } from './plot.tsx';

/** A line chart over time. A button shows the same numbers as a table. */
export function Chart({
  title,
  unit,
  ...content
}: ChartContent & { readonly title: string; readonly unit: string }) {
  const { lines, format } = content;
  const isTable = useSignal(false);
  const latest = lines.map(({ name, values }) => `${name} ${valueText(values.at(-1), format)}`);
  return (
    <figure class="chart">
      <figcaption>
        <h2>{title}</h2>
        <span class="muted">{unit}</span>
        <Button
          icon="columns"
          class="quiet square"
          aria-pressed={isTable.value}
          aria-label={`${title} as a table`}
          title="As a table"
          onClick={() => (isTable.value = !isTable.value)}
        />
        <ul class="legend">
          {lines.map(({ name, colour, values }) => (
            <li key={name}>
              <span class="swatch" style={{ background: `var(${colour})` }} />
              {name} <b>{valueText(values.at(-1), format)}</b>
            </li>
          ))}
        </ul>
      </figcaption>
      {isTable.value ? (
        <ChartTable title={title} {...content} />
      ) : (
        <Plot label={`${title}: ${latest.join(', ')}`} {...content} />
      )}
    </figure>
  );
}

function ChartTable({ title, times, lines, format }: ChartContent & { readonly title: string }) {
  return (
    <div class="plot">
      <PlainTable
        label={`${title}, as a table`}
        rows={times.map((at, i) => ({ at, i })).reverse()}
        keyOf={({ at }) => String(at)}
        columns={[
          { title: 'Time', className: 'nowrap', cell: ({ at }) => exact(at).slice(0, 16) },
          ...lines.map(({ name, values }) => ({
            title: name,
            isNumber: true,
            cell: ({ i }: { readonly i: number }) => valueText(values[i], format),
          })),
        ]}
      />
    </div>
  );
}
