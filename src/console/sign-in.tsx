import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { ApiError, messageOf } from './api.ts';
import icon from './icon.svg';
import { notice, signIn } from './session.ts';
import { Icon } from './ui/icon.tsx';

export function SignIn() {
  const isBusy = useSignal(false);
  const error = useSignal<string | null>(null);
  const user = useRef<HTMLInputElement>(null);
  useEffect(() => user.current?.focus(), []);
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const data = new FormData(event.currentTarget as HTMLFormElement);
    isBusy.value = true;
    error.value = null;
    try {
      await signIn(String(data.get('user')), String(data.get('password')));
    } catch (reason) {
      const isWrong = reason instanceof ApiError && reason.status === 401;
      error.value = isWrong ? 'The user name or the password is wrong.' : messageOf(reason);
    }
    isBusy.value = false;
  };
  const said = error.value ?? notice.value;
  return (
    <main class="sign-in">
      <form class="card" onSubmit={submit}>
        <span class="brand">
          <img src={icon} alt="" /> Quayside
        </span>
        <h1>Sign in to {location.host}</h1>
        {said !== null && (
          <p class="failure" role="alert">
            <Icon name="warn" /> <span>{said}</span>
          </p>
        )}
        <label class="field">
          <span>User</span>
          <input ref={user} name="user" autocomplete="username" required />
        </label>
        <label class="field">
          <span>Password</span>
          <input name="password" type="password" autocomplete="current-password" required />
        </label>
        <button type="submit" class="primary" disabled={isBusy.value}>
          {isBusy.value ? 'Signing in …' : 'Sign in'}
        </button>
      </form>
    </main>
  );
}
