import { useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useId, useRef } from 'preact/hooks';
import { Icon, type IconName } from './icon.tsx';

/**
 * A button that opens a panel next to it. The content is rendered when the panel is first opened. Arrow keys move
 * within it, Escape closes it.
 */
export function Menu({
  icon,
  label,
  title,
  children,
  className = '',
}: {
  readonly icon?: IconName;
  readonly label?: ComponentChildren;
  readonly title: string;
  readonly children: ComponentChildren;
  readonly className?: string;
}) {
  const id = useId();
  const panel = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const wasOpened = useSignal(false);
  const place = (): void => {
    const at = button.current?.getBoundingClientRect();
    const box = panel.current;
    if (at === undefined || box === null) return;
    box.style.top = `${Math.min(at.bottom + 4, innerHeight - box.offsetHeight - 8)}px`;
    box.style.left = `${Math.max(8, Math.min(at.left, innerWidth - box.offsetWidth - 8))}px`;
  };
  const move = (event: KeyboardEvent): void => {
    if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return;
    const items = [...(panel.current?.querySelectorAll<HTMLElement>('button, a, input') ?? [])];
    const at = items.indexOf(document.activeElement as HTMLElement);
    const step = event.key === 'ArrowDown' ? 1 : -1;
    items.at((at + step + items.length) % items.length)?.focus();
    event.preventDefault();
  };
  return (
    <>
      <button
        ref={button}
        type="button"
        class={className}
        popovertarget={id}
        aria-label={title}
        title={title}
      >
        {icon !== undefined && <Icon name={icon} />}
        {label}
      </button>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: the handlers move between the buttons in it */}
      <div
        ref={panel}
        id={id}
        popover="auto"
        class="menu"
        onKeyDown={move}
        onBeforeToggle={() => {
          wasOpened.value = true;
        }}
        onToggle={(event) => {
          if (event.newState !== 'open') return;
          place();
          panel.current?.querySelector<HTMLElement>('button, a, input')?.focus();
        }}
        // Before the handler of a button, so that a dialog that it opens returns the focus to the button of the menu.
        onClickCapture={(event) => {
          // Buttons and links close the panel; check boxes do not.
          if ((event.target as HTMLElement).closest('button, a') !== null) panel.current?.hidePopover();
        }}
      >
        {wasOpened.value && children}
      </div>
    </>
  );
}

/** Chooses one of several options in a menu. */
export function Choices<T extends string>({
  name,
  value,
  options,
  onChoose,
}: {
  readonly name: string;
  readonly value: T;
  readonly options: Readonly<Record<T, string>>;
  readonly onChoose: (value: T) => void;
}) {
  return (
    <fieldset class="choices">
      <legend>{name}</legend>
      {(Object.entries(options) as [T, string][]).map(([key, text]) => (
        <button key={key} type="button" aria-pressed={key === value} onClick={() => onChoose(key)}>
          <span class="mark" aria-hidden="true">
            {key === value ? '✓' : ''}
          </span>
          {text}
        </button>
      ))}
    </fieldset>
  );
}
