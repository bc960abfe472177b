import { useSignal } from '@preact/signals';
import type { ExchangeDeclaration, ExchangeRecord } from '../../model/records.ts';
import { ApiError, path } from '../api.ts';
import { count, named, several } from '../format.ts';
import { changeExchange, seenPayload } from '../remote/exchanges.ts';
import { isStopped } from '../remote/live.ts';
import { useGet } from '../remote/resource.ts';
import { go, href } from '../route.ts';
import { may } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Card } from '../ui/card.tsx';
import { ConfirmDialog } from '../ui/dialog.tsx';
import { Icon } from '../ui/icon.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { QueueLink } from '../ui/queue-links.tsx';
import { Empty, Failure, Loaded } from '../ui/states.tsx';
import { act } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';
import { ExchangeEditor } from './exchange-editor.tsx';
import { ExchangeState } from './exchanges.tsx';
import type { PageProps } from './page.tsx';

/** An exchange: its counters, errors and editor. `/x/ID`, `/x/ID/edit` */
export function Exchange({ rest }: PageProps) {
  const [id = '', tab] = rest;
  const details = useGet<ExchangeRecord>(path('x', id), { everyMs: tab === 'edit' ? 0 : 5_000 });
  // One that has been deleted elsewhere cannot be started or changed.
  const isGone = details.error instanceof ApiError && details.error.code === 'exchange-not-found';
  const record = isGone ? null : details.value;
  return (
    <>
      <div>
        <nav class="crumbs" aria-label="Breadcrumbs">
          <a href={href(['exchanges'])}>Exchanges</a>
        </nav>
        <div class="page-head">
          <h1 class="grow">
            <bdi>{id}</bdi>{' '}
            {record !== null && <ExchangeState stopped={record.stopped} lastError={record.lastError} />}
          </h1>
          {record !== null && tab !== 'edit' && (
            <ExchangeActions id={id} record={record} onDone={details.reload} />
          )}
        </div>
      </div>
      <Loaded from={{ ...details, value: record }}>
        {(read) =>
          tab === 'edit' ? (
            <EditPage id={id} record={read} />
          ) : (
            <>
              <Failure error={read.lastError} />
              <Destinations record={read} />
              <LastWithoutRoute record={read} />
              <ExchangeErrors record={read} />
            </>
          )
        }
      </Loaded>
    </>
  );
}

function EditPage({ id, record }: { readonly id: string; readonly record: ExchangeRecord }) {
  if (mayChange(record))
    return <ExchangeEditor id={id} declared={declaredOf(record)} version={record.version ?? null} />;
  return (
    <Empty title="You may not change this exchange" icon="lock">
      You need the rights <code>exchange</code> and <code>read</code> in {record.src.ns}, and{' '}
      <code>write</code> in the namespaces of its destinations.
    </Empty>
  );
}

function declaredOf({ src, dst, opts }: ExchangeRecord): ExchangeDeclaration {
  return {
    src: { ns: src.ns, queue: src.q },
    dst: dst.map(({ ns, q, selector }) => ({ ns, queue: q, ...(selector !== undefined && { selector }) })),
    consumer: opts,
  };
}

/** Whether the user has the rights that the server requires for a change. */
function mayChange({ src, dst }: ExchangeRecord): boolean {
  const isVisible = dst.every(({ ns, hidden }) => hidden !== true && may('write', ns));
  return isVisible && may('exchange', src.ns) && may('read', src.ns);
}

function ExchangeActions({
  id,
  record,
  onDone,
}: {
  readonly id: string;
  readonly record: ExchangeRecord;
  readonly onDone: () => void;
}) {
  const isAsking = useSignal(false);
  if (!mayChange(record)) return null;
  const change = (verb: 'start' | 'stop' | 'delete', done: string): Promise<void> =>
    act(async () => {
      isAsking.value = false;
      const said = await changeExchange(id, verb, done);
      if (verb === 'delete') go(href(['exchanges']));
      else onDone();
      return said;
    });
  return (
    <div class="actions">
      {isStopped(record) ? (
        <Button icon="play" onClick={() => void change('start', `${named(id)} runs`)}>
          Start
        </Button>
      ) : (
        <Button icon="paused" onClick={() => void change('stop', `${named(id)} is stopped on all nodes`)}>
          Stop
        </Button>
      )}
      <a class="button" href={href(['x', id, 'edit'])}>
        <Icon name="code" /> Edit
      </a>
      <Button icon="trash" class="danger" onClick={() => (isAsking.value = true)}>
        Delete …
      </Button>
      {isAsking.value && (
        <ConfirmDialog
          title={`Delete ${named(id)}`}
          action={`Delete the exchange ${named(id)}`}
          onConfirm={() => void change('delete', `${named(id)} is deleted`)}
          onClose={() => (isAsking.value = false)}
        >
          <p>
            The exchange {named(id)} stops forwarding from {named(record.src.q)} and is deleted. Its queues
            and their elements stay.
          </p>
        </ConfirmDialog>
      )}
    </div>
  );
}

