import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { exact } from '../format.ts';
import { theme, zone } from '../preferences.ts';
import type { ChartDrawing } from './chart-drawing.ts';
import { Icon } from './icon.tsx';

export interface ChartLine {
  readonly name: string;
  /** A custom property of the style sheet. */
  readonly colour: string;
  readonly values: readonly (number | null)[];
}

/** Lines over time, drawn by a library that is loaded when the first chart is shown. The same numbers as a table are a click away. */
export function Chart({
  title,
  unit,
  times,
  lines,
  format,
  steps,
}: {
  readonly title: string;
  readonly unit: string;
  /** In ms since 1970. */
  readonly times: readonly number[];
  readonly lines: readonly ChartLine[];
  readonly format: (value: number) => string;
  /** By which the values of the axis may differ; not given: round numbers. */
  readonly steps?: readonly number[];
}) {
  const isTable = useSignal(false);
  const box = useRef<HTMLDivElement>(null);
  const drawing = useRef<ChartDrawing | null>(null);
  const shown = `${theme.value} ${zone.value}`;
  useEffect(() => {
    if (isTable.value) return undefined;
    let isGone = false;
    void import('./chart-drawing.ts').then(({ ChartDrawing }) => {
      if (isGone || box.current === null) return;
      drawing.current = new ChartDrawing(box.current, lines, { format, steps, zone: zone.peek() });
      drawing.current.update(times, lines);
    });
    return () => {
      isGone = true;
      drawing.current?.close();
      drawing.current = null;
    };
  }, [shown, isTable.value]);
  useEffect(() => {
    drawing.current?.update(times, lines);
  }, [times, lines]);
  const latest = (values: ChartLine['values']): string => {
    const value = values.at(-1);
    return value === null || value === undefined ? '–' : format(value);
  };
  return (
    <figure class="chart">
      <figcaption>
        <h3>{title}</h3>
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
              {name} <b>{latest(values)}</b>
            </li>
          ))}
        </ul>
      </figcaption>
      {isTable.value ? (
        <ChartTable times={times} lines={lines} format={format} title={title} />
      ) : (
        <div
          ref={box}
          class="plot"
          role="img"
          aria-label={`${title}: ${lines.map(({ name, values }) => `${name} ${latest(values)}`).join(', ')}`}
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
                    {values[i] === null || values[i] === undefined ? '–' : format(values[i])}
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
