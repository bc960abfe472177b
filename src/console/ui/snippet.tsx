import { useRef } from 'preact/hooks';
import { Button } from './button.tsx';
import { act } from './toasts.tsx';

/** Text to be copied. */
export function Snippet({ title, text }: { readonly title: string; readonly text: string }) {
  const lines = useRef<HTMLPreElement>(null);
  const copy = (): Promise<void> =>
    act(async () => {
      // Browsers offer no clipboard to pages of other hosts without TLS.
      if (navigator.clipboard !== undefined) {
        await navigator.clipboard.writeText(text);
        return 'Copied';
      }
      if (lines.current !== null) getSelection()?.selectAllChildren(lines.current);
      return 'The lines are selected: copy them with Ctrl+C, or ⌘C';
    });
  return (
    <section class="card">
      <header class="one-line">
        <h2 class="grow">{title}</h2>
        <Button icon="copy" class="quiet" onClick={() => void copy()}>
          Copy
        </Button>
      </header>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <pre ref={lines} class="snippet" tabIndex={0}>
        {text}
      </pre>
    </section>
  );
}
