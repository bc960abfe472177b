import type { TriedElement } from '../remote/dry-runs.ts';
import { seenPayload } from '../remote/exchanges.ts';
import { Badge } from '../ui/states.tsx';

/** What a selector wrote with `console.log`. */
function LogLines({ lines }: { readonly lines: readonly string[] }) {
  return (
    <>
      {lines.map((line, i) => (
        <div key={i} class="mono muted selector">
          <bdi>{line}</bdi>
        </div>
      ))}
    </>
  );
}

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
            {rows.map(({ id, result: { saw, dst, strays_to, overrun, logs } }) => (
              <tr key={id}>
                <td>
                  <span class="mono">{id}</span>
                  <div class="muted">seen as {seenPayload(saw)}</div>
                </td>
                <td>
                  {dst.map(({ q, accepted, error, logs: ofSelector }, i) => (
                    <div key={i}>
                      <Badge level={error !== null ? 'bad' : accepted ? 'good' : 'plain'}>
                        {accepted ? 'goes to' : 'not to'}
                      </Badge>{' '}
                      {q} {error !== null && <span class="operation-error">{error}</span>}
                      <LogLines lines={ofSelector} />
                    </div>
                  ))}
                  {strays_to !== null && <div class="muted">no destination accepts it: to {strays_to}</div>}
                  {overrun !== null && <div class="operation-error">{overrun}</div>}
                  <LogLines lines={logs} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}
