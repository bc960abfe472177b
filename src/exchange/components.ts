/**
 * The strongly connected components of a graph whose nodes are numbered from 0: two nodes are in the same one where
 * each can be reached from the other. Tarjan's search with a stack of its own, since a chain of queues may be longer
 * than the call stack is deep; linear in nodes and edges.
 * @param successors per node
 * @returns a component's number per node
 */
export function componentsOf(successors: readonly (readonly number[])[]): Int32Array {
  const component = new Int32Array(successors.length).fill(-1);
  /** When a node was met, from 1; 0 where it was not yet. */
  const met = new Int32Array(successors.length);
  /** The earliest met node of the same component that is known to be reached from a node. */
  const earliest = new Int32Array(successors.length);
  const looked = new Int32Array(successors.length);
  /** Met, and of no component yet. */
  const open: number[] = [];
  const path: number[] = [];
  let clock = 0;
  let found = 0;
  const meet = (node: number): void => {
    clock += 1;
    met[node] = clock;
    earliest[node] = clock;
    open.push(node);
    path.push(node);
  };
  const improve = (node: number, seen: number | undefined): void => {
    earliest[node] = Math.min(at(earliest, node), seen ?? Infinity);
  };
  const leave = (node: number): void => {
    path.pop();
    const before = path.at(-1);
    if (before !== undefined) improve(before, earliest[node]);
    if (earliest[node] !== met[node]) return;
    for (let member = open.pop(); member !== undefined; member = open.pop()) {
      component[member] = found;
      if (member === node) break;
    }
    found += 1;
  };
  for (let root = 0; root < successors.length; root += 1) {
    if (met[root] !== 0) continue;
    meet(root);
    for (let node = path.at(-1); node !== undefined; node = path.at(-1)) {
      const next = successors[node]?.[at(looked, node)];
      looked[node] = at(looked, node) + 1;
      if (next === undefined) leave(node);
      else if (met[next] === 0) meet(next);
      else if (component[next] === -1) improve(node, met[next]);
    }
  }
  return component;
}

function at(numbers: Int32Array, index: number): number {
  return numbers[index] ?? 0;
}
