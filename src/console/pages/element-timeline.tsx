import type { ComponentChildren } from 'preact';
import type { BrowsedElement } from '../../model/records.ts';
import { exact, several } from '../format.ts';
import type { WholeElement } from '../remote/elements.ts';
import { clock } from '../remote/live.ts';
import { QueueLink } from '../ui/queue-link.tsx';
import { When } from '../ui/when.tsx';

interface TimelineEntry {
  readonly at: string;
  readonly what: ComponentChildren;
}

/** The known past and future events of an element, in order. The server stores no more history than this. */
export function ElementTimeline({
  ns,
  whole,
  listed,
  headers,
}: {
  readonly ns: string;
  readonly whole: WholeElement | null;
  readonly listed: BrowsedElement | null;
  readonly headers: readonly (readonly [string, string])[];
}) {
  const header = (name: string): string | undefined => headers.find(([one]) => one === name)?.[1];
  const tries = whole?.tries ?? listed?.tries ?? 0;
  const entries: TimelineEntry[] = [];
  const add = (at: string | null | undefined, what: ComponentChildren): void => {
    if (at != null && !Number.isNaN(Date.parse(at))) entries.push({ at, what });
  };
  const inserted = whole?.insertedAt ?? listed?.insertedAt;
  const mature = whole?.mature ?? listed?.mature;
  const isDelayed = mature != null && inserted != null && Date.parse(mature) > Date.parse(inserted);
  add(inserted, 'Inserted');
  if (isDelayed) add(mature, Date.parse(mature) > clock.value ? 'Matures: ready from then on' : 'Matured');
  const from = header('x-dl-from-queue');
  if (from !== undefined) add(header('x-dl-at'), <DeadLetterOrigin ns={ns} from={from} header={header} />);
  if (listed?.holder != null) {
    const { user, tid, since, until } = listed.holder;
    add(since, `Reserved by ${user ?? 'an exchange'}${tid === null ? '' : `, tid ${tid}`}`);
    add(until, 'The lease ends, unless it is extended or settled');
  }
  add(listed?.expiresAt, 'Expires: no longer delivered');
  entries.sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
  return (
    <section class="card" aria-label="Timeline">
      <header>
        <h2>Timeline</h2>
      </header>
      <ol class="timeline body">
        {entries.map(({ at, what }, i) => (
          <li key={i} class={Date.parse(at) > clock.value ? 'to-come' : ''}>
            <span class="muted">
              <When at={at} />
              <small>{exact(Date.parse(at)).slice(0, 19)}</small>
            </span>
            <span>{what}</span>
          </li>
        ))}
      </ol>
      <dl class="pairs body">
        <div>
          <dt>Failed tries</dt>
          <dd>{tries}</dd>
        </div>
        <div>
          <dt>Last failure</dt>
          <dd>{listed?.reason ?? '–'}</dd>
        </div>
        <div>
          <dt>Expiry</dt>
          <dd>{listed === null ? 'unknown' : <When at={listed.expiresAt} />}</dd>
        </div>
      </dl>
    </section>
  );
}

function DeadLetterOrigin({
  ns,
  from,
  header,
}: {
  readonly ns: string;
  readonly from: string;
  readonly header: (name: string) => string | undefined;
}) {
  const tries = Number(header('x-dl-tries') ?? 0);
  const reason = header('x-dl-reason');
  return (
    <>
      Became a dead letter of <QueueLink ns={ns} queue={from} /> after{' '}
      {several(tries, 'failed try', 'failed tries')}
      {reason !== undefined && `: ${reason}`}
    </>
  );
}
