import { useSignal } from '@preact/signals';
import type { TargetedPointerEvent } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import type { QueueHistory, SumHistory } from '../../model/records.ts';
import { duration, exact, rate, shortCount } from '../format.ts';
import { type ChartMinutes, chartMinutes } from '../preferences.ts';
import { useGet } from '../remote/resource.ts';
import { Button } from './button.tsx';
import { Select } from './form.tsx';
import { PlainTable } from './plain-table.tsx';
import { Failure } from './states.tsx';

/** Distances between the marks of the age axis, in seconds. */
const AGE_STEPS = [
  1, 5, 10, 20, 60, 300, 600, 1_200, 3_600, 7_200, 21_600, 28_800, 86_400, 432_000, 864_000, 2_592_000,
  8_640_000, 31_536_000,
];

const RANGES: Readonly<Record<ChartMinutes, string>> = {
  '10': 'The last 10 min',
  '30': 'The last 30 min',
  '60': 'The last hour',
};

/** Chooses the time range of all charts on all pages. */
export function RangeChoice() {
  return (
    <Select
      label="Time range of the charts"
      className="range"
      value={chartMinutes.value}
      options={Object.entries(RANGES) as [ChartMinutes, string][]}
      onChange={(minutes) => (chartMinutes.value = minutes)}
    />
  );
}

/**
 * Charts of the chosen time range. The data come from the server, so that a page that was just opened is not empty.
 * @param where the path of the history, of a queue or of all
 */
export function Charts({ where }: { readonly where: string }) {
  const { value: history, error, reload } = useGet<QueueHistory | SumHistory>(where, { everyMs: 15_000 });
  const label = RANGES[chartMinutes.value];
  if (history === null && error !== null) return <Failure error={error} retry={reload} />;
  if (history === null) return <section class="card charts waiting" aria-label={label} />;
  const { from, intervalMs, size, schedSize, resvSize, insert, take } = history;
  const shown = Math.round((Number(chartMinutes.value) * 60_000) / intervalMs);
  const latest = <T,>(values: readonly T[]): readonly T[] => values.slice(-shown);
  const times = latest(size.map((_, i) => Date.parse(from) + i * intervalMs));
  return (
    <section class="card charts" aria-label={label}>
      <Chart
        title="In and out"
        unit="per second"
        times={times}
        format={rate}
        least={0.1}
        lines={[
          { name: 'In', colour: '--in', values: latest(insert) },
          { name: 'Out', colour: '--out', values: latest(take) },
        ]}
      />
      <Chart
        title="Depth"
        unit="elements"
        times={times}
        format={shortCount}
        lines={[
          { name: 'Ready', colour: '--in', values: latest(size) },
          { name: 'Scheduled', colour: '--out', values: latest(schedSize) },
          { name: 'Reserved', colour: '--reserved', values: latest(resvSize) },
        ]}
      />
      {'oldestReadyAge' in history && (
        <Chart
          title="Oldest ready"
          unit="age"
          times={times}
          format={(seconds) => duration(seconds * 1000)}
          steps={AGE_STEPS}
          lines={[{ name: 'Age', colour: '--in', values: latest(history.oldestReadyAge) }]}
        />
      )}
    </section>
  );
}

interface ChartLine {
  readonly name: string;
  /** A custom property of the style sheet. */
  readonly colour: string;
  readonly values: readonly (number | null)[];
}

/** Lines over time. */
interface ChartContent {
  /** In ms since 1970. */
  readonly times: readonly number[];
  readonly lines: readonly ChartLine[];
  readonly format: (value: number) => string;
  /** Allowed distances between the marks of the axis. Default: round numbers. */
  readonly steps?: readonly number[];
  /** The smallest difference that `format` shows. */
  readonly least?: number;
}

