import { useSignal } from '@preact/signals';
import type {
  DeadLetterQueue,
  DeadLetters as DeadLetterSummary,
  OperationWhere,
} from '../../model/records.ts';
import { count, named, several } from '../format.ts';
import { havingHeader } from '../remote/elements.ts';
import { keyOf } from '../remote/live.ts';
import { useGet } from '../remote/resource.ts';
import { queueHref } from '../route.ts';
import { may, mayAnywhere } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Card } from '../ui/card.tsx';
import { OperationDialog } from '../ui/operation-dialog.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { QueueLink } from '../ui/queue-links.tsx';
import { Empty, Failure, Loading, NeedsRight } from '../ui/states.tsx';
import { When } from '../ui/when.tsx';

/** Dead-letter queues that are shown initially, and with each click: there may be 1,000, each with 200 rows. */
const SHOWN_QUEUES = 50;

/** The dead letters of all namespaces, by reason and by source, and their redrive. */
export function DeadLetters() {
  const summary = useGet<DeadLetterSummary>('dead-letters', { everyMs: 15_000 });
  const redriven = useSignal<{ readonly of: DeadLetterQueue; readonly where: OperationWhere } | null>(null);
  const all = summary.value?.queues ?? null;
  const leftOut = summary.value === null ? null : leftOutOf(summary.value);
  const held = all?.filter((one) => one.count > 0) ?? [];
  const total = held.reduce((sum, one) => sum + one.count, 0);
  const shown = useSignal(SHOWN_QUEUES);
  return (
    <>
      <div class="page-head">
        <h1 class="grow">Dead letters</h1>
        <span class="muted">{all !== null && several(total, 'dead letter')}</span>
        <Button icon="refresh" onClick={summary.reload}>
          Reload
        </Button>
      </div>
      <Failure error={summary.error} retry={summary.reload} />
      <Failure error={leftOut} />
      {all === null && summary.isLoading && <Loading what="Reading the dead-letter queues" />}
      {all !== null && held.length === 0 && leftOut === null && (
        <section class="card">
          {mayAnywhere('browse') ? (
            <Empty title="There are no dead letters">
              An element becomes a dead letter when its tries reach the maximum.
              {all.length === 0 &&
                ' No namespace that you may browse has a dead-letter queue: see the option deadLetter.'}
            </Empty>
          ) : (
            <NeedsRight title="You may not see dead letters" right="browse" />
          )}
        </section>
      )}
      {held.slice(0, shown.value).map((one) => (
        <QueueOfDeadLetters
          key={keyOf(one)}
          of={one}
          onRedrive={(where) => (redriven.value = { of: one, where })}
        />
      ))}
      {held.length > shown.value && (
        <Button class="link" onClick={() => (shown.value += SHOWN_QUEUES)}>
          {several(held.length - shown.value, 'more queue')}
        </Button>
      )}
      {redriven.value !== null && (
        <OperationDialog
          action="redrive"
          hasTimes
          source={redriven.value.of}
          where={redriven.value.where}
          onClose={() => {
            redriven.value = null;
            summary.reload();
          }}
        />
      )}
    </>
  );
}

/** Says which dead letters a summary does not list; null: it lists all. */
function leftOutOf({ unavailable = [], complete }: DeadLetterSummary): string | null {
  if (unavailable.length > 0)
    return `Dead letters of ${unavailable.join(', ')} are not listed: the engine is unavailable.`;
  return complete ? null : 'Not all dead-letter queues are listed, because there are too many.';
}

function QueueOfDeadLetters({
  of,
  onRedrive,
}: {
  readonly of: DeadLetterQueue;
  readonly onRedrive: (where: OperationWhere) => void;
}) {
  const { ns, queue, reasons, sources, oldest, looked, complete } = of;
  const isRedriver = may('manage', ns) && may('write', ns);
  const shared = { of, onRedrive: isRedriver ? onRedrive : null };
  return (
    <Card
      title={<QueueLink ns={ns} queue={queue} />}
      aside={
        <>
          <span>
            <b>{count(of.count)}</b> <span class="muted">· oldest</span> <When at={oldest} />
          </span>
          {isRedriver && (
            <Button icon="redrive" onClick={() => onRedrive({})}>
              Redrive all …
            </Button>
          )}
        </>
      }
    >
      <div class="columns dead">
        <Parts
          title="By reason"
          header="x-dl-reason"
          parts={reasons.map(({ reason, count: held }) => ({ name: reason, held }))}
          {...shared}
        />
        <Parts
          title="By source queue"
          header="x-dl-from-queue"
          parts={sources.map(({ queue: name, count: held }) => ({ name, held }))}
          {...shared}
        />
      </div>
      {!complete && (
        <p class="body muted">
          Based on the first {several(looked, 'element')} of the queue; there are more.
        </p>
      )}
    </Card>
  );
}

/** The dead letters of a queue by the value of a header. */
function Parts({
  title,
  header,
  parts,
  of: { ns, queue, looked },
  onRedrive,
}: {
  readonly title: string;
  readonly header: string;
  readonly parts: readonly { readonly name: string | null; readonly held: number }[];
  readonly of: DeadLetterQueue;
  /** Null: the user may not redrive them. */
  readonly onRedrive: ((where: OperationWhere) => void) | null;
}) {
  return (
    <PlainTable
      label={title}
      rows={parts}
      keyOf={({ name }) => JSON.stringify(name)}
      columns={[
        {
          title,
          className: 'reason',
          cell: ({ name, held }) => (
            <>
              <a
                title={name ?? undefined}
                href={queueHref(ns, queue, { search: havingHeader(header, name) })}
              >
                <bdi>{name ?? 'unknown'}</bdi>
              </a>
              <div class="meter thin" aria-hidden="true">
                <i style={{ width: `${(held / Math.max(1, looked)) * 100}%` }} />
              </div>
            </>
          ),
        },
        { title: 'Elements', isNumber: true, cell: ({ held }) => count(held) },
      ]}
      actions={({ name }) =>
        onRedrive !== null && (
          <Button
            icon="redrive"
            class="quiet"
            aria-label={`Redrive ${name === null ? 'those that are unknown' : named(name)}`}
            onClick={() => onRedrive({ selector: havingHeader(header, name) })}
          >
            Redrive …
          </Button>
        )
      }
    />
  );
}
