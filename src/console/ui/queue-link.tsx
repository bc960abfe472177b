import { queueHref } from '../route.ts';

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
