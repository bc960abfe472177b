import type { TriedElement } from '../remote/dry-runs.ts';
import { Badge } from '../ui/states.tsx';

/** The results of a dry run with elements of the source. */
export function DryRunTable({ rows }: { readonly rows: readonly TriedElement[] }) {
  return (
    <section class="card" aria-label="Dry run" aria-live="polite">
      <header>
        <h2>Results for the first elements of the source</h2>
      </header>
      {rows.length === 0 ? (
        <p class="body muted">The source has no elements with a text body now.</p>
      ) : (
        <table class="plain">
          <tbody>
            {rows.map(({ id, result: { dst, strays_to, overrun } }) => (
              <tr key={id}>
                <td class="mono">{id}</td>
                <td>
                  {dst.map(({ q, accepted, error }, i) => (
                    <div key={i}>
                      <Badge level={error !== null ? 'bad' : accepted ? 'good' : 'plain'}>
                        {accepted ? 'goes to' : 'not to'}
                      </Badge>{' '}
                      {q} {error !== null && <span class="operation-error">{error}</span>}
                    </div>
                  ))}
                  {strays_to !== null && <div class="muted">no destination accepts it: to {strays_to}</div>}
                  {overrun !== null && <div class="operation-error">{overrun}</div>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}
