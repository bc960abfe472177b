import { useSignal } from '@preact/signals';
import type { AuditRow, ConsoleSessionRow } from '../../model/records.ts';
import { changes, consoleSessions, endAllSessions, endSession } from '../remote/node-lists.ts';
import { useResource } from '../remote/resource.ts';
import { address } from '../route.ts';
import { namespaces, RIGHT_NAMES, session, signOut } from '../session.ts';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { FilterField } from '../ui/filter-field.tsx';
import { Icon } from '../ui/icon.tsx';
import { Length, MissingNodes, nodeColumn } from '../ui/nodes.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { Badge, Empty, Failure, Loading } from '../ui/states.tsx';
import { act } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';
import { Tokens } from './tokens.tsx';

/**
 * The user's rights, console sessions and API tokens, and the audit log. Rights are changed only in the configuration.
 */
export function Users() {
  return (
    <>
      <h1>Users</h1>
      <OwnRights />
      <Sessions />
      <Tokens />
      <Changes />
    </>
  );
}

function OwnRights() {
  const record = session.value;
  if (!record) return null;
  const { user, isAdministrator, rights, maskedBodies } = record;
  return (
    <section class="card">
      <header>
        <h2 class="grow">
          Rights of <bdi>{user}</bdi>
        </h2>
        {isAdministrator && <Badge level="accent">Administrator</Badge>}
      </header>
      <PlainTable
        label={`Rights of ${user}`}
        isLow
        rows={namespaces()}
        empty={
          <Empty title="You may not see any namespace" icon="lock">
            Ask an administrator for a right: <code>http.users</code> in the configuration sets them.
          </Empty>
        }
        keyOf={(ns) => ns}
        columns={[
          { title: 'Namespace', cell: (ns) => ns },
          ...RIGHT_NAMES.map(([right, title]) => ({
            title,
            cell: (ns: string) => <YesOrNo isYes={rights[ns]?.includes(right) === true} />,
          })),
          {
            title: 'Sees bodies',
            cell: (ns) => (
              <YesOrNo isYes={rights[ns]?.includes('browse') === true && !maskedBodies.includes(ns)} />
            ),
          },
        ]}
      />
    </section>
  );
}

function YesOrNo({ isYes }: { readonly isYes: boolean }) {
  if (!isYes) return <span class="muted">no</span>;
  return (
    <span class="yes">
      <Icon name="ok" /> yes
    </span>
  );
}

