import { render } from 'preact';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { Keys } from './keys.tsx';
import { loadFirst, PageOf, pageTitle } from './pages/page.tsx';
import { follow } from './remote/live.ts';
import { place } from './route.ts';
import { hasEnded, resume, session, sessionError } from './session.ts';
import { Shell } from './shell.tsx';
import { SignIn, SignInAgain } from './sign-in.tsx';
import { Failure, Loading } from './ui/states.tsx';
import { Toasts } from './ui/toasts.tsx';
import './styles/index.css';

// Send requests before rendering.
void resume();
loadFirst();
follow();
render(<App />, document.body);

function App() {
  const record = session.value;
  const { value: here } = place;
  const isSignedIn = Boolean(record) && !hasEnded.value;
  useEffect(() => {
    document.title = isSignedIn ? `${pageTitle()} · Quayside · ${location.host}` : 'Sign in · Quayside';
  }, [isSignedIn, here]);
  const before = useRef(here);
  // A layout effect, so that the new page is not painted at the old scroll position.
  useLayoutEffect(() => {
    if (before.current === here) return;
    before.current = here;
    scrollTo(0, 0);
    // Move the focus to the new page: it was in the old page, or on the navigation link.
    document.getElementById('page')?.focus({ preventScroll: true });
  }, [here]);
  if (record === undefined && sessionError.value !== null)
    return (
      <main class="sign-in">
        <Failure error={sessionError.value} retry={() => void resume()} />
      </main>
    );
  if (record === undefined) return <Loading what="Connecting" />;
  if (record === null) return <SignIn />;
  return (
    <>
      <Shell key={record.user} record={record}>
        <PageOf />
      </Shell>
      <Keys />
      <Toasts />
      {hasEnded.value && <SignInAgain user={record.user} />}
    </>
  );
}
