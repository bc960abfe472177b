import { InvalidArgumentError } from 'commander';

export type RightsByNamespace = Readonly<Record<string, readonly string[]>>;

export const RIGHTS_HELP = 'rights such as N=read,write or *=browse; may be repeated';

/** Adds the value of one option to those of the options before it. */
export function addRights(text: string, before: RightsByNamespace = {}): RightsByNamespace {
  const [, namespace, list] = /^([^=]+)=([a-z,]*)$/.exec(text) ?? [];
  if (namespace === undefined || list === undefined) {
    throw new InvalidArgumentError('Allowed: a namespace or *, =, and rights with commas between them.');
  }
  return { ...before, [namespace]: list.split(',').filter((right) => right !== '') };
}
