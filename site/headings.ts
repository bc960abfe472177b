/** The anchor of a heading, as GitHub makes it, so that a link works there and on the site. */
export function anchorOf(heading: string): string {
  return heading
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
    .trim()
    .replaceAll(/\s/g, '-');
}

/** The first heading of a page, without the marks of code. */
export function titleOf(markdown: string): string {
  return (/^# (.*)$/m.exec(markdown)?.[1] ?? '').replaceAll('`', '');
}
