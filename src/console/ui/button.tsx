import type { ButtonHTMLAttributes } from 'preact';
import { Icon, type IconName } from './icon.tsx';

/** A button that submits no form. */
export function Button({
  icon,
  children,
  ...attributes
}: ButtonHTMLAttributes<HTMLButtonElement> & { readonly icon?: IconName }) {
  return (
    <button type="button" {...attributes}>
      {icon !== undefined && <Icon name={icon} />}
      {children}
    </button>
  );
}
