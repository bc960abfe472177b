import { useLayoutEffect, useRef } from 'preact/hooks';
import { ApiError, messageOf } from './api.ts';
import icon from './icon.svg';
import { notice, signIn } from './session.ts';
import { nextFrame } from './timers.ts';
import { Field, onData, useWork } from './ui/form.tsx';
import { Icon } from './ui/icon.tsx';

export function SignIn() {
  return (
    <main class="sign-in">
      <SignInForm user="" />
    </main>
  );
}

/** The sign-in form over the page of a session that has ended. It covers the page without changing it. */
export function SignInAgain({ user }: { readonly user: string }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    dialog.current?.querySelector<HTMLInputElement>('[type=password]')?.focus();
    // After the dialog is gone: Chromium ignores keys in a field that got the focus while the dialog was closing.
    return () =>
      nextFrame(() => {
        if (before instanceof HTMLElement && before.isConnected) before.focus();
      });
  }, []);
  return (
    <dialog
      ref={dialog}
      class="sign-in"
      aria-label="Sign in again"
      onCancel={(event) => event.preventDefault()}
      // Browsers let Escape close it the second time.
      onClose={() => dialog.current?.showModal()}
    >
      <SignInForm user={user} />
    </dialog>
  );
}

function SignInForm({ user: known }: { readonly user: string }) {
  const { isBusy, error, run } = useWork();
  const first = useRef<HTMLInputElement>(null);
  // A layout effect, so that what is typed at once does not go to another field.
  useLayoutEffect(() => first.current?.focus(), []);
  const submit = (data: FormData): Promise<void> =>
    signIn(String(data.get('user')), String(data.get('password')));
  const message = error === null ? notice.value : failureText(error);
  return (
    <form class="card" onSubmit={onData((data) => void run(() => submit(data)))}>
      <span class="brand">
        <img src={icon} alt="" /> Quayside
      </span>
      <h1>Sign in to {location.host}</h1>
      {message !== null && (
        <p class="failure" role="alert">
          <Icon name="warn" /> <span>{message}</span>
        </p>
      )}
      <Field label="User">
        <input ref={first} name="user" autocomplete="username" required defaultValue={known} />
      </Field>
      <Field label="Password">
        <input name="password" type="password" autocomplete="current-password" required />
      </Field>
      <button type="submit" class="primary" disabled={isBusy}>
        {isBusy ? 'Signing in …' : 'Sign in'}
      </button>
    </form>
  );
}

/** Why a sign-in failed. */
function failureText(error: unknown): string {
  const isWrong = error instanceof ApiError && error.status === 401;
  return isWrong ? 'The user name or the password is wrong.' : messageOf(error);
}
