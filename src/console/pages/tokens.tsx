import { useSignal } from '@preact/signals';
import type { IssuedToken, ListedToken } from '../../model/records.ts';
import { call, get, mayHaveChanged, path } from '../api.ts';
import { count, named, several } from '../format.ts';
import { useGet } from '../remote/resource.ts';
import { may, namespaces, RIGHT_NAMES, session } from '../session.ts';
import { now } from '../timers.ts';
import { Button } from '../ui/button.tsx';
import { Card } from '../ui/card.tsx';
import { ConfirmDialog, Dialog, DialogFoot } from '../ui/dialog.tsx';
import { Field, onData, Select, useWork } from '../ui/form.tsx';
import { type PlainColumn, PlainTable } from '../ui/plain-table.tsx';
import { Snippet } from '../ui/snippet.tsx';
import { Empty, Failure, Loaded } from '../ui/states.tsx';
import { act } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';

/** The server's maximum. A user has at most 100; administrators see those of all users. */
const MAX_TOKENS = 1_000;

/** The user's API tokens, the oldest first; for administrators those of all users. */
export function Tokens() {
  const tokens = useGet<readonly ListedToken[]>('tokens', { query: { limit: MAX_TOKENS }, everyMs: 30_000 });
  const { value, reload } = tokens;
  const isCreating = useSignal(false);
  const revoked = useSignal<ListedToken | null>(null);
  const isAdministrator = session.value?.isAdministrator === true;
  const revoke = ({ id, name }: ListedToken): Promise<void> =>
    act(async () => {
      // Close the dialog first: errors are shown behind it.
      revoked.value = null;
      await call(path('tokens', id), { method: 'DELETE' });
      reload();
      return `The token ${named(name)} is revoked`;
    });
  return (
    <Card
      title={isAdministrator ? 'API tokens of all users' : 'Your API tokens'}
      aside={
        <>
          {value !== null && (
            <span class="muted">
              {value.length < MAX_TOKENS
                ? several(value.length, 'token')
                : `the oldest ${count(value.length)} tokens`}
            </span>
          )}
          <Button icon="plus" onClick={() => (isCreating.value = true)}>
            New token …
          </Button>
        </>
      }
    >
      <Loaded from={tokens}>
        {(all) => (
          <PlainTable
            label="API tokens"
            isLow
            rows={all}
            empty={
              <Empty title="There are no API tokens" icon="lock">
                A program uses a token in place of a password. A token has all or some of your rights, and can
                be revoked separately.
              </Empty>
            }
            keyOf={({ id }) => id}
            columns={columnsOf(isAdministrator)}
            actions={(token) => (
              <Button aria-label={`Revoke ${named(token.name)}`} onClick={() => (revoked.value = token)}>
                Revoke …
              </Button>
            )}
          />
        )}
      </Loaded>
      {isCreating.value && (
        <NewTokenDialog
          onClose={() => {
            isCreating.value = false;
            reload();
          }}
        />
      )}
      {revoked.value !== null && (
        <ConfirmDialog
          title={`Revoke ${named(revoked.value.name)}`}
          action={`Revoke the token ${named(revoked.value.name)}`}
          onConfirm={() => revoked.value !== null && void revoke(revoked.value)}
          onClose={() => (revoked.value = null)}
        >
          <p>
            Programs that use the token <bdi>{revoked.value.name}</bdi> of <bdi>{revoked.value.owner}</bdi>{' '}
            are rejected from then on, on all nodes. A token that was revoked cannot be restored.
          </p>
        </ConfirmDialog>
      )}
    </Card>
  );
}

function columnsOf(isAdministrator: boolean): readonly PlainColumn<ListedToken>[] {
  const owner: PlainColumn<ListedToken> = { title: 'Owner', cell: (token) => <bdi>{token.owner}</bdi> };
  return [
    { title: 'Name', cell: ({ name }) => <bdi>{name}</bdi> },
    ...(isAdministrator ? [owner] : []),
    { title: 'Rights', className: 'long', cell: ({ rights }) => rightsText(rights) },
    { title: 'Created', cell: ({ createdAt }) => <When at={createdAt} /> },
    { title: 'Last used', cell: ({ lastUsedAt }) => <When at={lastUsedAt} /> },
    {
      title: 'Expires',
      cell: ({ expiresAt }) => (expiresAt === null ? 'never' : <When at={expiresAt} />),
    },
  ];
}

