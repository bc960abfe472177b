import type { PendingConsumer } from '../../model/records.ts';
import { call, type QueueNamed, queuePath } from '../api.ts';
import { named } from '../format.ts';
import { useGet } from '../remote/resource.ts';
import { href, queueHref } from '../route.ts';
import { may } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Card } from '../ui/card.tsx';
import { Length } from '../ui/nodes.tsx';
import { type PlainColumn, PlainTable } from '../ui/plain-table.tsx';
import { filterFor } from '../ui/queue-links.tsx';
import { Empty, Loaded, NeedsRight } from '../ui/states.tsx';
import { act } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';

/** Maximum consumers in the table: it renders again every second. */
const MAX_LISTED = 200;

/** The waiting consumers of a queue, in order of arrival. */
export function QueueConsumers({ of }: { readonly of: QueueNamed }) {
  const { ns } = of;
  const isAllowed = may('manage', ns);
  const waiting = useGet<readonly PendingConsumer[]>(isAllowed ? queuePath(of, 'consumers') : null, {
    everyMs: 5_000,
  });
  if (!isAllowed) {
    return <NeedsRight title="Only users who manage the queue see who is waiting" right="manage" ns={ns} />;
  }
  return (
    <Loaded from={waiting}>{(all) => <WaitingConsumers of={of} all={all} reload={waiting.reload} />}</Loaded>
  );
}

function WaitingConsumers({
  of,
  all,
  reload,
}: {
  readonly of: QueueNamed;
  readonly all: readonly PendingConsumer[];
  readonly reload: () => void;
}) {
  const listed = all.slice(0, MAX_LISTED);
  return (
    <Card
      title="Waiting now"
      aside={
        <>
          <Length of={{ total: all.length }} shown={listed.length} one="consumer" />
          <a href={href(['clients'], { filter: filterFor(of) })}>All clients of this queue</a>
        </>
      }
    >
      <PlainTable
        label="Waiting now"
        rows={listed}
        empty={
          <Empty title="No consumer is waiting" icon="clients">
            A consumer appears here while its get, reserve or subscription waits for an element. One that
            works on an element holds it: see the{' '}
            <a href={queueHref(of.ns, of.queue, { state: 'reserved' })}>reserved</a> elements.
          </Empty>
        }
        keyOf={({ tid }) => tid}
        columns={CONSUMER_COLUMNS}
        actions={({ tid }) => <CancelCalls of={of} tid={tid} onDone={reload} />}
      />
    </Card>
  );
}

/** What tables show of a waiting consumer. */
export const CONSUMER_COLUMNS: readonly PlainColumn<PendingConsumer>[] = [
  { title: 'Tid', className: 'mono', cell: ({ tid }) => named(tid) },
  { title: 'User', cell: ({ user }) => (user === null ? 'an exchange' : named(user)) },
  { title: 'Protocol', cell: ({ protocol }) => protocol },
  { title: 'From', className: 'mono', cell: ({ address }) => address ?? '–' },
  { title: 'Group', cell: ({ group }) => group ?? '–' },
  { title: 'Since', cell: ({ since }) => <When at={since} /> },
];

/** A button that cancels the calls that wait under a tid. */
export function CancelCalls({
  of,
  tid,
  onDone,
}: {
  readonly of: QueueNamed;
  readonly tid: string;
  readonly onDone: () => void;
}) {
  const cancel = (): Promise<void> =>
    act(async () => {
      await call(queuePath(of, 'consumer', tid), { method: 'DELETE' });
      onDone();
      return `The calls of ${named(tid)} are cancelled`;
    });
  return <Button onClick={() => void cancel()}>Cancel</Button>;
}
