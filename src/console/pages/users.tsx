import { type ChangeLine, changes, endSession, type OwnSession, ownSessions } from '../remote/clients.ts';
import { useResource } from '../remote/resource.ts';
import { type AccessRight, namespaces, session } from '../session.ts';
import { Icon } from '../ui/icon.tsx';
import { MissingNodes, nodeColumn } from '../ui/nodes.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { Badge, Empty, Failure, Loading } from '../ui/states.tsx';
import { act } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';

const RIGHTS: readonly (readonly [AccessRight, string])[] = [
  ['read', 'Read'],
  ['write', 'Write'],
  ['manage', 'Manage'],
  ['browse', 'Browse'],
  ['exchange', 'Exchange'],
];

/** What the user who signed in may do, and who changed what. Users and their rights are changed in the configuration only. */
export function Users() {
  return (
    <>
      <h1>Users</h1>
      <OwnRights />
      <OwnSessions />
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
      {namespaces().length === 0 ? (
        <Empty title="You may see no namespace" icon="lock">
          Ask an administrator for a right: <code>http.users</code> in the configuration has them.
        </Empty>
      ) : (
        <PlainTable
          label={`Rights of ${user}`}
          isLow
          rows={namespaces()}
          keyOf={(ns) => ns}
          columns={[
            { title: 'Namespace', cell: (ns) => ns },
            ...RIGHTS.map(([right, title]) => ({
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
      )}
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

function OwnSessions() {
  const sessions = useResource('sessions', ownSessions, 10_000);
  const end = (id: string): Promise<void> =>
    act(async () => {
      await endSession(id);
      sessions.reload();
      return 'The session is signed out';
    });
  return (
    <section class="card">
      <header>
        <h2 class="grow">Your sessions of the console</h2>
      </header>
      {sessions.error !== null && <Failure error={sessions.error} retry={sessions.reload} />}
      {sessions.value === null && sessions.isLoading && <Loading />}
      {sessions.value !== null && <MissingNodes missing={sessions.value.missing} />}
      {sessions.value !== null && (
        <PlainTable
          label="Your sessions of the console"
          isLow
          rows={sessions.value.sessions}
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
            ...nodeColumn<OwnSession>(sessions.value),
            { title: 'Signed in', cell: ({ startedAt }) => <When at={startedAt} /> },
            { title: 'Last used', cell: ({ usedAt }) => <When at={usedAt} /> },
            { title: 'Ends unless used', cell: ({ expiresAt }) => <When at={expiresAt} /> },
            {
              title: 'Actions',
              isTitleHidden: true,
              isNumber: true,
              cell: ({ id, isThis }) =>
                !isThis && (
                  <button type="button" onClick={() => void end(id)}>
                    Sign out
                  </button>
                ),
            },
          ]}
        />
      )}
    </section>
  );
}

function Changes() {
  const { value, error, isLoading, reload } = useResource('audit', changes, 10_000);
  return (
    <section class="card">
      <header>
        <h2 class="grow">Who changed what</h2>
        <span class="muted">the latest first</span>
      </header>
      {error !== null && <Failure error={error} retry={reload} />}
      {value === null && isLoading && <Loading />}
      {value !== null && <MissingNodes missing={value.missing} />}
      {value?.lines.length === 0 && (
        <Empty title="Nothing was changed since the nodes started" icon="users">
          Those who manage a namespace see its changes here, and everybody their own.
        </Empty>
      )}
      {value !== null && value.lines.length > 0 && (
        <PlainTable
          label="Who changed what"
          rows={value.lines}
          keyOf={(_, at) => String(at)}
          columns={[
            { title: 'When', cell: ({ at }) => <When at={at} /> },
            { title: 'User', cell: ({ user }) => user },
            { title: 'Action', cell: ({ action }) => action },
            { title: 'Namespace', cell: ({ namespace }) => namespace ?? '–' },
            { title: 'Queue', cell: ({ queue }) => <bdi>{queue ?? '–'}</bdi> },
            { title: 'From', className: 'mono', cell: ({ address }) => address ?? '–' },
            ...nodeColumn<ChangeLine>(value),
          ]}
        />
      )}
    </section>
  );
}
