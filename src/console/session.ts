import { batch, effect, signal } from '@preact/signals';
import type { ConsoleSessionRecord } from '../model/records.ts';
import type { Right } from '../model/rights.ts';
import { ApiError, call, forbidden, get, messageOf, onStaleToken, rejected, setCsrfToken } from './api.ts';
import { named } from './format.ts';
import { after } from './timers.ts';

const WHERE = 'console/session';

/** Undefined: not known yet; null: not signed in. */
export const session = signal<ConsoleSessionRecord | null | undefined>(undefined);
/** Whether the session has ended while its page is open. The page stays behind the form, as behind a lock screen. */
export const hasEnded = signal(false);
/** Why the sign-in form is shown again. */
export const notice = signal<string | null>(null);

/** Why the session could not be read; null: it was read, or has not been read yet. */
export const sessionError = signal<unknown>(null);

const RETRY_MS = 3_000;
let cancelRetry = (): void => {};
/** Counts sign-ins and sign-outs of this page: a response to a request sent before the last one is out of date. */
let changes = 0;

/** Reads the session of the browser's cookie. Unless the server answers, the known session stays. */
export async function resume(): Promise<void> {
  cancelRetry();
  const before = changes;
  try {
    const record = await get<ConsoleSessionRecord>(WHERE);
    if (before === changes) setSession(record);
  } catch (error) {
    const isRejected = error instanceof ApiError && error.status === 401;
    if (isRejected && !session.peek()) setSession(null);
    else if (session.peek() === undefined) {
      sessionError.value = error;
      cancelRetry = after(RETRY_MS, () => void resume());
    }
  }
}

onStaleToken(async () => {
  const before = session.peek();
  await resume();
  const now = session.peek();
  if (!before || !now || before.csrfToken === now.csrfToken) return false;
  if (before.user !== now.user)
    throw new Error(`Nothing was changed. Another tab has signed in as ${named(now.user)}.`);
  return true;
});

/** @throws ApiError */
export async function signIn(user: string, password: string): Promise<void> {
  const record = await get<ConsoleSessionRecord>(WHERE, { method: 'POST', json: { user, password } });
  changes += 1;
  setSession(record);
}

/**
 * Signs out. The server's error responses remove the cookie, too; without any, the browser keeps it.
 * @throws Error if the session has not ended
 */
export async function signOut(): Promise<void> {
  let problem: string | null = null;
  try {
    await call(WHERE, { method: 'DELETE' });
  } catch (error) {
    if (error instanceof ApiError && !error.isOfServer)
      throw new Error('You are still signed in: the server did not respond. Sign out again when it does.');
    problem = messageOf(error);
  }
  changes += 1;
  setSession(null);
  notice.value = problem;
}

type OnUserChange = (before: string | undefined, now: string | undefined) => void;
const userChangeListeners: OnUserChange[] = [];

/**
 * Calls `forget` when the user changes, signs in or signs out: the next user must not see data of the previous one.
 * Nobody is signed in if a user is undefined.
 */
export function onUserChange(forget: OnUserChange): void {
  userChangeListeners.push(forget);
}

function setSession(record: ConsoleSessionRecord | null): void {
  batch(() => {
    const before = session.peek()?.user;
    if (before !== record?.user) for (const forget of userChangeListeners) forget(before, record?.user);
    setCsrfToken(record?.csrfToken ?? null);
    sessionError.value = null;
    hasEnded.value = false;
    notice.value = null;
    session.value = record;
  });
}

effect(() => {
  // The user has lost a right since the session was read.
  if (forbidden.value > 0 && session.peek()) void resume();
});

effect(() => {
  if (rejected.value === 0 || !session.peek()) return;
  notice.value = 'Your session has ended. Sign in again to continue where you were.';
  hasEnded.value = true;
});

document.addEventListener('visibilitychange', () => {
  // Another tab may have signed in again.
  if (!document.hidden && hasEnded.peek()) void resume();
});

/** The rights, and their names on pages. */
export const RIGHT_NAMES: readonly (readonly [Right, string])[] = [
  ['read', 'Read'],
  ['write', 'Write'],
  ['manage', 'Manage'],
  ['browse', 'Browse'],
  ['exchange', 'Exchange'],
];

/** Whether the user has a right in a namespace. Actions that would be rejected are not shown. */
export function may(right: Right, ns: string): boolean {
  const rights = session.value?.rights ?? {};
  // Not a member that all objects have: a typed address may name any namespace.
  return Object.hasOwn(rights, ns) && rights[ns]?.includes(right) === true;
}

/** Whether the user has a right in at least one namespace. */
export function mayAnywhere(right: Right): boolean {
  return namespaces().some((ns) => may(right, ns));
}

/** The namespaces that the user may see, by name. */
export function namespaces(): readonly string[] {
  return Object.keys(session.value?.rights ?? {}).sort();
}

/** The namespaces to which the user may move, copy or forward elements of a namespace, the own one first. */
export function targetNamespaces(own: string): readonly string[] {
  const others = namespaces().filter((ns) => ns !== own && may('write', ns) && may('read', own));
  return may('write', own) ? [own, ...others] : others;
}
