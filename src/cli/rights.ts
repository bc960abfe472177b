import { InvalidArgumentError } from 'commander';

export type RightsByNamespace = Readonly<Record<string, readonly string[]>>;

export const RIGHTS_HELP =
  'rights in a namespace, of read, write, manage, browse and exchange, such as N=read,write; * stands for namespaces that are not named; may be repeated';

/** Adds the value of one `--rights` option to those of the previous ones. */
export function addRights(text: string, before: RightsByNamespace = {}): RightsByNamespace {
  const [, namespace, list] = /^([^=]+)=([a-z,]*)$/.exec(text) ?? [];
  if (namespace === undefined || list === undefined) {
    throw new InvalidArgumentError('Allowed: a namespace or *, =, and rights with commas between them.');
  }
  if (Object.hasOwn(before, namespace)) {
    throw new InvalidArgumentError(
      `Namespace ${namespace} has rights already; give all of them at once, as in ${namespace}=read,write.`,
    );
  }
  return { ...before, [namespace]: list.split(',').filter((right) => right !== '') };
}