function Destinations({
  record: { src, dst, stats, loops, opts, wsize, pending_acks },
}: {
  readonly record: ExchangeRecord;
}) {
  const counterOf =
    (name: 'matched' | 'skipped' | 'failed') =>
    ({ hidden }: ExchangeRecord['dst'][number], at: number): string =>
      hidden === true ? '–' : count(stats.dst[at]?.[name] ?? 0);
  return (
    <Card
      title={
        <>
          From <QueueLink ns={src.ns} queue={src.q} />
        </>
      }
      aside={
        <span class="muted">
          no route {count(stats.no_route)} · too many hops {count(stats.too_many_hops)} · put back{' '}
          {count(stats.put_back)}
        </span>
      }
    >
      <p class="body muted">
        {several(opts.parallel ?? 1, 'loop')}, window {count(wsize)}:{' '}
        {several(Object.keys(pending_acks).length, 'element')} in progress on this node.{' '}
        {opts.reserve === true
          ? 'Elements are reserved until they are forwarded.'
          : 'Elements are popped: those in progress are lost if this node fails.'}
      </p>
      {loops.length > 0 && (
        <p class="bar">
          <Icon name="refresh" /> In a cycle: {loops[0]?.map(named).join(' → ')}
        </p>
      )}
      <PlainTable
        label="Destinations"
        rows={dst}
        keyOf={(_, at) => String(at)}
        columns={[
          {
            title: 'To',
            cell: ({ q, ns, hidden }) =>
              hidden === true ? <span class="muted">hidden from you</span> : <QueueLink ns={ns} queue={q} />,
          },
          {
            title: 'Selector',
            cell: ({ selector }) =>
              selector === undefined ? (
                <span class="muted">all elements</span>
              ) : (
                <code class="selector">{selector}</code>
              ),
          },
          { title: 'Matched', isNumber: true, cell: counterOf('matched') },
          { title: 'Skipped', isNumber: true, cell: counterOf('skipped') },
          { title: 'Failed', isNumber: true, cell: counterOf('failed') },
        ]}
      />
    </Card>
  );
}

/** The last element that no destination accepted: its content type may hide its payload from selectors. */
function LastWithoutRoute({ record: { src, saw } }: { readonly record: ExchangeRecord }) {
  const { last_no_route: last } = saw;
  if (last === null) return null;
  return (
    <Card title="Without a route" aside={<QueueLink ns={src.ns} queue="__no_route__" />}>
      <p class="body">
        No destination accepted the element <span class="mono">{last.id}</span>, <When at={last.at} />. The
        selectors saw its payload as {seenPayload(last)}.
      </p>
    </Card>
  );
}

function ExchangeErrors({ record: { errors, dst } }: { readonly record: ExchangeRecord }) {
  return (
    <Card title="Errors">
      <PlainTable
        label="Errors"
        rows={errors}
        empty={
          <Empty title="No selector and no destination failed">Since this node started the exchange.</Empty>
        }
        keyOf={({ destination, message }) => `${destination} ${message}`}
        columns={[
          { title: 'Destination', cell: ({ destination }) => dst[destination]?.q },
          {
            title: 'Error',
            className: 'selector',
            cell: ({ line, message }) => (
              <>
                {line !== null && <span class="muted">line {line}: </span>}
                {message}
              </>
            ),
          },
          { title: 'Times', isNumber: true, cell: ({ count: times }) => count(times) },
          { title: 'Last', cell: ({ at }) => <When at={at} /> },
        ]}
      />
    </Card>
  );
}
