import { queueHref } from '../route.ts';

/** A queue by its name, with its namespace. */
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
