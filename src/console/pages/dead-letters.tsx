import { useSignal } from '@preact/signals';
import type { DeadLetterQueue, OperationWhere } from '../../model/records.ts';
import { count, named, several } from '../format.ts';
import { havingHeader } from '../remote/elements.ts';
import { keyOf } from '../remote/live.ts';
import { deadLetters } from '../remote/queues.ts';
import { useResource } from '../remote/resource.ts';
import { queueHref } from '../route.ts';
import { may, mayAnywhere } from '../session.ts';
import { Icon } from '../ui/icon.tsx';
import { OperationDialog } from '../ui/operation-dialog.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { QueueLink } from '../ui/queue-link.tsx';
import { Empty, Failure, Loading, NeedsRight } from '../ui/states.tsx';
import { When } from '../ui/when.tsx';

/** The dead letters of all namespaces, by reason and by source, and their redrive. */
export function DeadLetters() {
  const summary = useResource('dead-letters', deadLetters, 15_000);
  const redriven = useSignal<{ readonly of: DeadLetterQueue; readonly where: OperationWhere } | null>(null);
  const all = summary.value?.queues ?? null;
  const unavailable = summary.value?.unavailable ?? [];
  const held = all?.filter((one) => one.count > 0) ?? [];
  const total = held.reduce((sum, one) => sum + one.count, 0);
  return (
    <>
      <div class="page-head">
        <h1 class="grow">Dead letters</h1>
        <span class="muted">{all !== null && several(total, 'dead letter')}</span>
        <button type="button" onClick={summary.reload}>
          <Icon name="refresh" /> Reload
        </button>
      </div>
      {summary.error !== null && <Failure error={summary.error} retry={summary.reload} />}
      {unavailable.length > 0 && (
        <Failure
          error={`Dead letters of ${unavailable.join(', ')} are not listed: the engine is unavailable.`}
        />
      )}
      {all === null && summary.isLoading && <Loading what="Reading the dead-letter queues" />}
      {all !== null && held.length === 0 && (
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
      {held.map((one) => (
        <QueueOfDeadLetters
          key={keyOf(one)}
          of={one}
          onRedrive={(where) => {
            redriven.value = { of: one, where };
          }}
        />
      ))}
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

function QueueOfDeadLetters({
  of,
  onRedrive,
}: {
  readonly of: DeadLetterQueue;
  readonly onRedrive: (where: OperationWhere) => void;
}) {
  const { ns, queue, reasons, sources, oldest, looked, complete } = of;
  const isRedriver = may('manage', ns) && may('write', ns);
  return (
    <section class="card">
      <header>
        <h2 class="grow">
          <QueueLink ns={ns} queue={queue} />
        </h2>
        <span>
          <b>{count(of.count)}</b> <span class="muted">· oldest</span> <When at={oldest} />
        </span>
        {isRedriver && (
          <button type="button" onClick={() => onRedrive({})}>
            <Icon name="redrive" /> Redrive all …
          </button>
        )}
      </header>
      <div class="columns dead">
        <Parts
          title="By reason"
          parts={reasons.map(({ reason, count: of }) => ({ name: reason, count: of, header: 'x-dl-reason' }))}
          {...{ looked, ns, queue, isRedriver, onRedrive }}
        />
        <Parts
          title="By source queue"
          parts={sources.map(({ queue: name, count: of }) => ({
            name,
            count: of,
            header: 'x-dl-from-queue',
          }))}
          {...{ looked, ns, queue, isRedriver, onRedrive }}
        />
      </div>
      {!complete && (
        <p class="body muted">
          Based on the first {several(looked, 'element')} of the queue; there are more.
        </p>
      )}
    </section>
  );
}

interface PartOfDeadLetters {
  readonly name: string | null;
  readonly count: number;
  readonly header: string;
}

function Parts({
  title,
  parts,
  looked,
  ns,
  queue,
  isRedriver,
  onRedrive,
}: {
  readonly title: string;
  readonly parts: readonly PartOfDeadLetters[];
  /** How many elements were examined for the parts. */
  readonly looked: number;
  readonly ns: string;
  readonly queue: string;
  readonly isRedriver: boolean;
  readonly onRedrive: (where: OperationWhere) => void;
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
          cell: ({ name, header, count: of }) => (
            <>
              <a
                title={name ?? undefined}
                href={queueHref(ns, queue, { search: havingHeader(header, name) })}
              >
                <bdi>{name ?? 'unknown'}</bdi>
              </a>
              <div class="meter thin" aria-hidden="true">
                <i style={{ width: `${(of / Math.max(1, looked)) * 100}%` }} />
              </div>
            </>
          ),
        },
        { title: 'Elements', isNumber: true, cell: ({ count: of }) => count(of) },
      ]}
      actions={({ name, header }) =>
        isRedriver && (
          <button
            type="button"
            class="quiet"
            aria-label={`Redrive ${name === null ? 'those that are unknown' : named(name)}`}
            onClick={() => onRedrive({ selector: havingHeader(header, name) })}
          >
            <Icon name="redrive" /> Redrive …
          </button>
        )
      }
    />
  );
}
