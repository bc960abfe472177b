import path from 'node:path';
import { PAGES, sitePathOf } from './navigation.ts';

/** As much of markdown-it as is used here. */
interface MarkdownIt {
  readonly core: {
    readonly ruler: {
      push(name: string, rule: (state: State) => void): void;
    };
  };
}

interface State {
  readonly tokens: readonly Token[];
  readonly env: { readonly path: string; readonly realPath?: string };
}

interface Token {
  readonly type: string;
  readonly children: readonly Token[] | null;
  attrGet(name: string): string | null;
  attrSet(name: string, value: string): void;
}

/**
 * Links of the pages are paths between files, as a reader of the repository needs them. On the site some pages have
 * another path: a `README.md` is the index of its folder, and pages from outside of `docs` stand at the top.
 */
export function siteLinks(md: MarkdownIt, root: string): void {
  md.core.ruler.push('site-links', ({ tokens, env }) => {
    const folder = path.dirname(path.relative(root, env.realPath ?? env.path));
    for (const token of tokens.flatMap(({ children }) => children ?? [])) {
      if (token.type !== 'link_open') continue;
      const [target = '', anchor] = (token.attrGet('href') ?? '').split('#');
      const page = path.join(folder, target);
      if (target === '' || !PAGES.includes(page)) continue;
      token.attrSet('href', `/${sitePathOf(page)}${anchor === undefined ? '' : `#${anchor}`}`);
    }
  });
}
