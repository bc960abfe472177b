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
