import { signal } from '@preact/signals';
import { messageOf } from '../api.ts';
import { named } from '../format.ts';
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

onUserChange((before, now) => {
  toasts.value = [];
  // Such as when another tab has signed in: the page stays, and acts with other rights.
  if (before !== undefined && now !== undefined)
    say(`You act as ${named(now)} now, no longer as ${named(before)}`);
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

/** After how long an unanswered action is reported: otherwise a user would press its button again. */
const SLOW_MS = 500;
/** How many actions have been unanswered for so long. */
const slow = signal(0);

/** Runs the action of a button, and shows its result or error, and that it takes long. */
export async function act(work: () => Promise<string>): Promise<void> {
  let isSlow = false;
  const cancel = after(SLOW_MS, () => {
    isSlow = true;
    slow.value += 1;
  });
  try {
    say(await work());
  } catch (error) {
    showError(error);
  }
  cancel();
  if (isSlow) slow.value -= 1;
}

export function Toasts() {
  return (
    <div class="toasts" aria-live="polite">
      {slow.value > 0 && (
        <div class="toast waiting">
          <Icon name="clock" />
          <p>Waiting for the server …</p>
        </div>
      )}
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
