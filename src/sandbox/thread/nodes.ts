import type { AnyNode } from 'acorn';

/** A node and all nodes below it, in no order. With a stack of its own: depth is the selector's to choose. */
export function* nodesOf(root: AnyNode): Generator<AnyNode> {
  const open: unknown[] = [root];
  while (open.length > 0) {
    const next = open.pop();
    if (Array.isArray(next)) open.push(...next);
    else if (isNode(next)) {
      yield next;
      open.push(...Object.values(next));
    }
  }
}

function isNode(value: unknown): value is AnyNode {
  return typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string';
}
