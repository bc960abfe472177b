import type { NodesList } from '../../model/records.ts';
import { count, several } from '../format.ts';
import { nodes, seenNodes, version } from '../remote/live.ts';
import type { PlainColumn } from './plain-table.tsx';
import { Badge } from './states.tsx';

/** The name of a node: its host, and its process id if several nodes run there. */
export function nodeName(id: string): string {
  const node = seenNodes.get(id);
  if (node === undefined) return id;
  const isShared = [...nodes.values()].some((other) => other.id !== id && other.host === node.host);
  return isShared ? `${node.host} (${node.pid})` : node.host;
}

/** The column with the node of each row; none if there is only one node. */
export function nodeColumn<Row extends { readonly node: string }>({
  node: self,
}: NodesList): PlainColumn<Row>[] {
  version.value;
  if (nodes.size < 2) return [];
  return [
    {
      title: 'Node',
      cell: ({ node }) => (
        <>
          <bdi title={node}>{nodeName(node)}</bdi> {node === self && <Badge level="accent">this one</Badge>}
        </>
      ),
    },
  ];
}

/** The number of rows of a list, and how many of them are shown if it is cut. */
export function Length({
  of: { total },
  shown,
  one,
}: {
  readonly of: Pick<NodesList, 'total'>;
  readonly shown: number;
  readonly one: string;
}) {
  return (
    <span class="muted">
      {total > shown ? `the first ${count(shown)} of ${several(total, one)}` : several(total, one)}
    </span>
  );
}

/** Names the nodes that did not answer. */
export function MissingNodes({ missing }: Pick<NodesList, 'missing'>) {
  version.value;
  if (missing.length === 0) return null;
  return (
    <p class="body muted" role="status">
      <Badge level="warn">Not complete</Badge> {missing.map(nodeName).join(', ')} did not respond: what{' '}
      {missing.length === 1 ? 'it knows' : 'they know'} is not shown.
    </p>
  );
}