/** The user's console sessions; for administrators also those of other users. */
function Sessions() {
  const self = session.value?.user ?? '';
  const user = useSignal(self);
  const typed = useSignal(self);
  const isAsking = useSignal(false);
  const isOwn = user.value === self;
  const label = isOwn ? 'Your console sessions' : `Console sessions of ${user.value}`;
  const { value, error, isLoading, reload } = useResource(
    `sessions of ${user.value}`,
    async (signal) => ({ user: user.value, ...(await consoleSessions(user.value, signal)) }),
    10_000,
  );
  // The previous response stays while the next one is loading: do not show it under another user's name.
  const list = value?.user === user.value ? value : null;
  const end = (id: string): Promise<void> =>
    act(async () => {
      await endSession(user.value, id);
      reload();
      return 'The session is signed out';
    });
  const endAll = (): Promise<void> =>
    act(async () => {
      // Close the dialog first: errors are shown behind it.
      isAsking.value = false;
      await endAllSessions(user.value);
      if (isOwn) await signOut();
      else reload();
      return `All sessions of ${user.value} are signed out`;
    });
  return (
    <section class="card">
      <header>
        <h2 class="grow">
          <bdi>{label}</bdi>
        </h2>
        {session.value?.isAdministrator === true && (
          <form
            class="row"
            onSubmit={(event) => {
              event.preventDefault();
              user.value = typed.value.trim() || self;
            }}
          >
            <label class="row">
              <span class="muted">Of user</span>
              <input
                value={typed.value}
                onInput={({ currentTarget }) => (typed.value = currentTarget.value)}
              />
            </label>
            <button type="submit">Show</button>
          </form>
        )}
        {list !== null && list.sessions.length > 0 && (
          <button type="button" class="danger" onClick={() => (isAsking.value = true)}>
            Sign out all …
          </button>
        )}
      </header>
      {error !== null && <Failure error={error} retry={reload} />}
      {list === null && isLoading && <Loading />}
      {list !== null && <MissingNodes missing={list.missing} />}
      {list !== null && (
        <PlainTable
          label={label}
          isLow
          rows={list.sessions}
          empty={
            <Empty title={`${user.value} is not signed in`} icon="users">
              Sessions appear here from the sign-in until they end. Programs that send a password or a token
              have none.
            </Empty>
          }
          keyOf={({ id }) => id}
          columns={[
            {
              title: 'From',
              cell: ({ address, isThis }) => (
                <>
                  <span class="mono">{address}</span> {isThis && <Badge level="accent">this one</Badge>}
                </>
              ),
            },
            { title: 'Browser', className: 'long', cell: ({ browser }) => <bdi>{browser ?? '–'}</bdi> },
            ...nodeColumn<ConsoleSessionRow>(list),
            { title: 'Signed in', cell: ({ startedAt }) => <When at={startedAt} /> },
            { title: 'Last used', cell: ({ usedAt }) => <When at={usedAt} /> },
            { title: 'Expires', cell: ({ expiresAt }) => <When at={expiresAt} /> },
          ]}
          actions={({ id, isThis }) =>
            !isThis && (
              <button type="button" onClick={() => void end(id)}>
                Sign out
              </button>
            )
          }
        />
      )}
      {isAsking.value && (
        <ConfirmDialog
          title={`Sign out all sessions of ${user.value}`}
          action={`Sign out all sessions of ${user.value}`}
          onConfirm={() => void endAll()}
          onClose={() => (isAsking.value = false)}
        >
          <p>
            Every console session of <bdi>{user.value}</bdi> ends on all nodes
            {isOwn && ', this one too'}. Passwords and API tokens stay valid.
          </p>
        </ConfirmDialog>
      )}
    </section>
  );
}

function detailsText(details: AuditRow['details']): string {
  const all = Object.entries(details).map(
    ([name, value]) => `${name}: ${typeof value === 'string' ? value : JSON.stringify(value)}`,
  );
  return all.join(', ') || '–';
}

function Changes() {
  const filter = address.value.query.get('filter') ?? '';
  const { value, error, isLoading, reload } = useResource(
    `audit ${filter}`,
    (signal) => changes(filter, signal),
    10_000,
  );
  return (
    <section class="card">
      <header>
        <h2 class="grow">Who changed what</h2>
        {value !== null && <Length of={value} shown={value.lines.length} one="change" />}
        <span class="muted">newest first</span>
        <FilterField filter={filter} label="Filter changes" placeholder="Queue, user, action …" />
      </header>
      {error !== null && <Failure error={error} retry={reload} />}
      {value === null && isLoading && <Loading />}
      {value !== null && <MissingNodes missing={value.missing} />}
      {value !== null && (
        <PlainTable
          label="Who changed what"
          rows={value.lines}
          empty={
            <Empty
              title={
                filter === '' ? 'Nothing was changed since the nodes started' : 'No change matches the filter'
              }
              icon="users"
            >
              Users who manage a namespace see its changes here, and everyone sees their own.
            </Empty>
          }
          keyOf={(_, at) => String(at)}
          columns={[
            { title: 'When', cell: ({ at }) => <When at={at} /> },
            { title: 'User', cell: ({ user }) => user },
            { title: 'Action', cell: ({ action }) => action },
            { title: 'Namespace', cell: ({ namespace }) => namespace ?? '–' },
            { title: 'Queue', cell: ({ queue }) => <bdi>{queue ?? '–'}</bdi> },
            { title: 'Details', className: 'long', cell: ({ details }) => <bdi>{detailsText(details)}</bdi> },
            { title: 'From', className: 'mono', cell: ({ address }) => address ?? '–' },
            ...nodeColumn<AuditRow>(value),
          ]}
        />
      )}
    </section>
  );
}
