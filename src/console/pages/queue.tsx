import { useComputed, useSignal } from '@preact/signals';
import type { QueueRecord } from '../../model/records.ts';
import { ApiError, call, dotSegmentIn, type QueueNamed, queuePath, urlOf } from '../api.ts';
import { count, named, several } from '../format.ts';
import { connection, keyOf, notePaused, queues, version } from '../remote/live.ts';
import { useGet } from '../remote/resource.ts';
import { address, go, href, queueHref } from '../route.ts';
import { may, namespaces, session } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Card } from '../ui/card.tsx';
import { Charts, RangeChoice } from '../ui/charts.tsx';
import { ConfirmDialog } from '../ui/dialog.tsx';
import { useWork } from '../ui/form.tsx';
import { Icon } from '../ui/icon.tsx';
import { ImportDialog } from '../ui/import-dialog.tsx';
import { InsertDialog } from '../ui/insert-dialog.tsx';
import { Menu } from '../ui/menu.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { Crumbs, filterFor } from '../ui/queue-links.tsx';
import { Badge, Empty, Failure, NoSuchPage } from '../ui/states.tsx';
import { act, say } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';
import { ElementPageOf } from './element.tsx';
import { ElementList } from './element-list.tsx';
import type { PageProps } from './page.tsx';
import { QueueConsumers } from './queue-consumers.tsx';
import { QueueOptionsTab } from './queue-options.tsx';
import { TryIt } from './try-it.tsx';
import { WatchedElement } from './watched-element.tsx';

/**
 * A queue with its tabs, such as `/q/N/orders` and `/q/N/orders/consumers`, and its elements: `/q/N/orders/e/ID`,
 * `/q/N/orders/watch/ID`.
 */
export function QueuePages({ rest }: PageProps) {
  const [ns = '', queue = '', tab = 'elements', id] = rest;
  const of: QueueNamed = { ns, queue };
  // Counts purges, to reload the list of elements: it does not refresh itself.
  const purges = useSignal(0);
  const group = address.value.query.get('group');
  if (!namespaces().includes(ns)) return <NoSuchNamespace of={of} />;
  // Another group means another delivery, so the state of the page must be reset.
  if (tab === 'e' && id !== undefined)
    return <ElementPageOf key={`group ${group}`} of={of} id={id} group={group} />;
  if (tab === 'watch' && id !== undefined) return <WatchedElement source={of} firstId={id} />;
  if (queue === '' || !TABS.some(([one]) => one === tab)) return <NoSuchPage />;
  return (
    <>
      <QueueHead of={of} onPurge={() => (purges.value += 1)} />
      <nav class="tabs" aria-label="Of this queue">
        {TABS.map(([one, name]) => (
          <a
            key={one}
            href={href(one === 'elements' ? ['q', ns, queue] : ['q', ns, queue, one])}
            aria-current={one === tab ? 'page' : undefined}
          >
            {name}
          </a>
        ))}
      </nav>
      {tab === 'consumers' && <QueueConsumers of={of} />}
      {tab === 'options' && <QueueOptionsTab of={of} />}
      {tab === 'try' && <TryIt of={of} />}
      {tab === 'elements' && <QueueElements key={purges.value} of={of} />}
    </>
  );
}

/** To users who may not see a namespace, it does not exist. */
function NoSuchNamespace({ of }: { readonly of: QueueNamed }) {
  return (
    <>
      <div>
        <Crumbs of={{ ...of, queue: '' }} />
        <h1>
          <bdi>{of.queue}</bdi>
        </h1>
      </div>
      <section class="card">
        <Empty title={`There is no namespace ${named(of.ns)}, or you may not see it`} icon="search">
          Namespaces are defined in the configuration of the server. <a href={href(['users'])}>Your rights</a>{' '}
          lists those that you may see.
        </Empty>
      </section>
    </>
  );
}

const TABS = [
  ['elements', 'Elements'],
  ['consumers', 'Consumers'],
  ['options', 'Options'],
  ['try', 'Try it'],
] as const;

