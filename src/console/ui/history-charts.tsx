import type { QueueHistory, SumHistory } from '../../model/records.ts';
import { duration, rate, shortCount } from '../format.ts';
import { type ChartMinutes, chartMinutes } from '../preferences.ts';
import { Chart } from './chart.tsx';

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
    <select
      class="range"
      aria-label="Time range of the charts"
      value={chartMinutes.value}
      onChange={(event) => {
        chartMinutes.value = event.currentTarget.value as ChartMinutes;
      }}
    >
      {Object.entries(RANGES).map(([minutes, text]) => (
        <option key={minutes} value={minutes}>
          {text}
        </option>
      ))}
    </select>
  );
}

/** Charts of the chosen time range. The data come from the server, so that a page that was just opened is not empty. */
export function HistoryCharts({ history }: { readonly history: QueueHistory | SumHistory | null }) {
  const label = RANGES[chartMinutes.value];
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
