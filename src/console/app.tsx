import { useEffect } from 'preact/hooks';
import { Keys } from './keys.tsx';
import { PageOf } from './pages/page.tsx';
import { session } from './session.ts';
import { Shell } from './shell.tsx';
import { SignIn } from './sign-in.tsx';
import { Loading } from './ui/states.tsx';
import { Toasts } from './ui/toasts.tsx';

export function App() {
  const record = session.value;
  useEffect(() => {
    document.title = record ? `Quayside · ${location.host}` : 'Sign in · Quayside';
  }, [record]);
  if (record === undefined) return <Loading what="Connecting" />;
  if (record === null) return <SignIn />;
  return (
    <>
      <Shell record={record}>
        <PageOf />
      </Shell>
      <Keys />
      <Toasts />
    </>
  );
}
