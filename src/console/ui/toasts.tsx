import { signal } from '@preact/signals';
import { messageOf } from '../api.ts';
import { onUserChange } from '../session.ts';
import { after } from '../timers.ts';
import { Button } from './button.tsx';
import { Icon } from './icon.tsx';

interface Toast {
  readonly id: number;
  readonly level: 'good' | 'bad';
  readonly text: string;
}

const toasts = signal<readonly Toast[]>([]);
let last = 0;

onUserChange(() => {
  toasts.value = [];
});

function add(level: Toast['level'], text: string): void {
  last += 1;
  const id = last;
  toasts.value = [...toasts.value, { id, level, text }];
  // Errors stay until they are dismissed.
  if (level === 'good') after(6_000, () => drop(id));
}

function drop(id: number): void {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

export function say(text: string): void {
  add('good', text);
}

export function showError(error: unknown): void {
  add('bad', messageOf(error));
}

/** Runs the action of a button, and shows its result or error. */
export async function act(work: () => Promise<string>): Promise<void> {
  try {
    say(await work());
  } catch (error) {
    showError(error);
  }
}

export function Toasts() {
  return (
    <div class="toasts" aria-live="polite">
      {toasts.value.map(({ id, level, text }) => (
        <div key={id} class={`toast ${level}`}>
          <Icon name={level === 'good' ? 'ok' : 'bad'} />
          <p>{text}</p>
          <Button icon="close" class="quiet square" aria-label="Dismiss" onClick={() => drop(id)} />
        </div>
      ))}
    </div>
  );
}
