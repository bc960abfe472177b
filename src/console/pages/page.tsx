import { signal } from '@preact/signals';
import type { ComponentType } from 'preact';
import { useEffect } from 'preact/hooks';
import { DESTINATIONS } from '../destinations.ts';
import { named } from '../format.ts';
import { connection } from '../remote/live.ts';
import { address, place } from '../route.ts';
import { Failure, Loading, NoSuchPage } from '../ui/states.tsx';
import { Overview } from './overview.tsx';
import { Queues } from './queues.tsx';

/** Properties of a page: the segments of its address after the first. */
export interface PageProps {
  readonly rest: readonly string[];
}

type PageComponent = ComponentType<PageProps>;

/** Pages that are loaded when they are first opened, by the first segment of their address. */
const LAZY: ReadonlyMap<string, () => Promise<PageComponent>> = new Map([
  ['q', async () => (await import('./queue.tsx')).QueuePages],
  ['dead-letters', async () => (await import('./dead-letters.tsx')).DeadLetters],
  ['clients', async () => (await import('./clients.tsx')).Clients],
  ['exchanges', async () => (await import('./exchanges.tsx')).Exchanges],
  ['x', async () => (await import('./exchange.tsx')).Exchange],
  ['x-new', async () => (await import('./exchange-editor.tsx')).NewExchange],
  ['operations', async () => (await import('./operations.tsx')).Operations],
  ['users', async () => (await import('./users.tsx')).Users],
]);

const loaded = signal<Readonly<Record<string, PageComponent>>>({});
const failure = signal<unknown>(null);

/** The title of the present page, for tabs, history and bookmarks. */
export function pageTitle(): string {
  const [first = '', ...rest] = address.peek().parts;
  if (first === 'q') {
    const [ns = '', queue = '', tab = '', id] = rest;
    return [id ?? tab, named(queue), ns].filter(Boolean).join(' · ');
  }
  if (first === 'x') return named(rest[0] ?? '');
  if (first === 'x-new') return 'New exchange';
  return DESTINATIONS.find(({ to }) => to === first)?.title ?? 'Page not found';
}

/** The page of the address. Another path renders another page; another query does not. */
export function PageOf() {
  const [first = '', ...rest] = address.value.parts;
  if (first === '') return <Overview />;
  if (first === 'queues') return <Queues />;
  if (LAZY.has(first)) return <LazyPage key={place.value} name={first} rest={rest} />;
  return <NoSuchPage />;
}

async function load(name: string): Promise<void> {
  failure.value = null;
  try {
    const page = await LAZY.get(name)?.();
    if (page !== undefined) loaded.value = { ...loaded.peek(), [name]: page };
  } catch (error) {
    failure.value = error;
  }
}

/** Loads the page of the address in parallel with the session. */
export function loadFirst(): void {
  void load(address.peek().parts[0] ?? '');
}

function LazyPage({ name, rest }: { readonly name: string; readonly rest: readonly string[] }) {
  const Page = loaded.value[name];
  useEffect(() => {
    if (Page === undefined) void load(name);
  }, [name]);
  const isLive = connection.value === 'live';
  useEffect(() => {
    if (isLive && failure.peek() !== null) void load(name);
  }, [isLive]);
  if (Page !== undefined) return <Page rest={rest} />;
  if (failure.value !== null) {
    // After an update of the server the old files are gone, and a reload fetches the new ones. Not while the server is
    // unavailable: a reload would show the browser's error page.
    const retry = (): void => (isLive ? location.reload() : void load(name));
    const reason = isLive ? 'the server may have been updated' : 'the server did not respond';
    return <Failure error={`This page could not be loaded: ${reason}.`} retry={retry} />;
  }
  return <Loading />;
}
