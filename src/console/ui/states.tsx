import type { ComponentChildren } from 'preact';
import type { Right } from '../../model/rights.ts';
import { ApiError, messageOf } from '../api.ts';
import { count } from '../format.ts';
import type { Resource } from '../remote/resource.ts';
import { address, href } from '../route.ts';
import { Button } from './button.tsx';
import { Icon, type IconName } from './icon.tsx';

export type Level = 'good' | 'warn' | 'bad' | 'plain' | 'accent';

const ICONS: Readonly<Record<Level, IconName | null>> = {
  good: 'ok',
  warn: 'warn',
  bad: 'bad',
  plain: null,
  accent: null,
};

/** A state as a word, so that its color is never the only sign. */
export function Badge({
  level = 'plain',
  icon,
  children,
  title,
}: {
  readonly level?: Level;
  readonly icon?: IconName;
  readonly children: ComponentChildren;
  readonly title?: string;
}) {
  const shown = icon ?? ICONS[level];
  return (
    <span class={`badge ${level}`} title={title}>
      {shown !== null && <Icon name={shown} />}
      <span>{children}</span>
    </span>
  );
}

/** Shown in place of an empty list, with a hint what to do next. */
export function Empty({
  title,
  children,
  icon = 'ok',
}: {
  readonly title: string;
  readonly children?: ComponentChildren;
  readonly icon?: IconName;
}) {
  return (
    <div class="empty">
      <Icon name={icon} />
      <p class="empty-title">{title}</p>
      {children !== undefined && <div class="muted">{children}</div>}
    </div>
  );
}

/** Shown in place of what the user may not see. */
export function NeedsRight({
  title,
  right,
  ns = 'a namespace',
}: {
  readonly title: string;
  readonly right: Right;
  readonly ns?: string;
}) {
  return (
    <Empty title={title} icon="lock">
      You need the right <code>{right}</code> in {ns}.
    </Empty>
  );
}

/** What the user can do about an error, by its code. */
const ADVICE: Readonly<Record<string, string>> = {
  unreachable:
    'You see the last known data. They are refreshed when the server responds, unless refreshing is paused.',
  'storage-unavailable': 'Try again when the engine is back. The overview shows its state.',
  'outcome-unknown':
    'The connection to the engine was lost. Check whether the change was made before you repeat it.',
  'storage-full': 'Free some disk space. Consumers are not affected.',
  'shutting-down':
    'This node is shutting down. Try again in a moment, when it has restarted or another node answers.',
  overloaded: 'The server is busy. Try again in a moment.',
  forbidden: 'Ask an administrator for the right, or sign in as another user.',
  'element-not-found':
    'It was consumed, moved or removed, or its group has finished it. Dead letters are in their dead-letter queue.',
  'precondition-failed':
    'It was changed or deleted after this page read it. Reload the page to see the change; what you typed is lost then.',
  'forbidden-origin': 'Open the console at the address of the server itself.',
};

/** Reports an error, if there is one. */
export function Failure({ error, retry }: { readonly error: unknown; readonly retry?: () => void }) {
  if (error === null) return null;
  const advice = error instanceof ApiError ? ADVICE[error.code] : undefined;
  return (
    <div class="failure" role="alert">
      <Icon name="bad" />
      <div>
        <p>{messageOf(error)}</p>
        {advice !== undefined && <p class="muted">{advice}</p>}
      </div>
      {retry !== undefined && (
        <Button icon="refresh" onClick={retry}>
          Try again
        </Button>
      )}
    </div>
  );
}

export function Loading({ what = 'Loading' }: { readonly what?: string }) {
  return (
    <p class="loading muted" role="status">
      {what} …
    </p>
  );
}

/** Shows what a page has read; until then that it is being read, or why it could not be. */
export function Loaded<T>({
  from: { value, error, isLoading, reload },
  what = 'Loading',
  children,
}: {
  readonly from: Resource<T>;
  readonly what?: string;
  readonly children: (value: T) => ComponentChildren;
}) {
  return (
    <>
      <Failure error={error} retry={reload} />
      {value === null ? isLoading && <Loading what={what} /> : children(value)}
    </>
  );
}

/** A bar that shows progress, from 0 to 1. */
export function Meter({ part, isThin = false }: { readonly part: number; readonly isThin?: boolean }) {
  const percent = Math.min(100, Math.round(part * 100));
  return (
    <div
      class={isThin ? 'meter thin' : 'meter'}
      role="progressbar"
      aria-label="Progress"
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={percent}
    >
      <i style={{ width: `${percent}%` }} />
    </div>
  );
}

/** Offers to show what was added to a list, and removed from it, since it was read. */
export function NewBar({
  added,
  removed = 0,
  onShow,
}: {
  readonly added: number;
  readonly removed?: number;
  readonly onShow: () => void;
}) {
  if (added === 0 && removed === 0) return null;
  const changes = [
    ...(added > 0 ? [`${count(added)} new`] : []),
    ...(removed > 0 ? [`${count(removed)} gone`] : []),
  ];
  return (
    <div class="bar" role="status">
      <Button icon="refresh" onClick={onShow}>
        {changes.join(', ')}: show
      </Button>
    </div>
  );
}

export function NoSuchPage() {
  return (
    <>
      <h1>Page not found</h1>
      <p>
        No page has the address <bdi>{address.value.parts.join(' / ')}</bdi>.{' '}
        <a href={href([])}>Go to the overview.</a>
      </p>
    </>
  );
}
