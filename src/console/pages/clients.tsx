import type { SessionRow, Sessions, WaitingConsumer, WaitingConsumers } from '../../model/records.ts';
import { get } from '../api.ts';
import { count } from '../format.ts';
import { useResource } from '../remote/resource.ts';
import { may, namespaces, session } from '../session.ts';
import { Card } from '../ui/card.tsx';
import { FilterField, filterOfPage, NoMatch } from '../ui/filter-field.tsx';
import { Length, MissingNodes, nodeColumn } from '../ui/nodes.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { QueueLink } from '../ui/queue-links.tsx';
import { Empty, Loaded, NeedsRight } from '../ui/states.tsx';
import { When } from '../ui/when.tsx';
import { CancelCalls, CONSUMER_COLUMNS } from './queue-consumers.tsx';

/** Maximum rows of each table. */
const MAX_LISTED = 200;
/** Maximum consumers in the row of a session: an AMQP connection may have 32,768. */
const MAX_CONSUMERS = 20;

/** The client sessions and the waiting consumers of all nodes. */
export function Clients() {
  const filter = filterOfPage();
  const clients = useResource(
    filter,
    (signal) => {
      const request = { query: { limit: MAX_LISTED, filter }, signal };
      return Promise.all([get<WaitingConsumers>('consumers', request), get<Sessions>('sessions', request)]);
    },
    5_000,
  );
  return (
    <>
      <div class="page-head">
        <h1 class="grow">Clients</h1>
        <FilterField label="Filter clients" placeholder="Queue, user, address …" />
      </div>
      <Loaded from={clients}>
        {([consumers, sessions]) => (
          <>
            <WaitingNow waiting={consumers} isFiltered={filter !== ''} reload={clients.reload} />
            <SessionList list={sessions} filter={filter} />
          </>
        )}
      </Loaded>
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
  return (
    <Card title="Waiting now" aside={<Length of={waiting} shown={consumers.length} one="consumer" />}>
      <MissingNodes missing={waiting.missing} />
      <PlainTable
        label="Waiting now"
        isLow
        rows={consumers}
        empty={<NobodyWaits isFiltered={isFiltered} />}
        keyOf={({ node, ns, queue, tid }) => JSON.stringify([node, ns, queue, tid])}
        columns={[
          { title: 'Queue', cell: ({ ns, queue }) => <QueueLink ns={ns} queue={queue} /> },
          ...nodeColumn<WaitingConsumer>(waiting),
          ...CONSUMER_COLUMNS,
        ]}
        actions={(consumer) => <CancelCalls of={consumer} tid={consumer.tid} onDone={reload} />}
      />
    </Card>
  );
}

/** The server returns consumers only to users who manage the namespace. */
function NobodyWaits({ isFiltered }: { readonly isFiltered: boolean }) {
  const managed = namespaces().filter((ns) => may('manage', ns));
  if (managed.length === 0) {
    return <NeedsRight title="Only users who manage queues see who is waiting" right="manage" />;
  }
  if (isFiltered) return <NoMatch title="No waiting consumer" all="clients" />;
  return (
    <Empty title="No consumer is waiting" icon="clients">
      A consumer appears here while its get, reserve or subscription waits for an element
      {managed.length < namespaces().length && `, in ${managed.join(', ')}, which you manage`}.
    </Empty>
  );
}

/** The consumers of a session. If it has many, those come first in which most words of the filter are found. */
function foundFirst(consumers: SessionRow['consumers'], filter: string): SessionRow['consumers'] {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0 || consumers.length <= MAX_CONSUMERS) return consumers;
  const ranked = consumers.map((consumer) => {
    const text = [consumer.ns, consumer.queue, consumer.group ?? ''].join('\n').toLowerCase();
    return { consumer, found: words.filter((word) => text.includes(word)).length };
  });
  return ranked.sort((a, b) => b.found - a.found).map(({ consumer }) => consumer);
}

function SessionList({ list, filter }: { readonly list: Sessions; readonly filter: string }) {
  const { sessions } = list;
  const isAdministrator = session.value?.isAdministrator === true;
  return (
    <Card
      title="Sessions of STOMP and AMQP"
      aside={<Length of={list} shown={sessions.length} one="session" />}
    >
      <MissingNodes missing={list.missing} />
      <PlainTable
        label="Sessions of STOMP and AMQP"
        isLow
        rows={sessions}
        empty={
          filter !== '' ? (
            <NoMatch title="No session" all="clients" />
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
            cell: ({ consumers }) => (
              <>
                {foundFirst(consumers, filter)
                  .slice(0, MAX_CONSUMERS)
                  .map(({ ns, queue, window, unacknowledged }, i) => (
                    <div key={i}>
                      <QueueLink ns={ns} queue={queue} /> {count(unacknowledged)} of{' '}
                      {window === null ? '–' : count(window)}
                    </div>
                  ))}
                {consumers.length > MAX_CONSUMERS && (
                  <span class="muted">and {count(consumers.length - MAX_CONSUMERS)} more</span>
                )}
              </>
            ),
          },
        ]}
      />
    </Card>
  );
}
