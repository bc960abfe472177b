import { type DepthSample, KEPT_MS } from '../remote/series.ts';

const WIDTH = 96;
const HEIGHT = 20;

/** The depth of a queue while this page was open, as a small chart. A cell next to it shows the number. */
export function Spark({
  samples,
  now,
}: {
  readonly samples: readonly DepthSample[] | undefined;
  readonly now: number;
}) {
  if (samples === undefined || samples.length < 2) return <span class="spark-rest" />;
  const from = Math.max(samples[0]?.at ?? now, now - KEPT_MS);
  const span = Math.max(1, now - from);
  const top = Math.max(1, ...samples.map(({ size }) => size));
  const x = (at: number): string => ((Math.max(0, at - from) / span) * WIDTH).toFixed(1);
  const y = (size: number): string => (HEIGHT - 1.5 - (size / top) * (HEIGHT - 3)).toFixed(1);
  const steps = samples.map(({ at, size }, i) => {
    const before = samples[i - 1];
    return before === undefined ? `M${x(at)} ${y(size)}` : `L${x(at)} ${y(before.size)}L${x(at)} ${y(size)}`;
  });
  const last = samples.at(-1);
  return (
    <svg class="spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      <path d={`${steps.join('')}L${WIDTH} ${y(last?.size ?? 0)}`} />
    </svg>
  );
}
