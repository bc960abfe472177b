import type { ComponentChildren } from 'preact';
import { count } from '../format.ts';
import { type ClientsOfNode, clientsOfNode } from '../remote/clients.ts';
import { useResource } from '../remote/resource.ts';
import { queueHref } from '../route.ts';
import { Empty, Failure, Loading } from '../ui/states.tsx';
import { When } from '../ui/when.tsx';

/** Who is connected to the node that answers, who waits where, and who changed what. */
export function Clients() {
  const clients = useResource('clients', clientsOfNode, 5_000);
  return (
    <>
      <h1>Clients</h1>
      {clients.error !== null && <Failure error={clients.error} retry={clients.reload} />}
      {clients.value === null && clients.isLoading && <Loading />}
      {clients.value !== null && <ClientTables of={clients.value} />}
    </>
  );
}

function ClientTables({ of: { sessions, consumers, audit } }: { readonly of: ClientsOfNode }) {
  return (
    <>
      <ClientTable
        title="Waiting now"
        heads={['Queue', 'User', 'Protocol', 'From', 'Since']}
        empty="Nobody waits for an element"
        rows={consumers.map(({ ns, queue, tid, user, protocol, address, since }) => ({
          key: `${ns} ${queue} ${tid}`,
          cells: [
            <QueueLink key="q" ns={ns} queue={queue} />,
            user ?? 'an exchange',
            protocol,
            address ?? '–',
            <When key="w" at={since} />,
          ],
        }))}
      />
      <ClientTable
        title="Sessions of STOMP and AMQP"
        heads={['Session', 'Protocol', 'User', 'From', 'Since', 'Consumes: unacknowledged of window']}
        empty="No client has a session on this node"
        rows={sessions.map(({ id, protocol, user, address, since, consumers: own }) => ({
          key: id,
          cells: [
            <span key="i" class="mono">
              {id}
            </span>,
            protocol,
            user,
            address ?? '–',
            <When key="w" at={since} />,
            own.map(({ ns, queue, window, unacknowledged }) => (
              <div key={`${ns} ${queue}`}>
                <QueueLink ns={ns} queue={queue} /> {count(unacknowledged)} of{' '}
                {window === null ? '–' : count(window)}
              </div>
            )),
          ],
        }))}
      />
      <ClientTable
        title="Who changed what"
        heads={['When', 'User', 'Action', 'Namespace', 'Queue', 'From']}
        empty="Nothing was changed since this node started"
        rows={audit.map(({ at, user, action, namespace, queue, address }) => ({
          key: `${at} ${user} ${action} ${queue}`,
          cells: [<When key="w" at={at} />, user, action, namespace ?? '–', queue ?? '–', address ?? '–'],
        }))}
      />
    </>
  );
}

function QueueLink({ ns, queue }: { readonly ns: string; readonly queue: string }) {
  return (
    <>
      <a href={queueHref(ns, queue)}>
        <bdi>{queue}</bdi>
      </a>{' '}
      <span class="muted">{ns}</span>
    </>
  );
}

function ClientTable({
  title,
  heads,
  rows,
  empty,
}: {
  readonly title: string;
  readonly heads: readonly string[];
  readonly rows: readonly { readonly key: string; readonly cells: readonly ComponentChildren[] }[];
  readonly empty: string;
}) {
  return (
    <section class="card">
      <header>
        <h2>{title}</h2>
      </header>
      {rows.length === 0 ? (
        <Empty title={empty} icon="users" />
      ) : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
        <section class="scrolls client-table" tabIndex={0} aria-label={title}>
          <table class="plain">
            <thead>
              <tr>
                {heads.map((head) => (
                  <th key={head} scope="col">
                    {head}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map(({ key, cells }) => (
                <tr key={key}>
                  {cells.map((cell, i) => (
                    <td key={heads[i]}>{cell}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </section>
  );
}
