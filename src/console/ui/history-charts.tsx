import type { QueueHistory, SumHistory } from '../../model/records.ts';
import { duration, rate, shortCount } from '../format.ts';
import { type ChartMinutes, chartMinutes } from '../preferences.ts';
import { useGet } from '../remote/resource.ts';
import { Chart } from './chart.tsx';
import { Select } from './form.tsx';
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
