import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import type { AuditLines, AuditRow, ConsoleSessionRow, OwnConsoleSessions } from '../../model/records.ts';
import { call, get, path } from '../api.ts';
import { useGet, useResource } from '../remote/resource.ts';
import { namespaces, RIGHT_NAMES, session, signOut } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Card } from '../ui/card.tsx';
import { ConfirmDialog } from '../ui/dialog.tsx';
import { FilterField, filterOfPage } from '../ui/filter-field.tsx';
import { onData } from '../ui/form.tsx';
import { Icon } from '../ui/icon.tsx';
import { Length, MissingNodes, nodeColumn } from '../ui/nodes.tsx';
import { PlainTable } from '../ui/plain-table.tsx';
import { Badge, Empty, Loaded } from '../ui/states.tsx';
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
    <Card
      title={
        <>
          Rights of <bdi>{user}</bdi>
        </>
      }
      aside={isAdministrator && <Badge level="accent">Administrator</Badge>}
    >
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
    </Card>
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
  const chosen = useSignal(self);
  const user = chosen.value;
  const isAsking = useSignal(false);
  const isOwn = user === self;
  const label = isOwn ? 'Your console sessions' : `Console sessions of ${user}`;
  const read = useResource(
    user,
    async (signal) => ({
      user,
      ...(await get<OwnConsoleSessions>('console/sessions', { query: { user }, signal })),
    }),
    10_000,
  );
  // The previous response stays while the next one is loading: do not show it under another user's name.
  const sessions = { ...read, value: read.value?.user === user ? read.value : null };
  const end = (id: string): Promise<void> =>
    act(async () => {
      await call(path('console', 'sessions', id), { method: 'DELETE', query: { user } });
      sessions.reload();
      return 'The session is signed out';
    });
  const endAll = (): Promise<void> =>
    act(async () => {
      // Close the dialog first: errors are shown behind it.
      isAsking.value = false;
      await call('console/sessions', { method: 'DELETE', query: { user } });
      if (isOwn) await signOut();
      else sessions.reload();
      return `All sessions of ${user} are signed out`;
    });
  return (
    <Card
      title={<bdi>{label}</bdi>}
      aside={
        <>
          {session.value?.isAdministrator === true && (
            <form
              class="row"
              onSubmit={onData((data) => (chosen.value = String(data.get('user')).trim() || self))}
            >
              <label class="row">
                <span class="muted">Of user</span>
                <input name="user" defaultValue={self} />
              </label>
              <button type="submit">Show</button>
            </form>
          )}
          {sessions.value !== null && sessions.value.sessions.length > 0 && (
            <Button class="danger" onClick={() => (isAsking.value = true)}>
              Sign out all …
            </Button>
          )}
        </>
      }
    >
      <Loaded from={sessions}>
        {(list) => (
          <>
            <MissingNodes missing={list.missing} />
            <PlainTable
              label={label}
              isLow
              rows={list.sessions}
              empty={
                <Empty title={`${user} is not signed in`} icon="users">
                  Sessions appear here from the sign-in until they end. Programs that send a password or a
                  token have none.
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
              actions={({ id, isThis }) => !isThis && <Button onClick={() => void end(id)}>Sign out</Button>}
            />
          </>
        )}
      </Loaded>
      {isAsking.value && (
        <ConfirmDialog
          title={`Sign out all sessions of ${user}`}
          action={`Sign out all sessions of ${user}`}
          onConfirm={() => void endAll()}
          onClose={() => (isAsking.value = false)}
        >
          <p>
            Every console session of <bdi>{user}</bdi> ends on all nodes
            {isOwn && ', this one too'}. Passwords and API tokens stay valid.
          </p>
        </ConfirmDialog>
      )}
    </Card>
  );
}

/** Maximum changes in the table. */
const MAX_LISTED = 200;

function detailsText(details: AuditRow['details']): string {
  const all = Object.entries(details).map(
    ([name, value]) => `${name}: ${typeof value === 'string' ? value : JSON.stringify(value)}`,
  );
  return all.join(', ') || '–';
}

function Changes() {
  const filter = filterOfPage();
  const changes = useGet<AuditLines>('audit', { query: { limit: MAX_LISTED, filter }, everyMs: 10_000 });
  const { value } = changes;
  const place = useRef<HTMLDivElement>(null);
  const isRead = value !== null;
  // A link with a filter, such as that of a queue, leads to the changes.
  useEffect(() => {
    if (isRead && filter !== '') place.current?.scrollIntoView();
  }, [isRead]);
  const emptyTitle =
    filter === '' ? 'Nothing was changed since the nodes started' : 'No change matches the filter';
  return (
    <div ref={place}>
      <Card
        title="Who changed what"
        aside={
          <>
            {value !== null && <Length of={value} shown={value.lines.length} one="change" />}
            <span class="muted">newest first</span>
            <FilterField label="Filter changes" placeholder="Queue, user, action …" />
          </>
        }
      >
        <Loaded from={changes}>
          {(list) => (
            <>
              <MissingNodes missing={list.missing} />
              <PlainTable
                label="Who changed what"
                rows={list.lines}
                empty={
                  <Empty title={emptyTitle} icon="users">
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
                  {
                    title: 'Details',
                    className: 'long',
                    cell: ({ details }) => <bdi>{detailsText(details)}</bdi>,
                  },
                  { title: 'From', className: 'mono', cell: ({ address }) => address ?? '–' },
                  ...nodeColumn<AuditRow>(list),
                ]}
              />
            </>
          )}
        </Loaded>
      </Card>
    </div>
  );
}
