import { exact, relative } from '../format.ts';
import { clock } from '../timers.ts';

/** A relative time, with the exact time on hover. */
export function When({ at }: { readonly at: string | number | null }) {
  if (at === null) return <span class="muted">–</span>;
  const ms = typeof at === 'number' ? at : Date.parse(at);
  return (
    <time dateTime={Number.isNaN(ms) ? undefined : new Date(ms).toISOString()} title={exact(ms)}>
      {relative(ms, clock.value)}
    </time>
  );
}
