import { call, path } from '../api.ts';
import { several } from '../format.ts';
import { keyOf, type QueueNamed } from '../remote/live.ts';
import { queueConsumers } from '../remote/queue-status.ts';
import { useResource } from '../remote/resource.ts';
import { may } from '../session.ts';
import { Empty, Failure, Loading } from '../ui/states.tsx';
import { act } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';

/** Who waits for elements of a queue, the first one first. */
export function QueueConsumers({ of }: { readonly of: QueueNamed }) {
  const { ns, queue } = of;
  const isAllowed = may('manage', ns);
  const waiting = useResource(
    keyOf(of),
    (signal) => (isAllowed ? queueConsumers(of, signal) : Promise.resolve([])),
    5_000,
  );
  if (!isAllowed) {
    return (
      <Empty title="Who waits is shown to those who manage the queue" icon="lock">
        It takes the right <code>manage</code> in {ns}.
      </Empty>
    );
  }
  if (waiting.error !== null) return <Failure error={waiting.error} retry={waiting.reload} />;
  if (waiting.value === null) return <Loading />;
  const cancel = (tid: string): Promise<void> =>
    act(async () => {
      await call(path('q', ns, queue, 'consumer', tid), { method: 'DELETE' });
      waiting.reload();
      return `The calls of ${tid} are cancelled`;
    });
  return (
    <section class="card">
      <header>
        <h2 class="grow">Waiting now</h2>
        <span class="muted">{several(waiting.value.length, 'consumer')}</span>
      </header>
      {waiting.value.length === 0 ? (
        <Empty title="Nobody waits" icon="users">
          A consumer appears here while its get, reserve or subscription waits for an element.
        </Empty>
      ) : (
        <div class="scrolls">
          <table class="plain">
            <thead>
              <tr>
                <th scope="col">Tid</th>
                <th scope="col">User</th>
                <th scope="col">Protocol</th>
                <th scope="col">From</th>
                <th scope="col">Group</th>
                <th scope="col">Since</th>
                <th scope="col">
                  <span class="visually-hidden">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {waiting.value.map(({ tid, user, protocol, address, group, since }) => (
                <tr key={tid}>
                  <td class="mono">{tid}</td>
                  <td>{user ?? 'an exchange'}</td>
                  <td>{protocol}</td>
                  <td class="mono">{address ?? '–'}</td>
                  <td>{group ?? '–'}</td>
                  <td>
                    <When at={since} />
                  </td>
                  <td class="number">
                    <button type="button" onClick={() => void cancel(tid)}>
                      Cancel
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
