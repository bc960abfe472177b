import type { BulkOperations, OperationCaller } from '../operations/operations.ts';
import type { OperationRecord } from '../operations/record.ts';
import type { Picture, PictureSource } from './picture.ts';

/** The node itself, which sees all. */
const EVERYTHING: OperationCaller = {
  name: '',
  may: () => true,
  maySee: () => true,
  maySeeBodies: () => false,
};
const ALL = { ns: null, queue: null, state: null };

/** Bulk operations and how far they are, for those who may manage their source. Samples are in the operation's record alone. */
export class OperationPictures implements PictureSource {
  readonly kind = 'operations';
  readonly #operations: Pick<BulkOperations, 'list'>;

  constructor(operations: Pick<BulkOperations, 'list'>) {
    this.#operations = operations;
  }

  async read(): Promise<Picture[]> {
    return (await this.#operations.list(ALL, EVERYTHING)).map(pictureOf);
  }
}

function pictureOf({ samples: _, where: __, set: ___, to = null, ...shown }: OperationRecord): Picture {
  const { id, source } = shown;
  const places = [source, ...(to === null ? [] : [to])].map(({ ns, queue = null }) => ({ ns, queue }));
  return {
    kind: 'operations',
    key: id,
    places,
    state: JSON.stringify(shown),
    isFor: (viewer) => viewer.may('manage', source.ns),
    json: (viewer) =>
      JSON.stringify({ ...shown, ...(to !== null && { to: viewer.maySee(to.ns) ? to : null }) }),
    goneJson: () => JSON.stringify({ id, gone: true }),
  };
}
