import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { Button } from './button.tsx';

/**
 * A modal dialog. It is open while its parent renders it; Escape and the close button call `onClose`. Updates of the
 * page do not affect it.
 */
export function Dialog({
  title,
  onClose,
  children,
  wide = false,
}: {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
  readonly wide?: boolean;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = ref.current;
    const opener = document.activeElement;
    dialog?.showModal();
    // Focus the first field of a form, instead of the close button.
    dialog?.querySelector<HTMLElement>('form :is(input, select, textarea)')?.focus();
    return () => {
      dialog?.close();
      if (opener instanceof HTMLElement && opener.isConnected) opener.focus();
    };
  }, []);
  return (
    <dialog
      ref={ref}
      class={wide ? 'wide' : ''}
      aria-labelledby="dialog-title"
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      // Browsers close a dialog at the second Escape even if `cancel` was prevented: open it again.
      onClose={() => ref.current?.showModal()}
    >
      <header>
        <h2 id="dialog-title">{title}</h2>
        <Button icon="close" class="quiet square" aria-label="Close" onClick={onClose} />
      </header>
      {children}
    </dialog>
  );
}
