import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of the state that nodes share and the questions they ask each other, and of metrics. */
export const NODES: readonly Mutant[] = [
  {
    name: 'differences between the configurations of nodes are not detected',
    suite: 'differences of nodes',
    edits: edit('broker/cluster.ts', 'there === undefined || there === here', 'there !== null'),
  },
  {
    name: 'a changed variant is used without waiting for nodes that are still alive',
    suite: 'agreement of nodes',
    edits: edit(
      'broker/cluster.ts',
      'if (before !== null && before !== variant) await this.#checkLiveNodes();',
      '',
    ),
  },
  {
    name: 'a change of the variant gives the namespace another identity',
    suite: 'agreement of nodes',
    edits: edit(
      'broker/cluster.ts',
      'identity: identity ?? this.#shared.makeTid()',
      'identity: this.#shared.makeTid()',
    ),
  },
  {
    name: 'every user is shown the files of all engines',
    suite: 'metrics',
    edits: edit('metrics/metrics.ts', 'neededBy?.some((name) => viewer.maySee(name)) !== false', 'true'),
  },
  {
    name: 'the counter of an error does not exist before the first one',
    suite: 'metrics',
    edits: edit('broker/meter.ts', 'new Map(ERRORS[operation].map((code) => [code, 0]))', 'new Map()'),
  },
  {
    name: 'the age of the oldest ready element includes scheduled ones',
    suite: 'metrics',
    edits: edit('broker/queue-record.ts', 'Math.max(0, ageMs)', 'Math.abs(ageMs)').concat(
      edit(
        'broker/queue-record.ts',
        'if (ready === 0 || nextMatureAt === null)',
        'if (nextMatureAt === null)',
      ),
    ),
  },
  {
    name: 'a node that does not reply is not listed as missing',
    suite: 'questions between nodes',
    edits: edit(
      'broker/questions.ts',
      'missing: [...awaited.keys(), ...failures.map(({ node }) => node)]',
      'missing: failures.map(({ node }) => node)',
    ),
  },
  {
    name: 'a node that cannot reply makes others wait',
    suite: 'questions between nodes',
    edits: edit(
      'broker/questions.ts',
      'if (!this.#isStopped) this.#send(channel, to, number, reply);',
      "if ('rows' in reply) this.#send(channel, to, number, reply);",
    ),
  },
  {
    name: 'nodes wait for a reply of a node that has stopped',
    suite: 'questions between nodes',
    edits: edit('broker/questions.ts', 'if (awaited.delete(node) && awaited.size === 0) done();', ''),
  },
  {
    name: 'parts of a message are joined in the order of arrival',
    suite: 'questions between nodes',
    edits: edit(
      'broker/questions.ts',
      'this.#parts.set(at, text);',
      'this.#parts.set(this.#parts.size, text);',
    ),
  },
  {
    name: 'the rows of a reply are not limited',
    suite: 'questions between nodes',
    edits: edit('broker/questions.ts', 'upToBytes(rows, question.maxBytes)', 'rows'),
  },
  {
    name: 'a late reply to an earlier question is used for the next one',
    suite: 'questions between nodes',
    edits: edit(
      'broker/questions.ts',
      'const pending = this.#pending.get(part.question);',
      'const pending = [...this.#pending.values()].at(-1);',
    ),
  },
  {
    name: "rows of other nodes are shown without checking the user's rights",
    suite: 'rights in lists of nodes',
    edits: edit(
      'http/node-lists.ts',
      '          .flatMap((row) => visiblePart(row, viewer))\n          .filter(',
      '          .filter(',
    ),
  },
  {
    name: 'a node sends rows that the user may not see',
    suite: 'rights in lists of nodes',
    edits: edit(
      'http/node-lists.ts',
      'viewer.isAdministrator || viewer.manages.includes(namespace)',
      "viewer.isAdministrator || viewer.manages.length >= 0 || namespace !== ''",
    ),
  },
  {
    name: 'the limit of a list counts rows that the user may not see',
    suite: 'rights in lists of nodes',
    edits: edit('http/node-lists.ts', 'rows: rows.slice(0, limit) };', 'rows: rows.slice(1, limit + 1) };'),
  },
  {
    name: 'waiting calls of a namespace that only one node has are listed by others',
    suite: 'lists of nodes',
    edits: edit(
      'http/node-lists.ts',
      'from === broker.nodeId || namespace.cluster.peers().some(({ info }) => info.id === from)',
      "from !== '' && namespace",
    ),
  },
  {
    name: 'a session of the console that two nodes served is listed twice',
    suite: 'lists of nodes',
    edits: edit('http/node-lists.ts', 'same.slice(0, 1)', 'same'),
  },
];
