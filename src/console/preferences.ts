import { effect, type Signal, signal } from '@preact/signals';

export type Theme = 'system' | 'light' | 'dark';
export type Zone = 'local' | 'utc';
/** `live`: as it comes; a number: every so many seconds; `paused`: nothing changes until it is switched on again. */
export type Refresh = 'live' | '10' | '60' | 'paused';

/** How many minutes charts show. The server keeps an hour. */
export type ChartMinutes = '10' | '30' | '60';

/** A list of queues under a name. */
export interface SavedView {
  readonly name: string;
  readonly query: string;
}

const PREFIX = 'quayside.';

export const theme = stored<Theme>('theme', 'system');
export const zone = stored<Zone>('zone', 'local');
export const refresh = stored<Refresh>('refresh', 'live');
export const chartMinutes = stored<ChartMinutes>('chartMinutes', '60');
/** Columns of the list of queues that are shown in addition to the name. */
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

/** A choice that the browser remembers, if it allows that. */
function stored<T>(name: string, fallback: T): Signal<T> {
  const choice = signal(read(name, fallback));
  let isFirst = true;
  effect(() => {
    const text = JSON.stringify(choice.value);
    if (!isFirst) write(name, text);
    isFirst = false;
  });
  // Another tab has chosen: what this one stores later must not undo that.
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

/** A browser that stores nothing still shows the choice until the tab is closed. */
function write(name: string, text: string): void {
  try {
    localStorage.setItem(PREFIX + name, text);
  } catch {}
}
