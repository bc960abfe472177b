import { count } from '../format.ts';
import { type ClientsOfNode, clientsOfNode } from '../remote/clients.ts';
import { useResource } from '../remote/resource.ts';
import { PlainTable } from '../ui/plain-table.tsx';
import { QueueLink } from '../ui/queue-link.tsx';
import { Empty, Failure, Loading } from '../ui/states.tsx';
import { When } from '../ui/when.tsx';

/** Who is connected to the node that answers, and who waits where. */
export function Clients() {
  const clients = useResource('clients', clientsOfNode, 5_000);
  return (
    <>
      <h1>Clients</h1>
      {clients.error !== null && <Failure error={clients.error} retry={clients.reload} />}
      {clients.value === null && clients.isLoading && <Loading />}
      {clients.value !== null && <WaitingNow consumers={clients.value.consumers} />}
      {clients.value !== null && <Sessions sessions={clients.value.sessions} />}
    </>
  );
}

function WaitingNow({ consumers }: Pick<ClientsOfNode, 'consumers'>) {
  return (
    <section class="card">
      <header>
        <h2>Waiting now</h2>
      </header>
      {consumers.length === 0 ? (
        <Empty title="Nobody waits for an element" icon="clients">
          A consumer appears here while its get, reserve or subscription waits for an element on this node.
        </Empty>
      ) : (
        <PlainTable
          label="Waiting now"
          isLow
          rows={consumers}
          keyOf={({ ns, queue, tid }) => JSON.stringify([ns, queue, tid])}
          columns={[
            { title: 'Queue', cell: ({ ns, queue }) => <QueueLink ns={ns} queue={queue} /> },
            { title: 'User', cell: ({ user }) => user ?? 'an exchange' },
            { title: 'Protocol', cell: ({ protocol }) => protocol },
            { title: 'From', cell: ({ address }) => address ?? '–' },
            { title: 'Since', cell: ({ since }) => <When at={since} /> },
          ]}
        />
      )}
    </section>
  );
}

function Sessions({ sessions }: Pick<ClientsOfNode, 'sessions'>) {
  return (
    <section class="card">
      <header>
        <h2>Sessions of STOMP and AMQP</h2>
      </header>
      {sessions.length === 0 ? (
        <Empty title="No client has a session on this node" icon="clients">
          STOMP and AMQP clients appear here while they are connected. The page of a queue has lines to try,
          under Try it.
        </Empty>
      ) : (
        <PlainTable
          label="Sessions of STOMP and AMQP"
          isLow
          rows={sessions}
          keyOf={({ id }) => id}
          columns={[
            { title: 'Session', className: 'mono', cell: ({ id }) => id },
            { title: 'Protocol', cell: ({ protocol }) => protocol },
            { title: 'User', cell: ({ user }) => user },
            { title: 'From', cell: ({ address }) => address ?? '–' },
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
      )}
    </section>
  );
}