function QueueHead({ of, onPurge }: { readonly of: QueueNamed; readonly onPurge: () => void }) {
  const { ns, queue } = of;
  const dialog = useSignal<'insert' | 'import' | 'purge' | 'delete' | null>(null);
  const close = (): void => {
    dialog.value = null;
  };
  const picture = useComputed(() => {
    version.value;
    return queues.get(keyOf(of));
  });
  // For a queue that the stream has not sent: refreshing is paused, or the user may not read it.
  const pausedHere = useSignal<boolean | null>(null);
  const isPaused = picture.value?.paused ?? pausedHere.value ?? (may('read', ns) ? false : null);
  const exported = mayExport(ns) ? exportUrl(of) : null;
  const setPaused = (verb: 'pause' | 'resume'): Promise<void> =>
    act(async () => {
      await call(queuePath(of, verb), { method: 'POST' });
      pausedHere.value = verb === 'pause';
      notePaused(of, pausedHere.value);
      return verb === 'pause' ? `${named(queue)} is paused: consumers wait` : `${named(queue)} runs again`;
    });
  return (
    <div>
      <Crumbs of={{ ns, queue: '' }} />
      <div class="page-head">
        <h1 class="grow">
          <bdi>{queue}</bdi>{' '}
          {isPaused === true && (
            <Badge level="warn" icon="paused">
              Paused
            </Badge>
          )}
        </h1>
        <div class="actions">
          {may('write', ns) && (
            <Button icon="plus" class="primary" onClick={() => (dialog.value = 'insert')}>
              Insert
            </Button>
          )}
          {may('manage', ns) && isPaused !== true && (
            <Button icon="paused" onClick={() => void setPaused('pause')}>
              Pause
            </Button>
          )}
          {may('manage', ns) && isPaused !== false && (
            <Button icon="play" onClick={() => void setPaused('resume')}>
              Resume
            </Button>
          )}
          {(exported !== null || may('write', ns) || may('manage', ns)) && (
            <Menu title={`More of ${named(queue)}`} icon="more" className="square">
              {exported !== null && (
                <a class="button" href={exported} download={`${ns}-${queue}.ndjson`}>
                  <Icon name="download" /> Export
                </a>
              )}
              {may('write', ns) && (
                <Button icon="plus" onClick={() => (dialog.value = 'import')}>
                  Import …
                </Button>
              )}
              {may('manage', ns) && (
                <>
                  <a class="button" href={href(['users'], { filter: filterFor(of) })}>
                    <Icon name="users" /> Who changed it
                  </a>
                  <Button icon="trash" class="danger" onClick={() => (dialog.value = 'purge')}>
                    Purge …
                  </Button>
                  <Button icon="trash" class="danger" onClick={() => (dialog.value = 'delete')}>
                    Delete the queue …
                  </Button>
                </>
              )}
            </Menu>
          )}
        </div>
      </div>
      {dialog.value === 'insert' && <InsertDialog into={of} onClose={close} />}
      {dialog.value === 'import' && <ImportDialog into={of} onClose={close} />}
      {(dialog.value === 'purge' || dialog.value === 'delete') && (
        <RemovalDialog of={of} kind={dialog.value} onPurge={onPurge} onClose={close} />
      )}
    </div>
  );
}

/** Returns the URL of a queue's export as NDJSON; null if browsers cannot request the queue's name. */
function exportUrl(of: QueueNamed): string | null {
  const where = queuePath(of, 'export');
  return dotSegmentIn(where) === undefined ? urlOf(where).href : null;
}

/** An export contains bodies. */
function mayExport(ns: string): boolean {
  return may('browse', ns) && (may('read', ns) || session.value?.maskedBodies.includes(ns) !== true);
}

