import { useSignal } from '@preact/signals';
import type { TargetedPointerEvent } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { exact } from '../format.ts';

const HEIGHT = 150;
const LEFT = 48;
const BOTTOM = 20;
const TOP = 8;
/** Minimum distance between marks of the time axis. */
const MARK_PX = 90;
const ROUND = [1, 2, 2.5, 5, 10];

interface ChartLine {
  readonly name: string;
  /** A custom property of the style sheet. */
  readonly colour: string;
  readonly values: readonly (number | null)[];
}

/** Lines over time. */
export interface ChartContent {
  /** In ms since 1970. */
  readonly times: readonly number[];
  readonly lines: readonly ChartLine[];
  readonly format: (value: number) => string;
  /** Allowed distances between the marks of the axis. Default: round numbers. */
  readonly steps?: readonly number[];
  /** The smallest difference that `format` shows. */
  readonly least?: number;
}

type PlotContent = ChartContent & { readonly label: string };

/**
 * A line chart as SVG. An hour has sixty points, for which a chart library would be half of what the page loads. The
 * lines are drawn once the width of the container is known, after the first render.
 */
export function Plot(content: PlotContent) {
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

export function valueText(value: number | null | undefined, format: (value: number) => string): string {
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
