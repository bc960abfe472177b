import type { QueueNamed } from '../api.ts';
import { href, namespaceHref, queueHref } from '../route.ts';
import { Icon } from './icon.tsx';

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