/** A line chart over time. A button shows the same numbers as a table. */
function Chart({
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

const HEIGHT = 150;
const LEFT = 48;
const BOTTOM = 20;
const TOP = 8;
/** Minimum distance between marks of the time axis. */
const MARK_PX = 90;
const ROUND = [1, 2, 2.5, 5, 10];

type PlotContent = ChartContent & { readonly label: string };

/**
 * A line chart as SVG. An hour has sixty points, for which a chart library would be half of what the page loads. The
 * lines are drawn once the width of the container is known, after the first render.
 */
function Plot(content: PlotContent) {
  const width = useSignal<number | null>(null);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = box.current;
    if (element === null) return undefined;
    const observer = new ResizeObserver(() => {
      width.value = Math.max(200, element.clientWidth);
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return (
    <div ref={box} class="plot">
      {width.value !== null && <Lines {...content} width={width.value} />}
    </div>
  );
}

function Lines({
  label,
  times,
  lines,
  format,
  steps,
  least = 1,
  width,
}: PlotContent & { readonly width: number }) {
  const pointed = useSignal<number | null>(null);
  const right = width - 8;
  const bottom = HEIGHT - BOTTOM;
  const largest = Math.max(0, ...lines.flatMap(({ values }) => values.map((value) => value ?? 0)));
  const step = stepOf(largest, steps, least);
  const top = step * Math.max(1, Math.ceil(largest / step));
  const x = (at: number): number => LEFT + (at / Math.max(1, times.length - 1)) * (right - LEFT);
  const y = (value: number): number => bottom - (value / top) * (bottom - TOP);
  const every = Math.max(1, Math.ceil(times.length / Math.max(1, Math.floor((right - LEFT) / MARK_PX))));
  const marks = Array.from({ length: Math.round(top / step) + 1 }, (_, i) => i * step);
  const point = (event: TargetedPointerEvent<SVGSVGElement>): void => {
    const { left } = event.currentTarget.getBoundingClientRect();
    const at = Math.round(((event.clientX - left - LEFT) / (right - LEFT)) * (times.length - 1));
    pointed.value = at >= 0 && at < times.length ? at : null;
  };
  return (
    <>
      <svg
        width={width}
        height={HEIGHT}
        role="img"
        aria-label={label}
        onPointerMove={point}
        onPointerLeave={() => {
          pointed.value = null;
        }}
      >
        {marks.map((value) => (
          <g key={value}>
            <line class="grid" x1={LEFT} x2={right} y1={y(value)} y2={y(value)} />
            <text x={LEFT - 6} y={y(value) + 4} text-anchor="end">
              {format(value)}
            </text>
          </g>
        ))}
        {times.map((at, i) =>
          (times.length - 1 - i) % every === 0 && i > 0 ? (
            <text key={at} x={x(i)} y={HEIGHT - 4} text-anchor={i === times.length - 1 ? 'end' : 'middle'}>
              {exact(at).slice(11, 16)}
            </text>
          ) : null,
        )}
        {lines.map(({ name, colour, values }, i) => (
          <path
            key={name}
            class="line"
            // Every second line is dashed, to distinguish lines without their color.
            stroke-dasharray={i % 2 === 1 ? '5 3' : undefined}
            style={{ stroke: `var(${colour})` }}
            d={pathOf(values, x, y)}
          />
        ))}
        {pointed.value !== null && (
          <line class="pointer" x1={x(pointed.value)} x2={x(pointed.value)} y1={TOP} y2={bottom} />
        )}
      </svg>
      {pointed.value !== null && (
        <p class="pointed" aria-hidden="true">
          {exact(times[pointed.value] ?? 0).slice(0, 16)}
          {lines.map(({ name, values }) => ` · ${name} ${valueText(values[pointed.value ?? 0], format)}`)}
        </p>
      )}
    </>
  );
}

function valueText(value: number | null | undefined, format: (value: number) => string): string {
  return value === null || value === undefined ? '–' : format(value);
}

/** The path of a line, with gaps where values are unknown. */
function pathOf(
  values: readonly (number | null)[],
  x: (at: number) => number,
  y: (value: number) => number,
): string {
  return values
    .map((value, at) => {
      if (value === null) return '';
      const isStart = at === 0 || values[at - 1] === null;
      const here = `${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      // A value between two unknown ones becomes a dot.
      return isStart ? `M${here}h0.1` : `L${here}`;
    })
    .join('');
}

/** A round distance for three or four marks; a multiple of `unit`, since texts of marks show no fractions of it. */
function stepOf(largest: number, steps: readonly number[] | undefined, unit: number): number {
  const wanted = largest / 3;
  if (steps !== undefined) return steps.find((step) => step >= wanted) ?? steps.at(-1) ?? 1;
  if (wanted <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(Math.max(wanted, unit)));
  const isWhole = (step: number): boolean => Math.abs(step / unit - Math.round(step / unit)) < 1e-6;
  return power * (ROUND.find((factor) => factor * power >= wanted && isWhole(factor * power)) ?? 10);
}
