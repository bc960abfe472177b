import type { ComponentChildren } from 'preact';
import { Dialog } from './dialog.tsx';
import { DialogFoot } from './form.tsx';

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
