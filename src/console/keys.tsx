import { signal } from '@preact/signals';
import { useLayoutEffect } from 'preact/hooks';
import { DESTINATIONS } from './destinations.ts';
import { go, href } from './route.ts';
import { after } from './timers.ts';
import { Dialog } from './ui/dialog.tsx';

export const isHelpOpen = signal(false);

/** How long after `g` the second key may be pressed. */
const PAUSE_MS = 1_500;

/** The keyboard shortcuts of all pages. */
export function Keys() {
  // A layout effect, so that keys work as soon as the page is visible.
  useLayoutEffect(() => {
    let isGoing = false;
    let forget = (): void => {};
    const onKey = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.composedPath()[0])) return;
      if (document.querySelector('dialog[open]') !== null) return;
      if (isGoing) {
        isGoing = false;
        const found = DESTINATIONS.find(({ key }) => key === event.key);
        if (found === undefined) return;
        event.preventDefault();
        go(href(found.to === '' ? [] : [found.to]));
      } else if (event.key === 'g') {
        isGoing = true;
        forget();
        forget = after(PAUSE_MS, () => {
          isGoing = false;
        });
      } else if (event.key === '/') {
        event.preventDefault();
        const onPage = document.querySelector<HTMLElement>('#page [data-find]');
        (onPage ?? document.querySelector<HTMLElement>('[data-find]'))?.focus();
      } else if (event.key === '?') {
        isHelpOpen.value = true;
      }
    };
    document.addEventListener('keydown', onKey);
    return () => {
      document.removeEventListener('keydown', onKey);
      forget();
    };
  }, []);
  if (!isHelpOpen.value) return null;
  return (
    <Dialog title="Keys" onClose={() => (isHelpOpen.value = false)}>
      <dl class="body keys">
        <KeyRow keys={['/']} text="Find" />
        {DESTINATIONS.map(({ key, title }) => (
          <KeyRow key={key} keys={['g', key]} text={title} />
        ))}
        <KeyRow keys={['↑', '↓']} text="Previous row, next row" />
        <KeyRow keys={['?']} text="Show this list" />
      </dl>
    </Dialog>
  );
}

function KeyRow({ keys, text }: { readonly keys: readonly string[]; readonly text: string }) {
  return (
    <>
      <dt>
        {keys.map((key) => (
          <kbd key={key}>{key}</kbd>
        ))}
      </dt>
      <dd>{text}</dd>
    </>
  );
}

/** Pass the innermost target: outside a shadow root, `event.target` is its host. */
function isTyping(target: EventTarget | undefined): boolean {
  return (
    target instanceof HTMLElement &&
    target.closest('input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]') !== null
  );
}
