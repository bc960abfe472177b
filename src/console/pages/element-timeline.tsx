import type { ComponentChildren } from 'preact';
import type { BrowsedElement } from '../../model/records.ts';
import { exact, several } from '../format.ts';
import { holderText } from '../remote/elements.ts';
import { clock } from '../remote/live.ts';
import { Card } from '../ui/card.tsx';
import { QueueLink } from '../ui/queue-link.tsx';
import { When } from '../ui/when.tsx';

interface TimelineEntry {
  readonly at: string;
  readonly what: ComponentChildren;
}

/** The known past and future events of an element, in order. The server stores no more history than this. */
export function ElementTimeline({
  ns,
  element: { insertedAt, mature, expiresAt, holder, headers, tries, reason },
}: {
  readonly ns: string;
  readonly element: BrowsedElement;
}) {
  const entries: TimelineEntry[] = [];
  const add = (at: string | null | undefined, what: ComponentChildren): void => {
    if (at != null && !Number.isNaN(Date.parse(at))) entries.push({ at, what });
  };
  add(insertedAt, 'Inserted');
  if (Date.parse(mature) > Date.parse(insertedAt))
    add(mature, Date.parse(mature) > clock.value ? 'Matures: ready from then on' : 'Matured');
  const from = headers['x-dl-from-queue'];
  if (from !== undefined) add(headers['x-dl-at'], <DeadLetterOrigin ns={ns} from={from} headers={headers} />);
  if (holder !== null) {
    add(holder.since, `Reserved by ${holderText(holder)}`);
    add(holder.until, 'The lease ends, unless it is extended or settled');
  }
  add(expiresAt, 'Expires: no longer delivered');
  entries.sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
  return (
    <Card label="Timeline" title="Timeline">
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
          <dd>{reason ?? '–'}</dd>
        </div>
      </dl>
    </Card>
  );
}

function DeadLetterOrigin({
  ns,
  from,
  headers: { 'x-dl-tries': tries = '0', 'x-dl-reason': reason },
}: {
  readonly ns: string;
  readonly from: string;
  readonly headers: BrowsedElement['headers'];
}) {
  return (
    <>
      Became a dead letter of <QueueLink ns={ns} queue={from} /> after{' '}
      {several(Number(tries), 'failed try', 'failed tries')}
      {reason !== undefined && `: ${reason}`}
    </>
  );
}
