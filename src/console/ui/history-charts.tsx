import { duration, rate, shortCount } from '../format.ts';
import type { HistoryRecord } from '../remote/queue-status.ts';
import { Chart } from './chart.tsx';

/** Seconds. */
const AGE_STEPS = [1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 432_000, 864_000];

/** The last hour, as the server kept it: a page that was just opened is not empty. */
export function HistoryCharts({ history }: { readonly history: HistoryRecord | null }) {
  if (history === null) return <section class="card charts waiting" aria-label="The last hour" />;
  const { from, intervalMs, size, schedSize, resvSize, oldestReadyAge, insert, take } = history;
  const times = size.map((_, i) => Date.parse(from) + i * intervalMs);
  return (
    <section class="card charts" aria-label="The last hour">
      <Chart
        title="In and out"
        unit="per second"
        times={times}
        format={rate}
        lines={[
          { name: 'In', colour: '--in', values: insert },
          { name: 'Out', colour: '--out', values: take },
        ]}
      />
      <Chart
        title="Depth"
        unit="elements"
        times={times}
        format={shortCount}
        lines={[
          { name: 'Ready', colour: '--in', values: size },
          { name: 'Scheduled', colour: '--out', values: schedSize },
          { name: 'Reserved', colour: '--reserved', values: resvSize },
        ]}
      />
      {oldestReadyAge !== undefined && (
        <Chart
          title="Oldest ready"
          unit="age"
          times={times}
          format={(seconds) => duration(seconds * 1000)}
          steps={AGE_STEPS}
          lines={[{ name: 'Age', colour: '--in', values: oldestReadyAge }]}
        />
      )}
    </section>
  );
}
