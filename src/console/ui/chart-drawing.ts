import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import type { Zone } from '../preferences.ts';
import type { ChartLine } from './chart.tsx';

const HEIGHT = 150;

/** How a chart writes its axes. */
interface ChartStyle {
  readonly format: (value: number) => string;
  readonly steps: readonly number[] | undefined;
  readonly zone: Zone;
}

/** One chart on the page; {@link update} gives it other values in place. */
export class ChartDrawing {
  readonly #plot: uPlot;
  readonly #observer: ResizeObserver;

  constructor(box: HTMLElement, lines: readonly ChartLine[], { format, steps, zone }: ChartStyle) {
    const style = getComputedStyle(box);
    // A canvas cannot read `light-dark()`: an element of the page resolves it.
    const probe = document.createElement('i');
    box.append(probe);
    const colour = (name: string): string => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    const axis = {
      stroke: colour('--muted'),
      font: `11px ${style.fontFamily}`,
      grid: { stroke: colour('--line'), width: 1 },
      ticks: { show: false },
    };
    this.#plot = new uPlot(
      {
        width: Math.max(200, box.clientWidth),
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false } },
        tzDate: (seconds) =>
          zone === 'utc' ? uPlot.tzDate(new Date(seconds * 1000), 'UTC') : new Date(seconds * 1000),
        scales: { y: { range: (_, __, max) => [0, Math.max(1, max * 1.1)] } },
        axes: [
          {
            ...axis,
            space: 60,
            size: 26,
            values: (_, splits) => splits.map((at) => clockTime(at * 1000, zone)),
          },
          {
            ...axis,
            size: 52,
            space: 34,
            values: (_, splits) => splits.map(format),
            ...(steps !== undefined && { incrs: [...steps] }),
          },
        ],
        series: [
          {},
          ...lines.map(({ name, colour: own }, i) => ({
            label: name,
            stroke: colour(own),
            width: 1.75,
            // The second line of a pair is dashed, so that the two differ without their colours.
            ...(i % 2 === 1 && { dash: [5, 3] }),
            points: { show: false },
          })),
        ],
      },
      [[], ...lines.map(() => [])],
      box,
    );
    probe.remove();
    this.#observer = new ResizeObserver(() => {
      if (box.clientWidth > 0) this.#plot.setSize({ width: box.clientWidth, height: HEIGHT });
    });
    this.#observer.observe(box);
  }

  update(times: readonly number[], lines: readonly ChartLine[]): void {
    this.#plot.setData([times.map((at) => at / 1000), ...lines.map(({ values }) => [...values])]);
  }

  close(): void {
    this.#observer.disconnect();
    this.#plot.destroy();
  }
}

function clockTime(at: number, zone: Zone): string {
  return new Date(at).toLocaleTimeString('en-GB', {
    hour: '2-digit',
    minute: '2-digit',
    ...(zone === 'utc' && { timeZone: 'UTC' }),
  });
}
