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

/** The buttons of a dialog: one cancels, and one submits its form, or calls `onConfirm` if that is given. */
export function DialogFoot({
  isDanger = false,
  isDisabled = false,
  mayCancel = true,
  onCancel,
  onConfirm,
  children,
}: {
  readonly isDanger?: boolean;
  readonly isDisabled?: boolean;
  readonly mayCancel?: boolean;
  readonly onCancel: () => void;
  readonly onConfirm?: () => void;
  /** The text of the button that submits. */
  readonly children: ComponentChildren;
}) {
  return (
    <div class="foot">
      <Button disabled={!mayCancel} onClick={onCancel}>
        Cancel
      </Button>
      <button
        type={onConfirm === undefined ? 'submit' : 'button'}
        class={isDanger ? 'primary danger' : 'primary'}
        disabled={isDisabled}
        onClick={onConfirm}
      >
        {children}
      </button>
    </div>
  );
}

/** Asks before an action that cannot be undone. */
export function ConfirmDialog({
  title,
  action,
  isDisabled = false,
  onConfirm,
  onClose,
  children,
}: {
  readonly title: string;
  /** The text of the button. */
  readonly action: string;
  readonly isDisabled?: boolean;
  readonly onConfirm: () => void;
  readonly onClose: () => void;
  /** What the action does. */
  readonly children: ComponentChildren;
}) {
  return (
    <Dialog title={title} onClose={onClose}>
      <div class="body">
        {children}
        <DialogFoot isDanger isDisabled={isDisabled} onCancel={onClose} onConfirm={onConfirm}>
          {action}
        </DialogFoot>
      </div>
    </Dialog>
  );
}
