import { useSignal } from '@preact/signals';
import type { IssuedToken, ListedToken } from '../../model/records.ts';
import { mayHaveChanged } from '../api.ts';
import { count, named, several } from '../format.ts';
import { useResource } from '../remote/resource.ts';
import { createToken, listTokens, MAX_TOKENS, revokeToken } from '../remote/tokens.ts';
import { may, namespaces, RIGHT_NAMES, session } from '../session.ts';
import { now } from '../timers.ts';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { Dialog } from '../ui/dialog.tsx';
import { Icon } from '../ui/icon.tsx';
import { type PlainColumn, PlainTable } from '../ui/plain-table.tsx';
import { Snippet } from '../ui/snippet.tsx';
import { Empty, Failure, Loading } from '../ui/states.tsx';
import { act } from '../ui/toasts.tsx';
import { When } from '../ui/when.tsx';

/** The user's API tokens; for administrators those of all users. */
export function Tokens() {
  const { value, error, isLoading, reload } = useResource('tokens', listTokens, 30_000);
  const isCreating = useSignal(false);
  const revoked = useSignal<ListedToken | null>(null);
  const isAdministrator = session.value?.isAdministrator === true;
  const revoke = ({ id, name }: ListedToken): Promise<void> =>
    act(async () => {
      // Close the dialog first: errors are shown behind it.
      revoked.value = null;
      await revokeToken(id);
      reload();
      return `The token ${named(name)} is revoked`;
    });
  return (
    <section class="card">
      <header>
        <h2 class="grow">{isAdministrator ? 'API tokens of all users' : 'Your API tokens'}</h2>
        {value !== null && (
          <span class="muted">
            {value.length < MAX_TOKENS
              ? several(value.length, 'token')
              : `the oldest ${count(value.length)} tokens`}
          </span>
        )}
        <button type="button" onClick={() => (isCreating.value = true)}>
          <Icon name="plus" /> New token …
        </button>
      </header>
      {error !== null && <Failure error={error} retry={reload} />}
      {value === null && isLoading && <Loading />}
      {value !== null && (
        <PlainTable
          label="API tokens"
          isLow
          rows={value}
          empty={
            <Empty title="There are no API tokens" icon="lock">
              A program uses a token in place of a password. A token has all or some of your rights, and can
              be revoked separately.
            </Empty>
          }
          keyOf={({ id }) => id}
          columns={columnsOf(isAdministrator)}
          actions={(token) => (
            <button
              type="button"
              aria-label={`Revoke ${named(token.name)}`}
              onClick={() => (revoked.value = token)}
            >
              Revoke …
            </button>
          )}
        />
      )}
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
    </section>
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
const EXPIRIES = { '30': 'In 30 days', '90': 'In 90 days', '365': 'In a year', never: 'Never' } as const;

/** Creates an API token of the user, and shows it once. */
function NewTokenDialog({ onClose }: { readonly onClose: () => void }) {
  const issued = useSignal<IssuedToken | null>(null);
  const hasAllRights = useSignal(true);
  const error = useSignal<unknown>(null);
  const isBusy = useSignal(false);
  const create = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const data = new FormData(event.currentTarget as HTMLFormElement);
    const expiry = String(data.get('expiry'));
    const chosen = namespaces()
      .map((ns) => [ns, data.getAll(`rights in ${ns}`)] as const)
      .filter(([, rights]) => rights.length > 0);
    if (!hasAllRights.value && chosen.length === 0) {
      error.value = 'The token would have no rights. Choose at least one.';
      return;
    }
    isBusy.value = true;
    error.value = null;
    try {
      issued.value = await createToken({
        name: String(data.get('name')),
        rights: hasAllRights.value ? null : Object.fromEntries(chosen),
        expiresAt: expiry === 'never' ? null : new Date(now() + Number(expiry) * DAY_MS).toISOString(),
      });
    } catch (reason) {
      error.value = mayHaveChanged(reason)
        ? 'The response was lost: the token may have been created. If the list has it, revoke it and create another one.'
        : reason;
    }
    isBusy.value = false;
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
            <button type="button" class="primary" onClick={onClose}>
              Close
            </button>
          </div>
        </div>
      </Dialog>
    );
  }
  return (
    <Dialog title="New API token" onClose={onClose}>
      <form class="body stack" onSubmit={create}>
        {error.value !== null && <Failure error={error.value} />}
        <label class="field">
          <span>Name</span>
          <input name="name" required maxLength={64} autocomplete="off" />
          <small>The program that uses it.</small>
        </label>
        <label class="field">
          <span>Expires</span>
          <select name="expiry" defaultValue="90">
            {Object.entries(EXPIRIES).map(([days, text]) => (
              <option key={days} value={days} selected={days === '90'}>
                {text}
              </option>
            ))}
          </select>
        </label>
        <label class="field">
          <span>Rights</span>
          <select
            onChange={(event) => {
              hasAllRights.value = event.currentTarget.value === 'all';
            }}
          >
            <option value="all">All of yours</option>
            <option value="some">Only those chosen</option>
          </select>
          <small>It never has more rights than you, and loses those that you lose.</small>
        </label>
        {!hasAllRights.value && <RightsChoice />}
        <div class="foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={isBusy.value}>
            Create the token
          </button>
        </div>
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
