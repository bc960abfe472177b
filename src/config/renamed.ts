import { type Path, pathText } from './problem.ts';
import { isTree, type Tree } from './schema.ts';

/** Options that had another name before. The old name works, with a warning. */
export const RENAMED: readonly { readonly from: Path; readonly to: Path }[] = [
  { from: ['http', 'openMetrics'], to: ['http', 'metricsWithoutLogin'] },
];

export interface Renaming {
  readonly from: Path;
  readonly to: Path;
  /** Whether the new name is given as well, so that the old one is not used. */
  readonly isRepeated: boolean;
}

/** Moves the values of old names to their new ones. @returns the old names that were found */
export function renameOptions(tree: Tree): Renaming[] {
  return RENAMED.flatMap(({ from, to }) => {
    const group = groupOf(tree, from);
    const oldName = from.at(-1) ?? '';
    if (group === undefined || !Object.hasOwn(group, oldName)) return [];
    const target = groupOf(tree, to) ?? group;
    const newName = to.at(-1) ?? '';
    const isRepeated = Object.hasOwn(target, newName);
    if (!isRepeated) target[newName] = group[oldName];
    delete group[oldName];
    return [{ from, to, isRepeated }];
  });
}

export function renamedText({ from, to }: Renaming): string {
  return `${pathText(from)} is now called ${pathText(to)}`;
}

/** The group that an option is in; undefined if it is not there. */
function groupOf(tree: Tree, path: Path): Tree | undefined {
  let at: unknown = tree;
  for (const key of path.slice(0, -1)) at = isTree(at) ? at[key] : undefined;
  return isTree(at) ? at : undefined;
}
