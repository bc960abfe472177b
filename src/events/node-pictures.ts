import type { Broker } from '../broker/broker.ts';
import type { EventViewer, Picture, PictureSource } from './picture.ts';

type KnownNode = ReturnType<Broker['nodes']>[number];

/** A node with those of its namespaces that the viewer may know of. */
export function nodeRecord(
  { startedAt, namespaces, conflicts, ...node }: KnownNode,
  viewer: Pick<EventViewer, 'maySee'>,
): object {
  return {
    ...node,
    startedAt: new Date(startedAt).toISOString(),
    namespaces: namespaces.filter((name) => viewer.maySee(name)),
    conflicts: conflicts.filter(({ namespace }) => viewer.maySee(namespace)),
  };
}

/** This node and those that share namespaces with it, for every user. */
export class NodePictures implements PictureSource {
  readonly kind = 'nodes';
  readonly #broker: Pick<Broker, 'nodes'>;

  constructor(broker: Pick<Broker, 'nodes'>) {
    this.#broker = broker;
  }

  read(): Picture[] {
    return this.#broker.nodes().map((node) => ({
      kind: 'nodes',
      key: node.id,
      places: node.namespaces.map((ns) => ({ ns, queue: null })),
      state: JSON.stringify(node),
      isFor: () => true,
      json: (viewer) => JSON.stringify(nodeRecord(node, viewer)),
      goneJson: () => JSON.stringify({ id: node.id, gone: true }),
    }));
  }
}
