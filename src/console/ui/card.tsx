import type { ComponentChildren } from 'preact';

/** A part of a page with a heading. */
export function Card({
  title,
  aside,
  label,
  children,
}: {
  readonly title: ComponentChildren;
  /** What is next to the heading. */
  readonly aside?: ComponentChildren;
  /** The name of the part, which is then a landmark of the page. */
  readonly label?: string;
  readonly children: ComponentChildren;
}) {
  return (
    <section class="card" aria-label={label}>
      <header>
        <h2 class="grow">{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  );
}
