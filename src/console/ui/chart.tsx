import { useSignal } from '@preact/signals';
import { exact } from '../format.ts';
import { Icon } from './icon.tsx';
import { Plot, valueText } from './plot.tsx';

export interface ChartLine {
  readonly name: string;
  /** A custom property of the style sheet. */
  readonly colour: string;
  readonly values: readonly (number | null)[];
}

/** A line chart over time. A button shows the same numbers as a table. */
export function Chart({
  title,
  unit,
  times,
  lines,
  format,
  steps,
  least = 1,
}: {
  readonly title: string;
  readonly unit: string;
  /** In ms since 1970. */
  readonly times: readonly number[];
  readonly lines: readonly ChartLine[];
  readonly format: (value: number) => string;
  /** Allowed distances between the marks of the axis. Default: round numbers. */
  readonly steps?: readonly number[];
  /** The smallest difference that `format` shows. */
  readonly least?: number;
}) {
  const isTable = useSignal(false);
  const latest = lines.map(({ name, values }) => `${name} ${valueText(values.at(-1), format)}`);
  return (
    <figure class="chart">
      <figcaption>
        <h2>{title}</h2>
        <span class="muted">{unit}</span>
        <button
          type="button"
          class="quiet square"
          aria-pressed={isTable.value}
          aria-label={`${title} as a table`}
          title="As a table"
          onClick={() => {
            isTable.value = !isTable.value;
          }}
        >
          <Icon name="columns" />
        </button>
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
        <ChartTable times={times} lines={lines} format={format} title={title} />
      ) : (
        <Plot
          label={`${title}: ${latest.join(', ')}`}
          times={times}
          lines={lines}
          format={format}
          steps={steps}
          unit={least}
        />
      )}
    </figure>
  );
}

function ChartTable({
  times,
  lines,
  format,
  title,
}: {
  readonly times: readonly number[];
  readonly lines: readonly ChartLine[];
  readonly format: (value: number) => string;
  readonly title: string;
}) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <section class="plot scrolls" tabIndex={0} aria-label={`${title}, as a table`}>
      <table class="plain">
        <thead>
          <tr>
            <th scope="col">Time</th>
            {lines.map(({ name }) => (
              <th key={name} scope="col" class="number">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {times
            .map((at, i) => (
              <tr key={at}>
                <td>{exact(at)}</td>
                {lines.map(({ name, values }) => (
                  <td key={name} class="number">
                    {valueText(values[i], format)}
                  </td>
                ))}
              </tr>
            ))
            .reverse()}
        </tbody>
      </table>
    </section>
  );
}
