import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { exact } from '../format.ts';
import { zone } from '../preferences.ts';
import type { ChartLine } from './chart.tsx';

const HEIGHT = 150;
const LEFT = 48;
const BOTTOM = 20;
const TOP = 8;
/** Between marks of the time axis, at least. */
const MARK_PX = 90;
const ROUND = [1, 2, 2.5, 5, 10];

/** Lines over time as SVG: an hour has sixty points, for which a drawing library would be half of what the page loads. */
export function Plot({
  label,
  times,
  lines,
  format,
  steps,
}: {
  readonly label: string;
  readonly times: readonly number[];
  readonly lines: readonly ChartLine[];
  readonly format: (value: number) => string;
  readonly steps: readonly number[] | undefined;
}) {
  const width = useSignal(320);
  const pointed = useSignal<number | null>(null);
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
  const right = width.value - 8;
  const bottom = HEIGHT - BOTTOM;
  const largest = Math.max(0, ...lines.flatMap(({ values }) => values.map((value) => value ?? 0)));
  const step = stepOf(largest, steps);
  const top = step * Math.max(1, Math.ceil(largest / step));
  const x = (at: number): number => LEFT + (at / Math.max(1, times.length - 1)) * (right - LEFT);
  const y = (value: number): number => bottom - (value / top) * (bottom - TOP);
  const every = Math.max(1, Math.ceil(times.length / Math.max(1, Math.floor((right - LEFT) / MARK_PX))));
  const marks = Array.from({ length: Math.round(top / step) + 1 }, (_, i) => i * step);
  const point = (event: PointerEvent): void => {
    const left = box.current?.getBoundingClientRect().left ?? 0;
    const at = Math.round(((event.clientX - left - LEFT) / (right - LEFT)) * (times.length - 1));
    pointed.value = at >= 0 && at < times.length ? at : null;
  };
  return (
    <div
      ref={box}
      class="plot"
      onPointerMove={point}
      onPointerLeave={() => {
        pointed.value = null;
      }}
    >
      <svg width={width.value} height={HEIGHT} role="img" aria-label={label}>
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
              {clockTime(at)}
            </text>
          ) : null,
        )}
        {lines.map(({ name, colour, values }, i) => (
          <path
            key={name}
            class="line"
            // The second of a pair is dashed, so that the two differ without their colours.
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
    </div>
  );
}

export function valueText(value: number | null | undefined, format: (value: number) => string): string {
  return value === null || value === undefined ? '–' : format(value);
}

/** A break where a value is not known. */
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
      // A value between two that are not known is a dot.
      return isStart ? `M${here}h0.1` : `L${here}`;
    })
    .join('');
}

/** A round distance between marks, so that there are three or four. */
function stepOf(largest: number, steps: readonly number[] | undefined): number {
  const wanted = largest / 3;
  if (steps !== undefined) return steps.find((step) => step >= wanted) ?? steps.at(-1) ?? 1;
  if (wanted <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(wanted));
  return power * (ROUND.find((factor) => factor * power >= wanted) ?? 10);
}

/** Made once: a new one for each mark takes a tenth of the script that the overview needs. */
const CLOCK = { hour: '2-digit', minute: '2-digit' } as const;
const LOCAL_TIME = new Intl.DateTimeFormat('en-GB', CLOCK);
const UTC_TIME = new Intl.DateTimeFormat('en-GB', { ...CLOCK, timeZone: 'UTC' });

function clockTime(at: number): string {
  return (zone.value === 'utc' ? UTC_TIME : LOCAL_TIME).format(at);
}
