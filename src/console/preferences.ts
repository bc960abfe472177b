import { effect, type Signal, signal } from '@preact/signals';

type Theme = 'system' | 'light' | 'dark';
type Zone = 'local' | 'utc';
/** `live`: immediately; a number: every so many seconds; `paused`: nothing is refreshed. */
export type Refresh = 'live' | '10' | '60' | 'paused';

/** The time range of charts in minutes. The server stores an hour. */
export type ChartMinutes = '10' | '30' | '60';

/** A saved filter of the list of queues. */
interface SavedView {
  readonly name: string;
  readonly query: string;
}

const PREFIX = 'quayside.';

export const theme = stored<Theme>('theme', 'system');
export const zone = stored<Zone>('zone', 'local');
export const refresh = stored<Refresh>('refresh', 'live');
export const chartMinutes = stored<ChartMinutes>('chartMinutes', '60');
/** Visible columns of the list of queues, in addition to the name. */
export const queueColumns = stored<readonly string[]>('columns', [
  'ready',
  'scheduled',
  'reserved',
  'age',
  'in',
  'out',
  'trend',
]);
export const savedViews = stored<readonly SavedView[]>('savedViews', []);

effect(() => {
  if (theme.value === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
});

/** A preference, stored in the browser if it allows that. */
function stored<T>(name: string, fallback: T): Signal<T> {
  const choice = signal(read(name, fallback));
  let isFirst = true;
  effect(() => {
    const text = JSON.stringify(choice.value);
    if (!isFirst) write(name, text);
    isFirst = false;
  });
  // Another tab changed it. Adopt the change, so that this tab does not overwrite it later.
  addEventListener('storage', ({ key }) => {
    if (key === PREFIX + name) choice.value = read(name, fallback);
  });
  return choice;
}

function read<T>(name: string, fallback: T): T {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? fallback : (JSON.parse(text) as T);
  } catch {
    return fallback;
  }
}

/** If the browser stores nothing, the preference lasts until the tab is closed. */
function write(name: string, text: string): void {
  try {
    localStorage.setItem(PREFIX + name, text);
  } catch {}
}
