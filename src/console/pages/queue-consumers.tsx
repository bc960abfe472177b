import { keyOf, type QueueNamed } from '../remote/live.ts';
import { cancelConsumer, queueConsumers } from '../remote/queues.ts';
import { useResource } from '../remote/resource.ts';
import { href, queueHref } from '../route.ts';
import { may } from '../session.ts';
import { Length } from '../ui/nodes.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { Empty, Failure, Loading, NeedsRight } from '../ui/states.tsx';
import { act } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';

/** Maximum consumers in the table: it renders again every second. */
const MAX_LISTED = 200;

/** The waiting consumers of a queue, in order of arrival. */
export function QueueConsumers({ of }: { readonly of: QueueNamed }) {
  const { ns } = of;
  const isAllowed = may('manage', ns);
  const waiting = useResource(
    keyOf(of),
    (signal) => (isAllowed ? queueConsumers(of, signal) : Promise.resolve([])),
    5_000,
  );
  if (!isAllowed) {
    return <NeedsRight title="Only users who manage the queue see who is waiting" right="manage" ns={ns} />;
  }
  if (waiting.error !== null) return <Failure error={waiting.error} retry={waiting.reload} />;
  if (waiting.value === null) return <Loading />;
  const listed = waiting.value.slice(0, MAX_LISTED);
  const cancel = (tid: string): Promise<void> =>
    act(async () => {
      await cancelConsumer(of, tid);
      waiting.reload();
      return `The calls of ${tid} are cancelled`;
    });
  return (
    <section class="card">
      <header>
        <h2 class="grow">Waiting now</h2>
        <Length of={{ total: waiting.value.length }} shown={listed.length} one="consumer" />
        <a href={href(['clients'], { filter: `${ns} ${of.queue}` })}>All clients of this queue</a>
      </header>
      <PlainTable
        label="Waiting now"
        rows={listed}
        empty={
          <Empty title="No consumer is waiting" icon="clients">
            A consumer appears here while its get, reserve or subscription waits for an element. One that
            works on an element holds it: see the{' '}
            <a href={queueHref(ns, of.queue, { state: 'reserved' })}>reserved</a> elements.
          </Empty>
        }
        keyOf={({ tid }) => tid}
        columns={[
          { title: 'Tid', className: 'mono', cell: ({ tid }) => tid },
          { title: 'User', cell: ({ user }) => user ?? 'an exchange' },
          { title: 'Protocol', cell: ({ protocol }) => protocol },
          { title: 'From', className: 'mono', cell: ({ address }) => address ?? '–' },
          { title: 'Group', cell: ({ group }) => group ?? '–' },
          { title: 'Since', cell: ({ since }) => <When at={since} /> },
        ]}
        actions={({ tid }) => (
          <button type="button" onClick={() => void cancel(tid)}>
            Cancel
          </button>
        )}
      />
    </section>
  );
}
