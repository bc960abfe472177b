import type { SessionRow, Sessions, WaitingConsumer, WaitingConsumers } from '../../model/records.ts';
import { count } from '../format.ts';
import { clients } from '../remote/node-lists.ts';
import { cancelConsumer } from '../remote/queues.ts';
import { useResource } from '../remote/resource.ts';
import { address, setQuery } from '../route.ts';
import { may, namespaces, session } from '../session.ts';
import { FilterField } from '../ui/filter-field.tsx';
import { Length, MissingNodes, nodeColumn } from '../ui/nodes.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { QueueLink } from '../ui/queue-link.tsx';
import { Empty, Failure, Loading, NeedsRight } from '../ui/states.tsx';
import { act } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';

/** The client sessions and the waiting consumers of all nodes. */
export function Clients() {
  const filter = address.value.query.get('filter') ?? '';
  const { value, error, isLoading, reload } = useResource(
    `clients ${filter}`,
    (signal) => clients(filter, signal),
    5_000,
  );
  return (
    <>
      <div class="page-head">
        <h1 class="grow">Clients</h1>
        <FilterField filter={filter} label="Filter clients" placeholder="Queue, user, address …" />
      </div>
      {error !== null && <Failure error={error} retry={reload} />}
      {value === null && isLoading && <Loading />}
      {value !== null && <WaitingNow waiting={value.consumers} isFiltered={filter !== ''} reload={reload} />}
      {value !== null && <SessionList list={value.sessions} isFiltered={filter !== ''} />}
    </>
  );
}

function WaitingNow({
  waiting,
  isFiltered,
  reload,
}: {
  readonly waiting: WaitingConsumers;
  readonly isFiltered: boolean;
  readonly reload: () => void;
}) {
  const { consumers } = waiting;
  const cancel = ({ ns, queue, tid }: WaitingConsumer): Promise<void> =>
    act(async () => {
      await cancelConsumer({ ns, queue }, tid);
      reload();
      return `The calls of ${tid} are cancelled`;
    });
  return (
    <section class="card">
      <header>
        <h2 class="grow">Waiting now</h2>
        <Length of={waiting} shown={consumers.length} one="consumer" />
      </header>
      <MissingNodes missing={waiting.missing} />
      <PlainTable
        label="Waiting now"
        isLow
        rows={consumers}
        empty={<NobodyWaits isFiltered={isFiltered} />}
        keyOf={({ node, ns, queue, tid }) => JSON.stringify([node, ns, queue, tid])}
        columns={[
          { title: 'Queue', cell: ({ ns, queue }) => <QueueLink ns={ns} queue={queue} /> },
          { title: 'User', cell: ({ user }) => user ?? 'an exchange' },
          { title: 'Protocol', cell: ({ protocol }) => protocol },
          { title: 'From', cell: ({ address }) => address ?? '–' },
          ...nodeColumn<WaitingConsumer>(waiting),
          { title: 'Since', cell: ({ since }) => <When at={since} /> },
        ]}
        actions={(consumer) => (
          <button type="button" onClick={() => void cancel(consumer)}>
            Cancel
          </button>
        )}
      />
    </section>
  );
}

/** The server returns consumers only to users who manage the namespace. */
function NobodyWaits({ isFiltered }: { readonly isFiltered: boolean }) {
  const managed = namespaces().filter((ns) => may('manage', ns));
  if (managed.length === 0) {
    return <NeedsRight title="Only users who manage queues see who is waiting" right="manage" />;
  }
  if (isFiltered) return <NothingMatches what="waiting consumer" />;
  return (
    <Empty title="No consumer is waiting" icon="clients">
      A consumer appears here while its get, reserve or subscription waits for an element
      {managed.length < namespaces().length && `, in ${managed.join(', ')}, which you manage`}.
    </Empty>
  );
}

/** Shown in place of a list none of whose rows the filter accepts. */
function NothingMatches({ what }: { readonly what: string }) {
  return (
    <Empty title={`No ${what} matches the filter`} icon="search">
      <button type="button" class="link" onClick={() => setQuery({ filter: null })}>
        Show all clients
      </button>
    </Empty>
  );
}

function SessionList({ list, isFiltered }: { readonly list: Sessions; readonly isFiltered: boolean }) {
  const { sessions } = list;
  const isAdministrator = session.value?.isAdministrator === true;
  return (
    <section class="card">
      <header>
        <h2 class="grow">Sessions of STOMP and AMQP</h2>
        <Length of={list} shown={sessions.length} one="session" />
      </header>
      <MissingNodes missing={list.missing} />
      <PlainTable
        label="Sessions of STOMP and AMQP"
        isLow
        rows={sessions}
        empty={
          isFiltered ? (
            <NothingMatches what="session" />
          ) : (
            <Empty
              title={isAdministrator ? 'No client is connected' : 'No client that you may see is connected'}
              icon="clients"
            >
              {isAdministrator
                ? 'STOMP and AMQP clients appear here while they are connected. '
                : 'Your STOMP and AMQP clients, and those that consume in namespaces that you manage, appear here while they are connected. '}
              The tab Try it of a queue has examples.
            </Empty>
          )
        }
        keyOf={({ id }) => id}
        columns={[
          { title: 'Session', className: 'mono', cell: ({ id }) => id },
          { title: 'Protocol', cell: ({ protocol }) => protocol },
          { title: 'User', cell: ({ user }) => user },
          { title: 'From', cell: ({ address }) => address ?? '–' },
          ...nodeColumn<SessionRow>(list),
          { title: 'Since', cell: ({ since }) => <When at={since} /> },
          {
            title: 'Consumes: unacknowledged of window',
            cell: ({ consumers }) =>
              consumers.map(({ ns, queue, window, unacknowledged }, i) => (
                <div key={i}>
                  <QueueLink ns={ns} queue={queue} /> {count(unacknowledged)} of{' '}
                  {window === null ? '–' : count(window)}
                </div>
              )),
          },
        ]}
      />
    </section>
  );
}