/** Confirms a purge or the deletion of a queue. Errors are shown in the dialog, so that the user can retry. */
function RemovalDialog({
  of,
  kind,
  onPurge,
  onClose,
}: {
  readonly of: QueueNamed;
  readonly kind: 'purge' | 'delete';
  readonly onPurge: () => void;
  readonly onClose: () => void;
}) {
  const { ns, queue } = of;
  const isPurge = kind === 'purge';
  const mayRead = may('read', ns);
  const status = useGet<QueueRecord>(mayRead ? queuePath(of, 'status') : null);
  const { isBusy, error, run } = useWork();
  version.value;
  const picture = connection.value === 'live' ? queues.get(keyOf(of)) : undefined;
  const sizes = picture ?? status.value;
  // A purge does not remove reserved elements.
  const size = sizes === null ? null : isPurge ? sizes.size + sizes.schedSize : sizes.totalSize;
  const elements = size === null ? 'its elements' : several(size, 'element');
  const isInUse = error instanceof ApiError && error.code === 'queue-in-use';
  const remove = async (): Promise<void> => {
    if (isPurge) {
      // Not by `get`, which gives up a response that is silent: many elements take longer.
      const response = await call(queuePath(of, 'elements'), { method: 'DELETE' });
      const { removed } = (await response.json()) as { removed: number };
      say(`${several(removed, 'element')} of ${named(queue)} removed`);
      onPurge();
    } else {
      // Without `force`, elements inserted after the dialog was shown prevent the deletion.
      const force = size === 0 && !isInUse ? null : '1';
      await call(queuePath(of), { method: 'DELETE', query: { force } });
      say(`${named(queue)} is deleted`);
      go(href(['queues']));
    }
    onClose();
  };
  return (
    <ConfirmDialog
      title={isPurge ? `Purge ${named(queue)}` : `Delete ${named(queue)}`}
      action={
        isPurge
          ? `Remove ${elements} of ${named(queue)}`
          : `Delete ${named(queue)} and ${elements}${isInUse ? ' anyway' : ''}`
      }
      isDisabled={isBusy || (mayRead && size === null)}
      onConfirm={() => void run(remove)}
      onClose={onClose}
    >
      <p>
        {isPurge
          ? `The ready and scheduled elements of ${named(queue)} of ${ns} are removed for good; reserved ones stay. `
          : `The queue ${named(queue)} of ${ns} is deleted with its options and statistics, and all its elements for good. `}
        {size !== null && (
          <>
            There {size === 1 ? 'is' : 'are'} <b>{several(size, 'element')}</b> now.
          </>
        )}
      </p>
      {size === null && <Failure error={status.error} retry={status.reload} />}
      <Failure error={error} />
      {isInUse && <p>If you delete it anyway, its waiting calls end, and its elements are removed.</p>}
    </ConfirmDialog>
  );
}

function QueueElements({ of }: { readonly of: QueueNamed }) {
  const mayRead = may('read', of.ns);
  const status = useGet<QueueRecord>(mayRead ? queuePath(of, 'status') : null, { everyMs: 10_000 });
  return (
    <>
      <Failure error={status.error} retry={status.reload} />
      {mayRead && (
        <>
          <QueueFigures of={of} status={status.value} />
          <div class="chart-range">
            <RangeChoice />
          </div>
          <Charts where={queuePath(of, 'history')} />
        </>
      )}
      {status.value?.groups !== undefined && <QueueGroups of={of} groups={status.value.groups} />}
      <ElementList of={of} status={status.value} />
    </>
  );
}

/** What each group of a stream has yet to consume, the group that is furthest behind first. */
function QueueGroups({
  of: { ns, queue },
  groups,
}: {
  readonly of: QueueNamed;
  readonly groups: NonNullable<QueueRecord['groups']>;
}) {
  const rows = Object.entries(groups).sort(([, a], [, b]) => b.size - a.size || b.totalSize - a.totalSize);
  // The only group has the numbers of the queue.
  if (rows.length < 2) return null;
  return (
    <Card title="Groups" aside={<span class="muted">{several(rows.length, 'group')}</span>}>
      <PlainTable
        label={`Groups of ${named(queue)}`}
        isLow
        rows={rows}
        keyOf={([name]) => name}
        columns={[
          {
            title: 'Group',
            cell: ([name]) => (
              <a href={queueHref(ns, queue, { group: name })}>
                <bdi>{name}</bdi>
              </a>
            ),
          },
          { title: 'Ready', isNumber: true, cell: ([, { size }]) => count(size) },
          { title: 'Scheduled', isNumber: true, cell: ([, { schedSize }]) => count(schedSize) },
          { title: 'Reserved', isNumber: true, cell: ([, { resvSize }]) => count(resvSize) },
        ]}
      />
    </Card>
  );
}

function QueueFigures({ of, status }: { readonly of: QueueNamed; readonly status: QueueRecord | null }) {
  version.value;
  const known = queues.get(keyOf(of)) ?? status;
  const counters = known?.stats;
  const shown = [
    ['Inserted', counters?.put],
    ['Popped', counters?.get],
    ['Reserved', counters?.reserve],
    ['Committed', counters?.commit],
    ['Rolled back', counters?.rollback],
    ['Dead-lettered', counters?.deadletter],
  ] as const;
  return (
    <dl class="facts card">
      {shown.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd class="number">{value === undefined ? '–' : count(value)}</dd>
        </div>
      ))}
      <div>
        <dt>Next mature</dt>
        <dd>{known?.size === 0 && known.next_mature_t !== null ? <When at={known.next_mature_t} /> : '–'}</dd>
      </div>
      <div>
        <dt>Engine</dt>
        <dd>{status?.type ?? '–'}</dd>
      </div>
    </dl>
  );
}