function rightsText(rights: ListedToken['rights']): string {
  if (rights === null) return 'all of the owner';
  return Object.entries(rights)
    .map(([ns, list]) => `${ns === '*' ? 'other namespaces' : ns}: ${list.join(', ')}`)
    .join('; ');
}

const DAY_MS = 86_400_000;
/** When a new token expires, by number of days. */
const EXPIRIES = [
  ['30', 'In 30 days'],
  ['90', 'In 90 days'],
  ['365', 'In a year'],
  ['never', 'Never'],
] as const;
const SCOPES = [
  ['all', 'All of yours'],
  ['some', 'Only those chosen'],
] as const;

/** Creates an API token of the user, and shows it once. */
function NewTokenDialog({ onClose }: { readonly onClose: () => void }) {
  const issued = useSignal<IssuedToken | null>(null);
  const expiry = useSignal<(typeof EXPIRIES)[number][0]>('90');
  const scope = useSignal<(typeof SCOPES)[number][0]>('all');
  const { isBusy, error, run } = useWork();
  const create = async (data: FormData): Promise<void> => {
    const chosen = namespaces()
      .map((ns) => [ns, data.getAll(`rights in ${ns}`)] as const)
      .filter(([, rights]) => rights.length > 0);
    if (scope.value === 'some' && chosen.length === 0)
      throw 'The token would have no rights. Choose at least one.';
    const days = expiry.value;
    const token = {
      name: String(data.get('name')),
      rights: scope.value === 'all' ? null : Object.fromEntries(chosen),
      expiresAt: days === 'never' ? null : new Date(now() + Number(days) * DAY_MS).toISOString(),
    };
    issued.value = await get<IssuedToken>('tokens', { method: 'POST', json: token }).catch(
      (reason: unknown) => {
        throw mayHaveChanged(reason)
          ? 'The response was lost: the token may have been created. If the list has it, revoke it and create another one.'
          : reason;
      },
    );
  };
  if (issued.value !== null) {
    return (
      <Dialog title="New API token" onClose={onClose}>
        <div class="body stack">
          <p>
            Copy the token now: it is not shown again. Programs send it as <code>Authorization: Bearer</code>,
            or as the password of the user <code>token</code>.
          </p>
          <Snippet title={issued.value.name} text={issued.value.token} />
          <div class="foot">
            <Button class="primary" onClick={onClose}>
              Close
            </Button>
          </div>
        </div>
      </Dialog>
    );
  }
  return (
    <Dialog title="New API token" onClose={onClose}>
      <form class="body stack" onSubmit={onData((data) => void run(() => create(data)))}>
        <Failure error={error} />
        <Field label="Name" hint="The program that uses it.">
          <input name="name" required maxLength={64} autocomplete="off" />
        </Field>
        <Field label="Expires">
          <Select value={expiry.value} options={EXPIRIES} onChange={(days) => (expiry.value = days)} />
        </Field>
        <Field label="Rights" hint="It never has more rights than you, and loses those that you lose.">
          <Select value={scope.value} options={SCOPES} onChange={(chosen) => (scope.value = chosen)} />
        </Field>
        {scope.value === 'some' && <RightsChoice />}
        <DialogFoot isDisabled={isBusy} onCancel={onClose}>
          Create the token
        </DialogFoot>
      </form>
    </Dialog>
  );
}

/** The rights that the user has, to be chosen. */
function RightsChoice() {
  return (
    <PlainTable
      label="Rights of the token"
      isLow
      rows={namespaces()}
      keyOf={(ns) => ns}
      columns={[
        { title: 'Namespace', cell: (ns) => <bdi>{ns}</bdi> },
        ...RIGHT_NAMES.map(([right, title]) => ({
          title,
          cell: (ns: string) =>
            may(right, ns) && (
              <input
                type="checkbox"
                name={`rights in ${ns}`}
                value={right}
                aria-label={`${title} in ${ns}`}
              />
            ),
        })),
      ]}
    />
  );
}
