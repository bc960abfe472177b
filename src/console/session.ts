import { effect, signal } from '@preact/signals';
import { ApiError, call, get, rejected, setCsrfToken } from './api.ts';

export type AccessRight = 'read' | 'write' | 'manage' | 'browse' | 'exchange';

/** What the server says of a session. */
export interface SessionRecord {
  readonly user: string;
  readonly isAdministrator: boolean;
  /** By namespace; those that the user may not see are left out. */
  readonly rights: Readonly<Record<string, readonly AccessRight[]>>;
  /** Namespaces in which the user may browse, but sees no bodies. */
  readonly maskedBodies: readonly string[];
  readonly csrfToken: string;
  readonly expiresAt: string;
  readonly server: { readonly version: string; readonly node: string };
}

const WHERE = 'console/session';

/** Undefined: not known yet; null: nobody is signed in. */
export const session = signal<SessionRecord | null | undefined>(undefined);
/** Why the form is shown again. */
export const notice = signal<string | null>(null);

/** The session that the browser has from before, if it still holds. */
export async function resume(): Promise<void> {
  try {
    use(await get<SessionRecord>(WHERE));
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 401) notice.value = String(error);
    use(null);
  }
}

/** @throws ApiError */
export async function signIn(user: string, password: string): Promise<void> {
  notice.value = null;
  use(await get<SessionRecord>(WHERE, { method: 'POST', json: { user, password } }));
}

export async function signOut(): Promise<void> {
  await call(WHERE, { method: 'DELETE' }).catch(() => {});
  use(null);
}

function use(record: SessionRecord | null): void {
  setCsrfToken(record?.csrfToken ?? null);
  session.value = record;
}

effect(() => {
  if (rejected.value === 0 || !session.peek()) return;
  notice.value = 'Your session has ended. Sign in again; you will be where you were.';
  use(null);
});

/** Whether the user has a right in a namespace: what would fail is not shown. */
export function may(right: AccessRight, ns: string): boolean {
  const record = session.value;
  return record?.rights[ns]?.includes(right) === true;
}

/** The namespaces that the user may see, by name. */
export function namespaces(): readonly string[] {
  return Object.keys(session.value?.rights ?? {}).sort();
}
