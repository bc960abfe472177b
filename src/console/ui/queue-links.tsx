import type { QueueNamed } from '../api.ts';
import { href, namespaceHref, queueHref } from '../route.ts';
import { Icon } from './icon.tsx';

/** A link to a queue, with its namespace. */
export function QueueLink({ ns, queue }: { readonly ns: string; readonly queue: string }) {
  return (
    <>
      <a href={queueHref(ns, queue)}>
        <bdi>{queue}</bdi>
      </a>{' '}
      <span class="muted">{ns}</span>
    </>
  );
}

/** The server's limit of words of a filter. More of a name would be rejected. */
const MAX_WORDS = 16;

/** Returns a filter of clients, or of changes, that finds those of a queue. */
export function filterFor({ ns, queue }: QueueNamed): string {
  return `${ns} ${queue}`.split(/\s+/).slice(0, MAX_WORDS).join(' ');
}

/** The breadcrumbs of a page. */
export function Crumbs({ of: { ns, queue } }: { readonly of: QueueNamed }) {
  return (
    <nav class="crumbs" aria-label="Breadcrumbs">
      <a href={href(['queues'])}>Queues</a> <Icon name="right" />
      <a href={namespaceHref(ns)}>{ns}</a>
      {queue !== '' && (
        <>
          <Icon name="right" /> <a href={queueHref(ns, queue)}>{queue}</a>
        </>
      )}
    </nav>
  );
}
